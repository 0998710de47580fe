"""Where others of the same user may look at an embedded engine: a Unix socket in its private folder.

Nothing is read from whoever connects, no request can be made, and one look is all that a connection gets. It
holds figures, the model's name and the application's process id; no prompts, no answers, no keys.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from ..looks import SOCKET_NAME, Answer, Answered, Look, Unanswered, peer_uid

_log = logging.getLogger(__name__)

_FRESH_SECONDS = 0.2  # one question to the scheduler serves all who look within it
_PATIENCE_SECONDS = 5.0
_MOST_WATCHERS = 16


class Window:
    """Answers looks. Runs in the I/O thread.

    Args:
        look: asks the engine; what it raises is told to who looks, and to nobody else.
    """

    def __init__(self, look: Callable[[], Awaitable[Look]]) -> None:
        self._look = look
        self._server: asyncio.Server | None = None
        self._watchers = 0
        self._asking: asyncio.Task[bytes] | None = None
        self._asked = 0.0
        self._closed = False

    async def open(self, folder: Path) -> None:
        """Listen in `folder`, which is the user's alone; where that fails, nobody can look."""
        path = folder / SOCKET_NAME
        try:
            self._server = await asyncio.start_unix_server(self._serve, str(path))
            path.chmod(0o600)
        except OSError as error:
            _log.warning("`flashagents top` will not see this engine: %r", error)
        if self._closed:  # the host has ended meanwhile
            self.close()

    def close(self) -> None:
        """Listen no more; the socket goes with its folder."""
        self._closed = True
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if self._watchers >= _MOST_WATCHERS or peer_uid(writer.get_extra_info("socket")) not in (
                os.getuid(),
                0,
            ):
                return
            self._watchers += 1
            try:
                async with asyncio.timeout(_PATIENCE_SECONDS):
                    writer.write(await self._answer())
                    await writer.drain()
            finally:
                self._watchers -= 1
        except (OSError, TimeoutError):
            return  # whoever looked has left
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _answer(self) -> bytes:
        now = asyncio.get_running_loop().time()
        if self._asking is None or (self._asking.done() and now - self._asked > _FRESH_SECONDS):
            self._asked = now
            self._asking = asyncio.create_task(self._ask())
        return await asyncio.shield(self._asking)

    async def _ask(self) -> bytes:
        answer: Answer
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS - 1):
                answer = Answered(await self._look())
        except TimeoutError:
            answer = Unanswered("the engine is busy and did not say how it is: try again")
        except Exception as error:
            answer = Unanswered(f"the engine did not say how it is: {error}")
        return msgspec.json.encode(answer) + b"\n"


__all__ = ["Window"]
