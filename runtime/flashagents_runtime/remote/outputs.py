"""What a server's `/generate` streams: server-sent events, and outputs that may be cumulative."""

from __future__ import annotations

from typing import Any

import msgspec

_decode = msgspec.json.Decoder().decode  # its errors are ValueErrors; several times as fast as json
_DONE = b"[DONE]"


class EventReader:
    """Cuts a body into the JSON objects of its `data:` lines, however the lines arrive.

    Raises ValueError for a line that is no event.
    """

    def __init__(self) -> None:
        self._rest = b""
        self.done = False

    def feed(self, chunk: bytes) -> list[dict[str, Any]]:
        """The objects that `chunk` completes; `done` is set once the stream has said that it ends."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        out: list[dict[str, Any]] = []
        for line in lines:
            line = line.strip()
            if not line or line.startswith(b":"):
                continue
            if not line.startswith(b"data:"):
                raise ValueError(f"the server sent no event: {line[:200]!r}")
            data = line[5:].strip()
            if data == _DONE:
                self.done = True
            else:
                out.append(_decode(data))
        return out


class Increments:
    """Makes each output hold what is new in it, as servers with `--incremental-streaming-output` do."""

    def __init__(self) -> None:
        self._text = 0
        self._ids = 0
        self._logprobs = 0

    def next(self, out: dict[str, Any]) -> dict[str, Any]:
        """The output, with what was in the ones before it taken away."""
        text, ids = out.get("text") or "", out.get("output_ids") or []
        meta = dict(out["meta_info"])
        logprobs = meta.get("output_token_logprobs") or []
        for key in ("output_token_logprobs", "output_top_logprobs"):
            if meta.get(key):
                meta[key] = meta[key][self._logprobs :]
        new = {**out, "text": text[self._text :], "output_ids": ids[self._ids :], "meta_info": meta}
        self._text, self._ids, self._logprobs = len(text), len(ids), len(logprobs)
        return new


__all__ = ["EventReader", "Increments"]
