"""Cancels a piece of work at each of its suspension points in turn.

A coroutine is driven step by step; at its n-th suspension the task that runs it is cancelled, exactly as
`Task.cancel` from outside would do while it waits there. `cancel_everywhere` runs the work anew for
n = 1, 2, ... until it gets through, and lets the caller look at what is left after each.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, Literal

Who = Literal["caller", "any task", "caller, twice"]
"""Whose suspensions count: those of the work itself; of all tasks that it starts as well; of the work, and
it is cancelled once more at the suspension after, in the middle of its cleaning up."""


class Interrupter:
    """Counts suspensions and cancels at the given ones.

    Attributes:
        count: suspensions so far.
        struck: how often it has cancelled.
    """

    def __init__(self, at: set[int]) -> None:
        self._at = at
        self.count = 0
        self.struck = 0

    def drive(self, coro: Coroutine[Any, Any, Any]) -> _Driven:
        """The coroutine, its suspensions counted."""
        return _Driven(self, coro)

    def suspended(self) -> None:
        """One suspension of the current task."""
        self.count += 1
        if self.count in self._at:
            self.struck += 1
            task = asyncio.current_task()
            assert task is not None
            task.cancel()


class _Driven:
    def __init__(self, interrupter: Interrupter, coro: Coroutine[Any, Any, Any]) -> None:
        self._interrupter = interrupter
        self._coro = coro

    def __del__(self) -> None:
        self._coro.close()  # a task that is cancelled before its first step does the same

    def __await__(self) -> Generator[Any, Any, Any]:
        error: BaseException | None = None
        while True:
            try:
                waits_for = self._coro.send(None) if error is None else self._coro.throw(error)
            except StopIteration as end:
                return end.value
            error = None
            self._interrupter.suspended()
            try:
                yield waits_for
            except BaseException as e:
                error = e


async def _await(driven: _Driven) -> Any:
    return await driven


def descriptors() -> int:
    """Open file descriptors of this process."""
    return len(os.listdir("/proc/self/fd"))


async def quiet(others: set[asyncio.Task[Any]]) -> None:
    """Wait until no task but `others` and the current one is left."""
    async with asyncio.timeout(10):
        while True:
            gc.collect()  # an abandoned generator is closed when it is collected
            left = asyncio.all_tasks() - others - {asyncio.current_task()}
            if not left:
                await asyncio.sleep(0)
                if not asyncio.all_tasks() - others - {asyncio.current_task()}:
                    return
            # Not 0: to collect in a busy loop would keep the interpreter from a server in another thread.
            await asyncio.sleep(0.001)


async def cancel_everywhere(
    make: Callable[[], tuple[Coroutine[Any, Any, Any], Callable[[bool], Awaitable[None]]]],
    who: Who = "caller",
    *,
    allowed: tuple[type[BaseException], ...] = (),
    at_most: int = 400,
) -> int:
    """Run the work once for each of its suspension points, and once to its end; the number of points.

    Args:
        make: the work, and a check for afterwards, which is told whether the work got to its end.
        who: whose suspensions count.
        allowed: errors, beside CancelledError, that the work may end with once something was cancelled.
        at_most: more points than this are a hang.
    """
    loop = asyncio.get_running_loop()
    # `quiet` collects again and again: what the process holds already (torch, in a run of all tests) need not
    # be looked through each time.
    gc.collect()
    gc.freeze()
    try:
        return await _each_point(make, who, allowed, at_most, loop)
    finally:
        gc.unfreeze()


async def _each_point(
    make: Callable[[], tuple[Coroutine[Any, Any, Any], Callable[[bool], Awaitable[None]]]],
    who: Who,
    allowed: tuple[type[BaseException], ...],
    at_most: int,
    loop: asyncio.AbstractEventLoop,
) -> int:
    for n in range(1, at_most):
        work, check = make()
        interrupter = Interrupter({n, n + 1} if who == "caller, twice" else {n})
        others = asyncio.all_tasks()
        if who == "any task":
            loop.set_task_factory(
                lambda loop, coro, i=interrupter, **kw: asyncio.Task(  # type: ignore[misc]
                    _await(i.drive(coro)), loop=loop, **kw
                )
            )
        whole = True
        try:
            task = asyncio.Task(_await(interrupter.drive(work)), loop=loop)
            async with asyncio.timeout(20):
                await asyncio.wait([task])
        finally:
            loop.set_task_factory(None)
        try:
            task.result()
        except asyncio.CancelledError:
            whole = False
            assert interrupter.struck, "cancelled by nobody"
        except allowed:
            whole = False
            assert interrupter.struck, "failed though nothing was cancelled"
        del task, work
        with contextlib.suppress(asyncio.CancelledError):
            await quiet(others)
        await check(whole)
        if not interrupter.struck:
            assert whole
            return n - 1
    raise AssertionError(f"more than {at_most} suspension points")
