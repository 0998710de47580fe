"""Cancellation stops the engine's work at once, whoever cancels, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import threading

import pytest
from autogen_core import CancellationToken

from flashagents_runtime import Reply, ScriptedEngine
from helpers.clients import collect, scripted, user

SLOW = Reply(text="abcdef", interval=30)


async def until_running(engine: ScriptedEngine, n: int = 1) -> None:
    async with asyncio.timeout(5):
        while (await engine.state()).running < n:
            await asyncio.sleep(0)


async def assert_freed(engine: ScriptedEngine) -> None:
    state = await engine.state()
    assert (state.kv_used, state.running) == (0, 0)
    assert engine.aborted == [r.rid for r in engine.requests]


def callbacks(token: CancellationToken) -> int:
    return len(token._callbacks)


def test_autogens_token_is_as_we_know_it() -> None:
    """`CancelGuard.close` takes its callback off again; AutoGen offers no method for that."""
    token = CancellationToken()
    token.add_callback(print)
    assert token._callbacks == [print]
    with token._lock:
        pass


@pytest.mark.parametrize("stream", [False, True])
async def test_cancelled_before_the_start_nothing_is_asked_of_the_engine(stream: bool) -> None:
    client, engine = scripted("a")
    token = CancellationToken()
    token.cancel()
    with pytest.raises(asyncio.CancelledError):
        await (collect if stream else type(client).create)(client, [user()], cancellation_token=token)
    assert engine.requests == [] and engine.info is None


async def test_cancelled_while_the_engine_starts() -> None:
    class Starting(ScriptedEngine):
        async def start(self, progress=None):  # type: ignore[no-untyped-def]
            await asyncio.sleep(60)

    client, _ = scripted()
    engine = Starting()
    client = type(client)(engine=engine)
    token = CancellationToken()
    asyncio.get_running_loop().call_later(0.01, token.cancel)
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(client.create([user()], cancellation_token=token), 5)
    assert engine.requests == [] and callbacks(token) == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_cancelled_during_prefill(stream: bool) -> None:
    client, engine = scripted(Reply(text="abc", delay=60))
    token = CancellationToken()
    call = (collect if stream else type(client).create)(client, [user()], cancellation_token=token)
    task = asyncio.ensure_future(call)
    await until_running(engine)
    token.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 5)
    await assert_freed(engine)
    assert callbacks(token) == 0


async def test_cancelled_in_mid_stream() -> None:
    client, engine = scripted(SLOW)
    token = CancellationToken()
    stream = client.create_stream([user()], cancellation_token=token)
    assert await anext(stream) == "a"
    asyncio.get_running_loop().call_later(0.01, token.cancel)
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(anext(stream), 5)
    await assert_freed(engine)
    # Nothing is left of it in the task: later waits are not cancelled.
    current = asyncio.current_task()
    assert current is not None and current.cancelling() == 0
    await asyncio.sleep(0)


async def test_cancelled_between_two_chunks_no_further_chunk_comes() -> None:
    client, engine = scripted("abcdef")
    token = CancellationToken()
    chunks: list[object] = []
    with pytest.raises(asyncio.CancelledError):
        async for chunk in client.create_stream([user()], cancellation_token=token):
            chunks.append(chunk)
            if len(chunks) == 2:
                token.cancel()
    assert chunks == ["a", "b"]
    await assert_freed(engine)


async def test_cancelled_from_another_thread() -> None:
    client, engine = scripted(SLOW)
    token = CancellationToken()
    task = asyncio.ensure_future(client.create([user()], cancellation_token=token))
    await until_running(engine)
    thread = threading.Thread(target=token.cancel)
    thread.start()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 5)
    thread.join()
    await assert_freed(engine)


async def test_one_token_for_many_requests() -> None:
    client, engine = scripted(*[SLOW] * 5)
    token = CancellationToken()
    tasks = [asyncio.ensure_future(client.create([user()], cancellation_token=token)) for _ in range(5)]
    await until_running(engine, 5)
    assert callbacks(token) == 5
    token.cancel()
    done = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 5)
    assert all(isinstance(result, asyncio.CancelledError) for result in done)
    assert callbacks(token) == 0


async def test_a_token_holds_no_callback_of_a_finished_request() -> None:
    client, _ = scripted(*["abc"] * 20)
    token = CancellationToken()
    for _ in range(10):
        await client.create([user()], cancellation_token=token)
        stream = client.create_stream([user()], cancellation_token=token)
        await anext(stream)
        assert callbacks(token) == 1  # one a request, however many chunks
        async for _ in stream:
            pass
    assert callbacks(token) == 0
    token.cancel()


async def test_the_consumer_breaks_off() -> None:
    client, engine = scripted("abcdef")
    async for _ in client.create_stream([user()]):
        break
    async with asyncio.timeout(5):  # the generator is closed when it is collected
        while not engine.aborted:
            await asyncio.sleep(0)
    await assert_freed(engine)


async def test_the_consumer_raises() -> None:
    client, engine = scripted("abcdef")
    stream = client.create_stream([user()])
    with pytest.raises(KeyError):
        async for _ in stream:
            raise KeyError
    await stream.aclose()
    await assert_freed(engine)


async def test_the_task_is_cancelled_from_outside() -> None:
    client, engine = scripted(SLOW)
    task = asyncio.ensure_future(client.create([user()], cancellation_token=CancellationToken()))
    await until_running(engine)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()
    await assert_freed(engine)


async def test_a_time_out_around_a_call_is_still_a_time_out() -> None:
    client, engine = scripted(SLOW)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await client.create([user()], cancellation_token=CancellationToken())
    await assert_freed(engine)


async def test_cancel_within_a_task_group_ends_that_call_alone() -> None:
    client, _ = scripted(SLOW, "fine")
    token = CancellationToken()

    async def cancelled() -> str:
        try:
            await client.create([user()], cancellation_token=token)
        except asyncio.CancelledError:
            return "cancelled"
        return "not cancelled"

    async with asyncio.TaskGroup() as group:
        a = group.create_task(cancelled())
        await asyncio.sleep(0.01)
        b = group.create_task(client.create([user()]))
        token.cancel()
    assert (a.result(), b.result().content) == ("cancelled", "fine")
