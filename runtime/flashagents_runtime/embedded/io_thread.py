"""The one thread that talks to host processes, whatever event loops the application uses.

Engines must outlive any single event loop (two `asyncio.run` in one script, a notebook, threads), so
their sockets belong to a loop of our own in a daemon thread.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

logger = logging.getLogger(__name__)

telling = threading.RLock()
"""Held while the I/O thread wakes another loop, and where a task of that loop says that it no longer waits.

A task that has left is never told anything: its loop may be about to be closed, and only asyncio's own loops
promise what `call_soon_threadsafe` does then (RuntimeError).
"""

_lock = threading.RLock()  # re-entrant: a finalizer may run inside
_loop: asyncio.AbstractEventLoop | None = None
_pid: int | None = None


def io_loop() -> asyncio.AbstractEventLoop:
    """The I/O thread's loop; starts the thread at first use, and again in a forked child."""
    global _loop, _pid
    with _lock:
        if _loop is None or _pid != os.getpid():
            loop = asyncio.SelectorEventLoop()
            threading.Thread(target=_run, args=(loop,), name="flashagents-io", daemon=True).start()
            _loop, _pid = loop, os.getpid()
        return _loop


def _run(loop: asyncio.AbstractEventLoop) -> None:
    """The thread, for as long as the process lives: all engines would stand still without it."""
    while True:
        try:
            loop.run_forever()
        except BaseException:  # asyncio lets SystemExit through, of a callback that calls sys.exit()
            logger.exception("something ended the loop of the engines' I/O thread; it goes on")
        else:
            return


def submit(coro: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
    """Run a coroutine in the I/O thread."""
    return asyncio.run_coroutine_threadsafe(coro, io_loop())


async def wait(future: concurrent.futures.Future[T]) -> T:
    """Wait for a future of the I/O thread, from any loop.

    Unlike `asyncio.wrap_future`, cancelling the waiter leaves the future alone: it is not his alone.
    """
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[None] = loop.create_future()
    waits = True

    def wake() -> None:
        if not waiter.done():
            waiter.set_result(None)

    def on_done(_: object) -> None:
        with telling, contextlib.suppress(RuntimeError):  # the waiter's loop was closed under it
            if waits:
                loop.call_soon_threadsafe(wake)

    future.add_done_callback(on_done)
    try:
        await waiter
    finally:
        with telling:
            waits = False
    return future.result()


__all__ = ["io_loop", "submit", "telling", "wait"]
