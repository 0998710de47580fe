"""A loop whose task has left is not woken by the I/O thread: it may be just closing."""

from __future__ import annotations

import asyncio
import concurrent.futures
from typing import Any

import pytest

from flashagents_runtime import Delta
from flashagents_runtime.embedded import io_thread
from flashagents_runtime.embedded.stream import Stream, deliver


class Watched(asyncio.SelectorEventLoop):
    """Counts what other threads ask of it."""

    woken = 0

    def call_soon_threadsafe(self, *args: Any, **kwargs: Any) -> asyncio.Handle:
        self.woken += 1
        return super().call_soon_threadsafe(*args, **kwargs)


def test_a_stream_whose_reader_has_left_is_passed_over() -> None:
    async def read() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, Watched)
        gone, here = Stream(loop), Stream(loop)
        deliver([(gone, Delta("a", [1])), (here, Delta("b", [2]))])
        assert (await here.get()).text == "b"
        assert loop.woken == 1, "one wake-up a loop"
        gone.leave()
        deliver([(gone, Delta("c", [3]))])
        assert loop.woken == 1
        deliver([(gone, Delta("c", [3])), (here, Delta("d", [4]))])
        assert (await here.get()).text == "d"
        assert (await gone.get()).text == "a", "what came before is there"
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(gone.get(), 0.01)

    with asyncio.Runner(loop_factory=Watched) as runner:
        runner.run(read())


def test_a_call_that_was_left_wakes_nobody() -> None:
    future: concurrent.futures.Future[int] = concurrent.futures.Future()

    async def leave() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, Watched)
        task = asyncio.create_task(io_thread.wait(future))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        future.set_result(1)
        assert loop.woken == 0
        assert await io_thread.wait(future) == 1

    with asyncio.Runner(loop_factory=Watched) as runner:
        runner.run(leave())
