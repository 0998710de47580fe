"""One run of a team: who works for it now, and how all of it is stopped at once."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass
from typing import TypeVar

from ._token import RunToken

logger = logging.getLogger("flashagents_autogen.teams")

T = TypeVar("T")

GRACE_SECONDS = 5.0
_END = object()


@dataclass
class AgentTurn:
    """One turn of an agent; times are `time.perf_counter` seconds.

    `ended` is None while the agent works, and `cut` is True where it was stopped before its answer.
    """

    agent: str
    began: float
    ended: float | None = None
    cut: bool = False


class TeamRun:
    """What belongs to one call of `run_stream`; all of it in one event loop.

    Agents and manager announce the waits that may be cut off (`may_be_cut`). Everything else that they
    do, such as passing on what was said, is quick and is always done to the end, so that a stopped team
    is in a state from which it can go on.
    """

    def __init__(self) -> None:
        self.token = RunToken()
        self.stopped = False
        self.cut_off = False
        self.turns: list[AgentTurn] = []
        self._loop = asyncio.get_running_loop()
        self._working: set[asyncio.Task[object]] = set()
        self._out: asyncio.Queue[object] = asyncio.Queue()

    # ---- stopping

    def stop_soon(self) -> None:
        """Stop, from whichever thread; what a CancellationToken calls."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nothing runs any more
            self._loop.call_soon_threadsafe(self.stop)

    def stop(self) -> None:
        """End the run now."""
        if not self.stopped:
            self.stopped = True
            self.cut()
            self.token.cancel()
            self._out.put_nowait(_END)

    def cut(self) -> None:
        """Cut off whoever works, without cancelling the run: it has ended by itself."""
        self.cut_off = True
        for task in self._working:
            task.cancel()

    @contextlib.contextmanager
    def may_be_cut(self) -> Iterator[CutRegion]:
        """Around a wait that is given up when the run stops: it is left quietly, with `region.cut`."""
        task = asyncio.current_task()
        assert task is not None
        region = CutRegion(self, task, outer=task in self._working)
        if self.cut_off:
            region.cut = True
        self._working.add(task)
        try:
            yield region
        except asyncio.CancelledError:
            if not self.cut_off:
                raise
            region.cut = True
            task.uncancel()
        finally:
            region.leave()

    # ---- what the consumer gets

    async def through(self, stock: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
        """The items of AutoGen's own stream; left early in whatever way, the run is stopped at once.

        AutoGen's stream waits in its `finally` until the team is idle. It is therefore driven by a task of
        its own, and a cancellation of the consumer reaches us first.
        """
        pump = asyncio.create_task(self._pump(stock))
        pump.add_done_callback(lambda _: self._out.put_nowait(_END))
        try:
            while True:
                item = await self._out.get()
                if self.stopped:
                    raise asyncio.CancelledError("the run was cancelled by its CancellationToken")
                if item is _END:
                    await pump
                    return
                yield item  # type: ignore[misc]
        finally:
            if not pump.done():
                self.stop()
                await asyncio.wait({pump}, timeout=GRACE_SECONDS)
            if not pump.done():
                busy = ", ".join(turn.agent for turn in self.turns if turn.ended is None) or "the manager"
                logger.warning("a cancelled team still runs after %g s: %s", GRACE_SECONDS, busy)
            elif not pump.cancelled():
                pump.exception()  # it was raised above, or belongs to a run that was given up

    async def _pump(self, stock: AsyncGenerator[T, None]) -> None:
        async with contextlib.aclosing(stock):
            async for item in stock:
                self._out.put_nowait(item)

    # ---- turns

    @contextlib.contextmanager
    def turn(self, agent: str) -> Iterator[AgentTurn]:
        """Around an agent's turn: measures it."""
        turn = AgentTurn(agent, time.perf_counter())
        self.turns.append(turn)
        try:
            yield turn
        finally:
            turn.ended = time.perf_counter()


class CutRegion:
    """A wait that may be cut off. `cut` is True when it was, or when the run had been stopped before."""

    def __init__(self, run: TeamRun, task: asyncio.Task[object], outer: bool) -> None:
        self.cut = False
        self._run = run
        self._task = task
        self._outer = outer  # the region lies within another one of the same task

    def leave(self) -> None:
        """From here on to the end of the block nothing is cut off any more."""
        if not self._outer:
            self._run._working.discard(self._task)


__all__ = ["AgentTurn", "CutRegion", "TeamRun"]
