"""What goes into an engine and what comes out. Names are SGLang's.

These are `msgspec.Struct`s: they are the wire format between application and host process too.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from .html_tables import figures_html

FinishReason = Literal["stop", "length", "abort"]


def new_rid() -> str:
    """A request id: 32 hex digits.

    One fixed length for all, because SGLang's `abort_request` matches by prefix
    (`Scheduler.abort_request`, `req.rid.startswith`): aborting `s1` would abort `s10` as well.
    """
    return uuid.uuid4().hex


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How to sample: the part of `sglang.srt.sampling.SamplingParams` that we use.

    Defaults are SGLang's, but `max_new_tokens`, which is None: up to the end of the context.
    `max_new_tokens=0` is a prefill-only request: it puts the prompt into the KV cache and
    generates nothing (`Req.is_prefill_only`).
    """

    max_new_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    min_new_tokens: int = 0
    stop: list[str] | None = None
    stop_token_ids: list[int] | None = None
    sampling_seed: int | None = None
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    no_stop_trim: bool = False
    json_schema: str | None = None
    regex: str | None = None
    ebnf: str | None = None
    structural_tag: str | None = None
    logit_bias: dict[str, float] | None = None

    def to_sglang(self) -> dict[str, Any]:
        """The keyword arguments of SGLang's class; what was left out is left out there too."""
        out: dict[str, Any] = msgspec.to_builtins(self)
        return out


class ToolDefinition(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tool that the assistant may call; `parameters` is a JSON schema of an object.

    With `strict`, the arguments of a call are held to the schema also where the model is free to call.
    """

    name: str
    description: str = ""
    parameters: dict[str, Any] = msgspec.field(default_factory=dict)
    strict: bool = False

    def as_openai(self) -> dict[str, Any]:
        """The form that chat templates expect: `{"type": "function", "function": {...}}`."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}


class ToolCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call that the assistant made; `arguments` is the text of a JSON object.

    `id` is empty in what an engine returns: identities are given by the adapter.
    """

    id: str = ""
    name: str
    arguments: str


class AnswerFormat(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How an answer is to be taken apart, and what it must look like.

    The engine does this with SGLang's own reasoning and function-call parsers. A request without a
    format gives the model's text as it is.

    Attributes:
        tools: tools that may be called in this answer.
        call_required: the answer is one call or more; enforced by grammar, arguments included.
        parallel_tool_calls: False allows one call at most.
        tool_parser: SGLang's name of the function-call parser; None is the model's own.
        compact_json: the answer of a `json_schema` has no white space and its fields in the schema's order.
        prompt_end: the last words of the prompt, special tokens included: they say whether the answer
            begins inside a thought, or whether there is to be none.
    """

    tools: list[ToolDefinition] = []
    call_required: bool = False
    parallel_tool_calls: bool = True
    tool_parser: str | None = None
    compact_json: bool = False
    prompt_end: str = ""


class GenerateRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One prompt for an engine.

    Attributes:
        input_ids: the prompt's tokens, canonical for the engine's model; never empty.
        sampling: how to sample.
        rid: request id, 32 hex digits (`new_rid`).
        lora: name of a loaded LoRA adapter (`GenerateReqInput.lora_path`); None is the base model.
        priority: SGLang's request priority; only engines started with priority scheduling take it.
        session_id: ties requests of one prefill session together (`GenerateReqInput.session_id`).
        extra_key: a further part of the radix cache's key: requests with different keys share nothing.
        cache_salt: namespace that keeps the prefixes of one tenant from another; a secret, never empty.
        routed_dp_rank: data-parallel rank that must serve the request.
        logprobs: return the log-probability of every generated token.
        top_logprobs: with `logprobs`, how many alternatives to return at each position.
        image_data: URLs, paths or base64 of images, for vision models.
        format: take thoughts and tool calls out of the answer, and hold it to a form.
    """

    input_ids: list[int]
    sampling: SamplingParams = SamplingParams()
    rid: str = msgspec.field(default_factory=new_rid)
    lora: str | None = None
    priority: int | None = None
    session_id: str | None = None
    extra_key: str | None = None
    cache_salt: str | None = None
    routed_dp_rank: int | None = None
    logprobs: bool = False
    top_logprobs: int = 0
    image_data: list[str] | None = None
    format: AnswerFormat | None = None

    def __repr__(self) -> str:
        """Without keys of the cache, which are secrets of a tenant, and without the prompt's content."""
        shown = f"rid={self.rid!r}, input_ids=<{len(self.input_ids)} tokens>, sampling={self.sampling!r}"
        if self.lora is not None:
            shown += f", lora={self.lora!r}"
        return f"GenerateRequest({shown})"


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """Log-probability (natural logarithm) of one generated token.

    `top` holds the most likely alternatives, best first, as (token text, log-probability).
    """

    token: str
    token_id: int
    logprob: float
    top: list[tuple[str, float]] = []


class Usage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Token counts of one request.

    Attributes:
        prompt_tokens: tokens of the prompt.
        cached_tokens: of these, read from the KV cache instead of computed (the engine's figure).
        completion_tokens: generated tokens.
        prewarmed_tokens: of the cached ones, put there by a prefill session of this request's agent.
        shared_in_turn_tokens: of the cached ones, computed by another request of the same pass.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    prewarmed_tokens: int = 0
    shared_in_turn_tokens: int = 0

    def _repr_html_(self) -> str:
        return figures_html("Tokens", msgspec.structs.asdict(self))


class GenerateResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a request ended.

    Attributes:
        matched_stop: the stop string, or the id of the stop token, that ended it.
        tool_calls: the calls that a request with a `format` made; complete ones only.
        broken_call: text in which a call was begun that cannot be read, or a required one is missing.
    """

    finish_reason: FinishReason
    usage: Usage
    matched_stop: str | int | None = None
    tool_calls: list[ToolCall] = []
    broken_call: str | None = None


class Delta(msgspec.Struct, frozen=True, array_like=True):
    """A piece of an answer.

    Attributes:
        text: new text; may be empty (half a character is held back until it is whole). With a
            `format`: without thoughts and without tool calls.
        token_ids: the new tokens.
        result: set in the last delta of a request and in no other.
        logprobs: one entry a token, where the request asked for them.
        thought: new text of the model's reasoning, where the request has a `format`.
    """

    text: str
    token_ids: list[int]
    result: GenerateResult | None = None
    logprobs: list[TokenLogprob] | None = None
    thought: str = ""


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine is, known once it has started.

    Attributes:
        kind: "embedded", "remote" or "scripted".
        model: the model folder or hub id that it serves.
        context_length: longest prompt + answer, tokens.
        max_total_tokens: size of the KV cache, tokens.
        device: "cuda" or "cpu" (scripted engines say "none").
        versions: of sglang, torch and ours.
        features: what the engine can do beyond plain generation, for example
            "intra_turn", "lora"; names are listed in docs/architecture.md.
    """

    kind: str
    model: str
    context_length: int
    max_total_tokens: int
    device: str
    versions: dict[str, str]
    features: list[str]

    def _repr_html_(self) -> str:
        figures = msgspec.structs.asdict(self)
        figures["versions"] = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        figures["features"] = ", ".join(self.features)
        return figures_html("Engine", figures)


class EngineState(msgspec.Struct, frozen=True, kw_only=True):
    """A look at a running engine; all figures in tokens or requests.

    `kv_used` is KV that running requests hold (not evictable), `kv_cached` is what the radix cache
    keeps beyond them, `kv_free` the rest: the three add up to `kv_total`.
    """

    kv_total: int
    kv_used: int
    kv_cached: int
    kv_free: int
    running: int
    waiting: int

    def _repr_html_(self) -> str:
        return figures_html("Engine, now", msgspec.structs.asdict(self))


class Progress(msgspec.Struct, frozen=True, array_like=True):
    """One step of something slow.

    `stage` is a short text for people; `fraction` goes from 0 to 1, None where it is not known.
    """

    stage: str
    fraction: float | None = None


ProgressCallback = Callable[[Progress], None]

__all__ = [
    "AnswerFormat",
    "Delta",
    "EngineInfo",
    "EngineState",
    "FinishReason",
    "GenerateRequest",
    "GenerateResult",
    "Progress",
    "ProgressCallback",
    "SamplingParams",
    "TokenLogprob",
    "ToolCall",
    "ToolDefinition",
    "Usage",
    "new_rid",
]
