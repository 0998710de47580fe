"""What a host process prints: kept for error messages, and read for the progress of a start."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable

from ..types import Progress

_MAX_LINE = 4000  # characters; a longer line is cut: it is for people to read

# What SGLang logs while it starts. Only for display: a line that is no longer printed costs nothing.
_STAGES = (
    ("Load weight begin", Progress("Loading weights", 0.5)),
    ("Load weight end", Progress("Allocating the KV cache", 0.7)),
    ("Capture cuda graph begin", Progress("Capturing CUDA graphs", 0.8)),
    ("max_total_num_tokens=", Progress("Warming up", 0.9)),
)


def stage_of(line: str) -> Progress | None:
    """The stage of a start that a log line announces, if any."""
    return next((stage for mark, stage in _STAGES if mark in line), None)


# What SGLang says at every start on a machine that lacks something it does not need here.
_NOISE = ("Ignore import error when loading", "UserWarning: Only ", "UserWarning: Triton is not supported")
# Of our plug-in's hooks, a line each.
_HOOK = re.compile(r"Applied \d+ hook\(s\) to ")
# All arguments, kilobytes in one line; what was given is in the error itself.
_DUMP = "server_args=ServerArgs("
_EXCEPTION = re.compile(r"(?:\w+\.)*\w*(?:Error|Exception): .+")


def is_noise(line: str) -> bool:
    """Whether a log line tells nothing to who reads why an engine ended."""
    known = (
        _DUMP in line or any(mark in line for mark in _NOISE) or line.lstrip().startswith("warnings.warn(")
    )
    return known or _HOOK.search(line) is not None


def last_exception(lines: Iterable[str]) -> str | None:
    """The last line that ends a traceback, as in "ValueError: too small"."""
    found = [line.strip() for line in lines if _EXCEPTION.fullmatch(line.strip())]
    return found[-1] if found else None


class LogPipe(asyncio.Protocol):
    """Cuts the output of a process into lines."""

    def __init__(self, on_line: Callable[[str], None]) -> None:
        self._on_line = on_line
        self._rest = b""
        self._transport: asyncio.BaseTransport | None = None
        self._closed = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio.Protocol."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """asyncio.Protocol."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._rest = self._rest[-_MAX_LINE:]
        for line in lines:
            text = line.decode(errors="replace").rstrip()[:_MAX_LINE]
            if text:
                self._on_line(text)

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio.Protocol: the last writer has closed its end."""
        if self._rest:
            self._on_line(self._rest.decode(errors="replace"))
            self._rest = b""
        self._closed.set()

    async def wait_closed(self, seconds: float) -> None:
        """Wait until everything was read, or `seconds` have passed; then close our end."""
        try:
            async with asyncio.timeout(seconds):
                await self._closed.wait()
        except TimeoutError:
            pass
        if self._transport is not None:
            self._transport.close()


__all__ = ["LogPipe", "is_noise", "last_exception", "stage_of"]
