"""What a server's `/generate` streams: server-sent events, and outputs that may be cumulative.

A server is not trusted to keep to SGLang's form: every event is checked, and none may be endless.
"""

from __future__ import annotations

from typing import Any

import msgspec

_decode = msgspec.json.Decoder().decode  # its errors are ValueErrors; several times as fast as json
_DONE = b"[DONE]"
MAX_EVENT_BYTES = 64 << 20


class EventReader:
    """Cuts a body into the JSON objects of its `data:` lines, however the lines arrive.

    Raises ValueError for a line that is no event, or longer than 64 MiB.
    """

    def __init__(self) -> None:
        self._rest = bytearray()
        self.done = False

    def feed(self, chunk: bytes) -> list[dict[str, Any]]:
        """The objects that `chunk` completes; `done` is set once the stream has said that it ends."""
        out: list[dict[str, Any]] = []
        rest = self._rest
        seen = len(rest)  # no line ends in these
        rest += chunk
        start = 0
        while (end := rest.find(b"\n", max(start, seen))) >= 0:
            line = bytes(rest[start:end]).strip()
            start = end + 1
            if not line or line.startswith(b":"):
                continue
            if not line.startswith(b"data:"):
                raise ValueError(f"the server sent no event: {line[:200]!r}")
            data = line[5:].strip()
            if data == _DONE:
                self.done = True
            else:
                out.append(_object(data))
        del rest[:start]
        if len(rest) > MAX_EVENT_BYTES:
            raise ValueError(f"the server sent a line of more than {MAX_EVENT_BYTES >> 20} MiB")
        return out


def _object(data: bytes) -> dict[str, Any]:
    try:
        value = _decode(data)
    except RecursionError:
        raise ValueError("the server sent JSON that is nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError(f"the server sent {type(value).__name__} where an object should be")
    return value


class _Reason(msgspec.Struct):
    type: str
    message: str | None = None
    status_code: int | None = None
    matched: str | int | list[int] | None = None


_Logprob = tuple[float, int, str | None]


class _Meta(msgspec.Struct):
    finish_reason: _Reason | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens_details: dict[str, Any] | None = None
    output_token_logprobs: list[_Logprob] | None = None
    output_top_logprobs: list[list[_Logprob] | None] | None = None


class _Output(msgspec.Struct):
    meta_info: _Meta
    text: str | None = None
    output_ids: list[int] | None = None


def check_output(out: dict[str, Any]) -> None:
    """ValueError where an output has not the types of SGLang's (`TokenizerManager.generate_request`)."""
    try:
        output = msgspec.convert(out, _Output)
    except (msgspec.ValidationError, RecursionError) as e:
        raise ValueError(f"an output is not as SGLang's should be: {e}") from None
    shared = (output.meta_info.cached_tokens_details or {}).get("shared_in_turn", 0)
    counts = (output.meta_info.prompt_tokens, output.meta_info.cached_tokens, shared)
    if not all(isinstance(n, int) and n >= 0 for n in (*counts, output.meta_info.completion_tokens)):
        raise ValueError("an output counts its tokens in what are no numbers of tokens")


class Increments:
    """Makes each output hold what is new in it, as servers with `--incremental-streaming-output` do."""

    def __init__(self) -> None:
        self._text = 0
        self._ids = 0
        self._logprobs = 0

    def next(self, out: dict[str, Any]) -> dict[str, Any]:
        """The output, with what was in the ones before it taken away; `check_output` comes first."""
        text, ids = out.get("text") or "", out.get("output_ids") or []
        meta = dict(out["meta_info"])
        logprobs = meta.get("output_token_logprobs") or []
        for key in ("output_token_logprobs", "output_top_logprobs"):
            if meta.get(key):
                meta[key] = meta[key][self._logprobs :]
        new = {**out, "text": text[self._text :], "output_ids": ids[self._ids :], "meta_info": meta}
        self._text, self._ids, self._logprobs = len(text), len(ids), len(logprobs)
        return new


__all__ = ["MAX_EVENT_BYTES", "EventReader", "Increments", "check_output"]
