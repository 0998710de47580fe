"""The way of one request's deltas from the I/O thread to the loop of the task that reads them."""

from __future__ import annotations

import asyncio
from collections import deque

from ..types import Delta
from .io_thread import telling


class Stream:
    """A mailbox: filled in any thread by `Delivery`, read by one task of one loop."""

    __slots__ = ("_items", "_left", "_waiter", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._items: deque[Delta | Exception] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._left = False

    def leave(self) -> None:
        """The reader has gone: from now on nothing is put into it, and its loop is left alone."""
        with telling:
            self._left = True

    def put(self, item: Delta | Exception) -> None:
        """Add an item; only in the stream's own loop."""
        self._items.append(item)
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def get(self) -> Delta:
        """The next delta; raises the error where one was put in its place."""
        while not self._items:
            self._waiter = self.loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        item = self._items.popleft()
        if isinstance(item, Exception):
            raise item
        return item


def deliver(items: list[tuple[Stream, Delta | Exception]]) -> None:
    """Put items into their streams: one wake-up a loop, not one an item. A closed loop is passed over."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Stream, Delta | Exception]]] = {}
    with telling:
        for stream, item in items:
            if not stream._left:
                by_loop.setdefault(stream.loop, []).append((stream, item))
        for loop, batch in by_loop.items():
            try:
                loop.call_soon_threadsafe(_put_all, batch)
            except RuntimeError:  # the loop was closed under its request: nobody is left to tell
                continue


def _put_all(batch: list[tuple[Stream, Delta | Exception]]) -> None:
    for stream, item in batch:
        stream.put(item)


__all__ = ["Stream", "deliver"]
