"""What a request may ask for, checked before it is sent."""

from __future__ import annotations

from .errors import ContextLengthError, RequestRejectedError
from .types import EngineInfo, GenerateRequest


def check_request(request: GenerateRequest, info: EngineInfo) -> None:
    """Refuse here what SGLang would refuse, or silently cut, over there.

    Raises:
        RequestRejectedError: the prompt is empty, or its cache salt is.
        ContextLengthError: the prompt leaves no room for an answer, or not for one as long as it may be.
    """
    if not request.input_ids:
        raise RequestRejectedError("the prompt is empty: input_ids needs at least one token")
    if request.cache_salt == "" or request.extra_key == "":
        raise RequestRejectedError(
            "an empty cache_salt or extra_key keeps nothing apart (SGLang takes it for none): give a text of "
            "your own, or None to share the cache"
        )
    check_length(request, info.context_length, info.max_total_tokens)


def check_length(request: GenerateRequest, context_length: int, max_total_tokens: int | None = None) -> None:
    """Refuse what does not fit the model's context, or the engine's KV cache where that is known.

    Raises:
        ContextLengthError: the prompt leaves no room for an answer, or not for one as long as it may be.
    """
    n = len(request.input_ids)
    room = context_length if max_total_tokens is None else min(context_length, max_total_tokens)
    if n + 1 > room:
        if room == context_length:
            raise ContextLengthError(
                f"the prompt has {n} tokens, but the model's context holds {room} (answer included): shorten "
                "the conversation, or use a model with a longer context; only an engine that was given less "
                "than its model has can be given more (engine argument 'context_length')"
            )
        raise ContextLengthError(
            f"the prompt has {n} tokens, but the engine's KV cache holds {room} (answer included): shorten "
            "the conversation, or give the engine more room (engine argument 'max_total_tokens')"
        )
    wanted = request.sampling.max_new_tokens
    if wanted is not None and n + wanted > context_length:
        raise ContextLengthError(
            f"the prompt has {n} tokens and the answer may have {wanted} (max_tokens), but the model's "
            f"context holds {context_length}: allow at most {context_length - n}, or set no limit"
        )


__all__ = ["check_length", "check_request"]
