"""What sessions leave to a server whose scheduler orders them, holds them back and keeps their KV."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from flashagents_runtime import EngineError, EngineInfo, GenerateRequest, GenerateResult, ProgressCallback
from flashagents_runtime.handoff import Prefiller, PrefillSession
from helpers.gated_engine import GatedEngine, breathe


class OrderingEngine(GatedEngine):
    """A `GatedEngine` that says it has the plug-in."""

    async def start(self, progress: ProgressCallback | None = None) -> EngineInfo:
        info = await super().start(progress)
        features = ["intra_turn", "soft_pins", "warmup_budget"]
        self._info = msgspec.structs.replace(info, features=features)
        return self._info


@pytest.fixture
async def engine() -> OrderingEngine:
    engine = OrderingEngine(["answer", "answer", "answer"])
    await engine.start()
    return engine


@pytest.fixture
def prefiller(engine: OrderingEngine) -> Prefiller:
    return Prefiller(engine, chunk_size=4)


async def finish(session: PrefillSession, prompt: list[int]) -> GenerateResult:
    deltas = [d async for d in session.generate(GenerateRequest(input_ids=prompt))]
    assert deltas[-1].result is not None
    return deltas[-1].result


async def test_the_real_request_goes_at_once(engine: OrderingEngine, prefiller: Prefiller) -> None:
    session = prefiller.open()
    session.extend(list(range(10)))
    await breathe()
    assert len(engine.waiting) == 1
    await finish(session, list(range(12)))
    assert session.state == "closed"
    assert len(engine.requests) == 1  # the chunk is still held
    assert engine.requests[0].session_id == engine.chunks[0].session_id


async def test_a_chunk_that_the_server_cancels_has_computed_nothing(
    engine: OrderingEngine, prefiller: Prefiller
) -> None:
    session = prefiller.open()
    session.extend(list(range(10)))
    await breathe()
    stream = session.generate(GenerateRequest(input_ids=list(range(12))))
    await anext(stream)
    engine.error = EngineError("Abort in waiting queue")
    await engine.release()
    async for _ in stream:
        pass
    figures = session.figures
    assert (figures.aborted_chunks, figures.computed, figures.wasted) == (1, 0, 0)
    assert session.error is None


async def test_a_chunk_that_the_server_shares_counts(engine: OrderingEngine, prefiller: Prefiller) -> None:
    session = prefiller.open()
    session.extend(list(range(10)))
    await breathe()
    stream = session.generate(GenerateRequest(input_ids=list(range(12))))
    await anext(stream)
    await engine.release()
    async for _ in stream:
        pass
    assert session.figures.computed == 10 and session.figures.aborted_chunks == 0


async def test_a_session_without_an_answer_says_that_it_is_over(
    engine: OrderingEngine, prefiller: Prefiller
) -> None:
    engine.open = True
    closed, answered, unused = prefiller.open(), prefiller.open(), prefiller.open()
    for session in (closed, answered):
        session.extend(list(range(10)))
        await session.settle()
    await finish(answered, list(range(12)))
    await closed.close()
    await unused.close()
    left = prefiller.open()
    left.extend(list(range(20)))
    await left.settle()
    stream = left.generate(GenerateRequest(input_ids=list(range(22))))
    await anext(stream)
    await stream.aclose()
    await prefiller.close()
    assert engine.closed_sessions == [closed.session_id, left.session_id]
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_an_engine_that_is_gone_is_not_told(engine: OrderingEngine, prefiller: Prefiller) -> None:
    engine.open = True
    session = prefiller.open()
    session.extend(list(range(10)))
    await session.settle()
    engine.die()
    await session.close()
    await prefiller.close()
    assert engine.closed_sessions == []


async def test_the_time_of_a_chunk_that_was_held_is_not_learnt(engine: OrderingEngine) -> None:
    now = [0.0]
    prefiller = Prefiller(engine, chunk_size=1024)
    prefiller.clock = lambda: now[0]
    prefiller.curve.observe(1024, 0.024)
    before = prefiller.curve.seconds(1024)
    other = prefiller.generate(GenerateRequest(input_ids=[1]))
    await anext(other)
    session = prefiller.open()
    session.extend(list(range(1024)))
    await breathe()
    now[0] += 5
    await engine.release()
    assert session.warm == 1024 and prefiller.curve.seconds(1024) == before
    await other.aclose()


async def test_the_time_of_chunks_in_a_queue_is_not_learnt() -> None:
    engine = GatedEngine(["answer"])
    await engine.start()
    now = [0.0]
    prefiller = Prefiller(engine, chunk_size=1024)
    prefiller.clock = lambda: now[0]
    prefiller.curve.observe(1024, 0.024)
    before = prefiller.curve.seconds(1024)
    sessions = [prefiller.open(extra_key=str(i)) for i in range(3)]
    for i, session in enumerate(sessions):
        session.extend(list(range(2000 * i, 2000 * i + 1024)))
    await breathe()
    now[0] += 5
    await engine.release()
    assert all(session.warm == 1024 for session in sessions)
    assert prefiller.curve.seconds(1024) == before
    alone = prefiller.open(extra_key="alone")
    alone.extend(list(range(9000, 9000 + 1024)))
    await breathe()
    now[0] += 5
    await engine.release()
    assert prefiller.curve.seconds(1024) > before
    await prefiller.close()
