"""OpenAI-named arguments of a call, and what they are for the engine."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator

from flashagents_runtime import SamplingParams

from ._elsewhere import instead_of
from ._structured import check_forms

# What the engine keeps in 32 and in 64 bits: a larger number would end its scheduler, not the request.
_MOST_32, _MOST_64 = 2**31 - 1, 2**63 - 1
_DIGITS = re.compile(r"[0-9]{1,10}")


def _token_key(value: Any) -> Any:
    """SGLang's keys are the digits of a token id; OpenAI's users write the id itself."""
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(text, str) or not _DIGITS.fullmatch(text) or int(text) > _MOST_32:
        raise ValueError("its keys are ids of tokens, such as 42 or '42'")
    return text


_Int64 = Annotated[int, Field(ge=-_MOST_64 - 1, le=_MOST_64)]
_TokenId = Annotated[int, Field(ge=0, le=_MOST_32)]
_TokenKey = Annotated[str, BeforeValidator(_token_key)]
_Finite = Annotated[float, Field(allow_inf_nan=False)]


class CreateArgs(BaseModel):
    """Arguments of a call, named as OpenAI names them, and SGLang's own beside them.

    All may be given to the client, and to a single call as `extra_create_args`, which win; there,
    None puts an argument back to the model's default. What is left out is as the model's
    `generation_config.json` says, else SGLang's default.

    Attributes:
        temperature: 0 is greedy.
        top_p, top_k, min_p: which tokens are considered.
        max_tokens: longest answer, tokens; None is up to the end of the context.
        max_completion_tokens: the newer name of `max_tokens`.
        min_tokens: shortest answer, tokens.
        stop: text, or texts, at which the answer ends; not part of the answer.
        stop_token_ids: tokens at which the answer ends.
        seed: makes sampling repeatable, on engines with deterministic inference.
        presence_penalty, frequency_penalty, repetition_penalty: against repeating.
        logit_bias: added to the logit of a token id before sampling; ids as numbers or as their digits.
        logprobs: return the log-probability of each token.
        top_logprobs: with `logprobs`, how many alternatives a token, 0 to 20.
        n: 1; several answers to one call have no place in AutoGen's result.
        ignore_eos: go on to `max_tokens` whatever the model says.
        regex, ebnf: a grammar that the answer follows.
        chat_template_kwargs: variables of the chat template, such as `{"enable_thinking": False}`.
        priority: SGLang's request priority.
        tool_choice, parallel_tool_calls: as in OpenAI's API.
        response_format: as in OpenAI's API; its type alone, or a pydantic class, is taken as well.
        format: Ollama's name for it: "json", or a JSON schema.
        user, stream_options, store, metadata: accepted because callers pass them; without effect.
    """

    model_config = ConfigDict(extra="forbid")

    temperature: _Finite | None = Field(None, ge=0.0)
    top_p: float | None = Field(None, gt=0.0, le=1.0)
    top_k: int | None = Field(None, ge=-1, le=_MOST_32)
    min_p: float | None = Field(None, ge=0.0, le=1.0)
    max_tokens: int | None = Field(None, ge=1, le=_MOST_32)
    max_completion_tokens: int | None = Field(None, ge=1, le=_MOST_32)
    min_tokens: int | None = Field(None, ge=0, le=_MOST_32)
    stop: str | list[str] | None = None
    stop_token_ids: list[_TokenId] | None = None
    seed: _Int64 | None = None
    presence_penalty: float | None = Field(None, ge=-2.0, le=2.0)
    frequency_penalty: float | None = Field(None, ge=-2.0, le=2.0)
    repetition_penalty: float | None = Field(None, gt=0.0, le=2.0)
    logit_bias: dict[_TokenKey, _Finite] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    n: Literal[1] | None = None
    ignore_eos: bool | None = None
    regex: str | None = None
    ebnf: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    priority: _Int64 | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    response_format: dict[str, Any] | None = None
    format: Literal["json"] | dict[str, Any] | None = None
    user: str | None = None
    stream_options: dict[str, Any] | None = None
    store: bool | None = None
    metadata: dict[str, Any] | None = None

    @field_validator("response_format", mode="before")
    @classmethod
    def _as_openai_has_it(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"type": value}
        if isinstance(value, type) and issubclass(value, BaseModel):
            schema = {"name": value.__name__, "schema": value.model_json_schema()}
            return {"type": "json_schema", "json_schema": schema}
        return value

    @property
    def answer_format(self) -> dict[str, Any] | None:
        """`response_format`, under whichever of the two names it was given.

        Raises ValueError where both names were used.
        """
        if self.format is None:
            return self.response_format
        if self.response_format is not None:
            raise ValueError("response_format and format are two names for one thing: give one of them")
        if self.format == "json":
            return {"type": "json_object"}
        return {"type": "json_schema", "json_schema": {"schema": self.format}}


# Our name -> SGLang's, where they differ.
_RENAMED = {
    "max_tokens": "max_new_tokens",
    "max_completion_tokens": "max_new_tokens",
    "min_tokens": "min_new_tokens",
    "seed": "sampling_seed",
}
_SAMPLING = frozenset(SamplingParams.__struct_fields__)


def _unknown(name: str) -> str:
    if (advice := instead_of(name)) is not None:
        return f"unknown argument {name!r}: {advice}"
    near = difflib.get_close_matches(name, CreateArgs.model_fields, 1)
    rest = f" (did you mean {near[0]!r}?)" if near else f"; known are: {', '.join(CreateArgs.model_fields)}"
    return f"unknown create argument {name!r}{rest}"


def parse_create_args(args: Mapping[str, Any], base: CreateArgs | None = None) -> CreateArgs:
    """Check arguments and lay them over `base`.

    Raises:
        ValueError: an unknown argument, or a value out of range; the message names it.
    """
    unknown = sorted(set(args) - set(CreateArgs.model_fields))
    if unknown:
        raise ValueError("; ".join(map(_unknown, unknown)))
    if args.get("n") not in (None, 1):
        raise ValueError(f"n={args['n']}: a call gives one answer; call several times for several answers")
    given = {**(base.model_dump(exclude_none=True) if base is not None else {}), **args}
    try:
        out = CreateArgs.model_validate(given)
    except ValidationError as e:
        problems = "; ".join(
            f"{'.'.join(map(str, error['loc']))}={error['input']!r}: {error['msg']}" for error in e.errors()
        )
        raise ValueError(f"invalid create argument: {problems}") from None
    if out.top_logprobs and not out.logprobs:
        raise ValueError("top_logprobs needs logprobs=True")
    check_forms(out.tool_choice, out.answer_format)
    return out


def to_sampling(args: CreateArgs, defaults: SamplingParams, schema: str | None = None) -> SamplingParams:
    """How to sample: the arguments over the model's defaults; `schema` is what the answer follows.

    Raises:
        ValueError: several grammars at once.
    """
    changes: dict[str, Any] = {}
    for name, value in args.model_dump(exclude_none=True).items():
        field = _RENAMED.get(name, name)
        if field in _SAMPLING:
            changes[field] = value
    if isinstance(changes.get("stop"), str):
        changes["stop"] = [changes["stop"]]
    if schema is not None:
        changes["json_schema"] = schema
    grammars = [name for name in ("json_schema", "regex", "ebnf") if changes.get(name) is not None]
    if len(grammars) > 1:
        raise ValueError(f"an answer follows one grammar, not {' and '.join(grammars)}")
    return msgspec.structs.replace(defaults, **changes)


__all__ = ["CreateArgs", "parse_create_args", "to_sampling"]
