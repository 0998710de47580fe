"""Cancellation: one callback a request, and the engine stops at once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable
from typing import TypeVar

from autogen_core import CancellationToken

T = TypeVar("T")


class CancelGuard:
    """Cuts a wait short when AutoGen's token is cancelled, from whichever thread.

    The task that waits is cancelled and the cancellation is taken back (`Task.uncancel`) once it
    has arrived here: the caller sees the CancelledError that a linked future would have given it,
    and its own time-outs and task groups count no cancellation of theirs.

    One callback for a request, not one for a chunk (`CancellationToken.link_future` never unlinks),
    and it is taken off again at the end.
    """

    def __init__(self, token: CancellationToken | None) -> None:
        self._token = token
        self._loop = asyncio.get_running_loop()
        self._waiting: asyncio.Task[object] | None = None
        self._sent_to: asyncio.Task[object] | None = None
        self._cancelled = False
        if token is not None:
            token.add_callback(self._on_cancel)
            self.check()

    def _on_cancel(self) -> None:
        # Runs in the thread that cancels, with the token's lock held.
        self._cancelled = True
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._interrupt)

    def _interrupt(self) -> None:
        if self._waiting is not None:
            self._sent_to = self._waiting
            self._waiting.cancel()

    def check(self) -> None:
        """Raise CancelledError when the token was cancelled."""
        if self._cancelled:
            if self._sent_to is not None:
                self._sent_to.uncancel()
                self._sent_to = None
            raise asyncio.CancelledError("cancelled by the CancellationToken")

    async def wait(self, awaitable: Awaitable[T]) -> T:
        """Await something; raises CancelledError as soon as the token is cancelled."""
        if self._token is None:
            return await awaitable
        self._waiting = asyncio.current_task()
        try:
            result = await awaitable
        except asyncio.CancelledError:
            self.check()
            raise
        finally:
            self._waiting = None
        self.check()
        return result

    def close(self) -> None:
        """Take the callback off the token."""
        if self._token is None:
            return
        # AutoGen offers no way to do so; its attributes are checked by a test. Left on, a callback
        # of a finished request does nothing.
        with contextlib.suppress(AttributeError, ValueError), self._token._lock:
            self._token._callbacks.remove(self._on_cancel)


__all__ = ["CancelGuard"]
