"""An asyncio loop whose time passes only while all of its tasks sleep: hours of timers in no time."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Selector(selectors.DefaultSelector):
    """Where a loop would wait for a timer, the time becomes that timer's."""

    now = 1000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is None:
            raise RuntimeError("every task waits for another one: nothing would ever happen")
        if not ready and timeout is not None and timeout > 0:
            self.now += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """`time()` is in seconds from any origin. Only for tasks that wait for each other and for timers."""

    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        """See `asyncio.AbstractEventLoop.time`."""
        return self._virtual.now


def run(main: Coroutine[Any, Any, T]) -> T:
    """As `asyncio.run`, in virtual time.

    Raises:
        RuntimeError: all tasks wait, and no timer runs.
    """
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


__all__ = ["VirtualLoop", "run"]
