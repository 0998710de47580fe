"""What other clients call things: what to do instead where a swapped client still gets their arguments."""

from __future__ import annotations

from flashagents_runtime import engine_args

_SERVER = (
    "give the address of a running SGLang server as engine_url=, or leave it out for an engine of one's own"
)
_ACCOUNT = "an engine of one's own has no accounts: leave it out"
_WAITING = "no call is cut off for its length; cancel it by its cancellation_token, or by asyncio.timeout"
_INSTEAD = {
    **dict.fromkeys(("base_url", "azure_endpoint", "endpoint", "host", "url", "api_base"), _SERVER),
    **dict.fromkeys(("organization", "project", "azure_ad_token", "azure_ad_token_provider"), _ACCOUNT),
    **dict.fromkeys(("azure_deployment", "api_version", "api_type", "credential"), _ACCOUNT),
    "model_name": "give the model as model=",
    "model_path": "give the model as model=",
    "model_capabilities": "give it as model_info=",
    "timeout": _WAITING,
    "max_retries": "leave it out: a server that cannot be reached is tried again by itself, nothing else is",
    "default_headers": "give a server's key as api_key=; no other headers are sent",
    "http_client": "give a server's address as engine_url= and its certificate as tls_ca_file=",
    "add_name_prefixes": "leave it out: who speaks is always in the prompt",
    "include_name_in_message": "leave it out: who speaks is always in the prompt",
    "reasoning_effort": "give the chat template's own variable in chat_template_kwargs=",
    "think": "give the chat template's own variable in chat_template_kwargs=",
    "num_predict": "give it as max_tokens=",
    "num_ctx": "give it as engine_args={'context_length': ...}",
    "options": "give each of them as an argument of its own",
    "extra_body": "give each of them as an argument of its own",
}


def instead_of(name: str) -> str | None:
    """What to do instead of giving an argument of this name; None where nothing is known of it."""
    if name in _INSTEAD:
        return _INSTEAD[name]
    if name in engine_args.known() or name in engine_args.OURS:
        return f"it is an argument of the engine: give it as engine_args={{{name!r}: ...}}"
    return None


__all__ = ["instead_of"]
