"""Frames between an application and the host process of its engine.

A frame is a 4-byte little-endian length and a MessagePack message (msgspec). The first frame to the
host is a `Setup`; everything after it may come in any order. Both ends are of one installation, so
there is no version negotiation.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from .types import Delta, EngineInfo, GenerateRequest, Progress

HEADER_BYTES = 4
MAX_FRAME_BYTES = 1 << 30


class Setup(msgspec.Struct, tag="setup"):
    """The first frame to the host: what to serve. Sent here and not in argv, which others can read.

    `run_dir` is the host's private folder for sockets and temporary files; `token` marks the names
    of shared memory that SGLang makes for it.
    """

    model: str
    engine_args: dict[str, Any]
    parent_pid: int
    run_dir: str
    token: str

    def __repr__(self) -> str:
        """Without the engine's arguments, which may hold keys."""
        return f"Setup(model={self.model!r}, engine_args=<{', '.join(sorted(self.engine_args))}>)"


class Generate(msgspec.Struct, tag="generate"):
    """Serve a request; answered by `Deltas`, the last with a result, or one `Failed`."""

    request: GenerateRequest


class Abort(msgspec.Struct, tag="abort"):
    """Abort a request; unknown ids are ignored."""

    rid: str


class CloseSession(msgspec.Struct, tag="close_session"):
    """A prefill session is over; unknown ids are ignored."""

    session_id: str


class Call(msgspec.Struct, tag="call"):
    """Call a method of the host; answered by one `Answer` with the same id."""

    id: int
    method: Literal["state", "flush_cache", "internal_state", "load_lora", "unload_lora"]
    arguments: dict[str, Any] = {}


ToHost = Setup | Generate | Abort | CloseSession | Call


class Progressed(msgspec.Struct, tag="progress"):
    """The start has got this far."""

    progress: Progress


class Ready(msgspec.Struct, tag="ready"):
    """The engine is up."""

    info: EngineInfo


class Refused(msgspec.Struct, tag="refused"):
    """The engine cannot start; the host ends after this."""

    message: str


class Deltas(msgspec.Struct, tag="deltas"):
    """What all running requests have produced since the last frame, in order."""

    items: list[tuple[str, Delta]]


class Failed(msgspec.Struct, tag="failed"):
    """One request failed; the engine goes on. `rejected` says that the request was at fault."""

    rid: str
    message: str
    rejected: bool


class Answer(msgspec.Struct, tag="answer"):
    """The answer to a `Call`."""

    id: int
    value: Any = None
    error: str | None = None


FromHost = Progressed | Ready | Refused | Deltas | Failed | Answer

# What SGLang says of itself holds objects of many types; for diagnosis their text is enough, and a
# message that cannot be encoded would leave its receiver waiting.
_encoder = msgspec.msgpack.Encoder(enc_hook=str)


def encode(message: ToHost | FromHost) -> bytes:
    """One frame, header included.

    Raises ValueError for what no frame can hold: half of a surrogate pair, an integer of more than 64 bits,
    more than 1 GiB.
    """
    try:
        body = _encoder.encode(message)
    except (UnicodeEncodeError, OverflowError, RecursionError) as e:
        raise ValueError(f"this cannot be sent to the engine's process: {e}") from None
    if len(body) > MAX_FRAME_BYTES:
        raise ValueError(f"this cannot be sent to the engine's process: it has {len(body)} bytes")
    return len(body).to_bytes(HEADER_BYTES, "little") + body


class FrameReader:
    """Cuts a stream of bytes into messages; `feed` returns those that are complete.

    Raises ValueError for a frame longer than 1 GiB and msgspec.DecodeError for one that is no message:
    the peer is not what it should be, and the connection must be closed.
    """

    def __init__(self, message_type: Any) -> None:
        self._decode = msgspec.msgpack.Decoder(message_type).decode
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Any]:
        """Add `data`; return the messages that it completes, oldest first."""
        buffer = self._buffer
        buffer += data
        out: list[Any] = []
        start, end = 0, len(buffer)
        with memoryview(buffer) as view:
            while end - start >= HEADER_BYTES:
                body = start + HEADER_BYTES
                size = int.from_bytes(view[start:body], "little")
                if size > MAX_FRAME_BYTES:
                    raise ValueError(f"a frame of {size} bytes is too long: the peer is out of step")
                if end - body < size:
                    break
                out.append(self._decode(view[body : body + size]))
                start = body + size
        del buffer[:start]
        return out


__all__ = [
    "Abort",
    "Answer",
    "Call",
    "CloseSession",
    "Deltas",
    "Failed",
    "FrameReader",
    "FromHost",
    "Generate",
    "Progressed",
    "Ready",
    "Refused",
    "Setup",
    "ToHost",
    "encode",
]
