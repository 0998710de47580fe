"""Prefill sessions: chunks, new guesses, the real request, and every way to end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import ExitStack, aclosing
from typing import Any

import msgspec
import pytest

from flashagents_runtime import (
    Delta,
    EngineDiedError,
    EngineInfo,
    GenerateRequest,
    GenerateResult,
    RequestRejectedError,
    SamplingParams,
    Usage,
)
from flashagents_runtime.handoff import Prefiller, PrefillSession, SessionClosedError, warm_up
from helpers.gated_engine import GatedEngine, breathe


@pytest.fixture
def engine() -> GatedEngine:
    return GatedEngine(["answer", "answer", "answer"])


@pytest.fixture
def prefiller(engine: GatedEngine) -> Prefiller:
    return Prefiller(engine, chunk_size=4)


def ids(*ranges: range) -> list[int]:
    return [i for part in ranges for i in part]


async def finish(session: PrefillSession, prompt: list[int]) -> GenerateResult:
    deltas = [d async for d in session.generate(GenerateRequest(input_ids=prompt))]
    assert "".join(d.text for d in deltas) == "answer"
    assert deltas[-1].result is not None
    return deltas[-1].result


def no_tasks_left() -> bool:
    return asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_chunk_is_a_prefill_only_request_with_the_sessions_fields(engine: GatedEngine) -> None:
    session = Prefiller(engine, chunk_size=4).open(
        lora="writer", extra_key="k", cache_salt="s", routed_dp_rank=1
    )
    session.extend([1, 2, 3])
    await breathe()
    assert engine.chunks == []  # not enough for a chunk
    session.extend([4, 5])
    await breathe()
    [chunk] = engine.chunks
    assert chunk.input_ids == [1, 2, 3, 4, 5]
    assert chunk.sampling == SamplingParams(max_new_tokens=0)
    assert (chunk.lora, chunk.extra_key, chunk.cache_salt, chunk.routed_dp_rank) == ("writer", "k", "s", 1)
    assert chunk.session_id == session.session_id
    assert session.state == "prefilling"
    await engine.release()
    assert (session.state, session.warm) == ("idle", 5)
    await finish(session, [1, 2, 3, 4, 5, 6])
    final = engine.requests[-1]
    assert (final.lora, final.session_id, final.routed_dp_rank) == ("writer", session.session_id, 1)


async def test_tokens_pool_up_while_a_chunk_is_in_flight(engine: GatedEngine, prefiller: Prefiller) -> None:
    session = prefiller.open()
    for i in range(40):
        session.extend([i])
        await breathe()
    assert len(engine.chunks) == 1  # however slow the engine, never a queue
    await engine.release()
    assert [len(chunk.input_ids) for chunk in engine.chunks] == [4, 40]
    await engine.release()
    result = await finish(session, ids(range(41)))
    assert (result.usage.cached_tokens, result.usage.prewarmed_tokens) == (40, 40)
    figures = session.figures
    assert (figures.chunks, figures.computed, figures.prewarmed, figures.wasted) == (2, 40, 40, 0)
    assert (figures.prompt, figures.cached) == (41, 40)
    assert no_tasks_left()


async def test_what_the_agents_before_left_in_the_cache_is_not_ours(
    engine: GatedEngine, prefiller: Prefiller
) -> None:
    engine.open = True
    async for _ in prefiller.generate(GenerateRequest(input_ids=[1, 2, 3])):
        pass
    session = prefiller.open()
    session.extend([1, 2, 3, 4, 5, 6])
    await session.settle()
    result = await finish(session, [1, 2, 3, 4, 5, 6, 7])
    assert (result.usage.cached_tokens, result.usage.prewarmed_tokens) == (6, 3)
    assert session.figures.computed == 3


async def test_a_new_guess_keeps_what_both_begin_with(engine: GatedEngine, prefiller: Prefiller) -> None:
    engine.open = True
    session = prefiller.open()
    session.extend(ids(range(10)))
    await session.settle()
    session.rebase(ids(range(6), range(50, 54)))
    assert session.warm == 6
    await session.settle()
    assert [len(chunk.input_ids) for chunk in engine.chunks] == [10, 10]
    result = await finish(session, ids(range(6), range(50, 60)))
    assert result.usage.prewarmed_tokens == 10
    assert (session.figures.computed, session.figures.wasted) == (14, 4)


async def test_a_chunk_that_leads_nowhere_is_aborted(engine: GatedEngine, prefiller: Prefiller) -> None:
    session = prefiller.open()
    session.extend(ids(range(10)))
    await breathe()
    session.rebase([0, 1, 99, 98, 97])
    assert session.state == "idle"
    await breathe()
    assert engine.left == [engine.chunks[0].rid]
    assert [chunk.input_ids for chunk in engine.chunks[1:]] == [[0, 1, 99, 98, 97]]
    assert session.figures.aborted_chunks == 1
    await session.close()
    assert session.figures.wasted == session.figures.computed == 10 + 5
    assert no_tasks_left()


async def test_warm_ups_sample_as_real_requests_do(engine: GatedEngine, prefiller: Prefiller) -> None:
    """Or a batch that decodes greedily would not be sampled so any more."""
    greedy = SamplingParams(temperature=0.0, max_new_tokens=20, stop=["x"])
    other = prefiller.generate(GenerateRequest(input_ids=[1], sampling=greedy))
    await anext(other)
    session = prefiller.open()
    session.extend(ids(range(10)))
    await breathe()
    assert engine.chunks[0].sampling == SamplingParams(temperature=0.0, max_new_tokens=0)
    await other.aclose()
    await session.close()


async def test_a_chunk_that_is_mostly_of_use_goes_on(engine: GatedEngine, prefiller: Prefiller) -> None:
    """A guess that was wrong in its last tokens is no reason to compute all again."""
    session = prefiller.open()
    session.extend(ids(range(10)))
    await breathe()
    done = asyncio.create_task(finish(session, ids(range(8), range(50, 55))))
    await breathe()
    assert session.state == "generating"
    assert len(engine.requests) == 0  # waits for the chunk
    await engine.release()
    result = await done
    assert (result.usage.cached_tokens, result.usage.prewarmed_tokens) == (8, 8)
    assert (session.figures.computed, session.figures.wasted) == (10, 2)


async def test_the_real_request_does_not_wait_for_a_chunk_of_no_use(
    engine: GatedEngine, prefiller: Prefiller
) -> None:
    session = prefiller.open()
    session.extend(ids(range(10)))
    await breathe()
    result = await finish(session, [7, 8])
    assert result.usage.prewarmed_tokens == 0
    assert engine.left == [engine.chunks[0].rid]
    assert session.figures.wasted == 10
    assert no_tasks_left()


async def test_nothing_is_issued_once_the_real_request_runs(
    engine: GatedEngine, prefiller: Prefiller
) -> None:
    session = prefiller.open()
    session.extend([1, 2])
    await finish(session, ids(range(30)))
    assert engine.chunks == []
    assert session.state == "closed"
    for use in (lambda: session.extend([1]), lambda: session.rebase([1]), session.flush):
        with pytest.raises(SessionClosedError):
            use()
    with pytest.raises(SessionClosedError):
        await finish(session, [1])
    await session.close()


async def test_flush_issues_what_is_left(engine: GatedEngine, prefiller: Prefiller) -> None:
    session = prefiller.open()
    session.extend([1, 2])
    session.flush()
    await engine.release()
    assert session.warm == 2
    session.extend([3])
    await breathe()
    assert len(engine.chunks) == 1  # more has come: no longer the end
    await session.close()


@pytest.mark.parametrize("error", [EngineDiedError("gone"), RequestRejectedError("too long")])
async def test_a_failed_chunk_stalls_the_session_and_nothing_else(
    engine: GatedEngine, prefiller: Prefiller, error: Exception
) -> None:
    engine.error = error
    session = prefiller.open()
    session.extend(ids(range(5)))
    await engine.release()
    assert session.state == "stalled"
    assert session.error is error
    session.extend(ids(range(50)))
    await breathe()
    assert len(engine.chunks) == 1
    await session.settle()
    assert (await finish(session, ids(range(5)))).usage.prewarmed_tokens == 0
    assert session.figures.wasted == 5


async def test_a_bug_in_an_engine_is_logged(
    engine: GatedEngine, prefiller: Prefiller, caplog: pytest.LogCaptureFixture
) -> None:
    engine.error = ZeroDivisionError()
    session = prefiller.open()
    session.extend(ids(range(5)))
    with caplog.at_level(logging.ERROR):
        await engine.release()
    assert "a prefill chunk failed" in caplog.text
    await session.close()


async def test_an_aborted_chunk_stalls_the_session(engine: GatedEngine, prefiller: Prefiller) -> None:
    """Somebody else aborted it, for instance the server: do not insist."""

    async def aborted(request: GenerateRequest) -> object:
        yield Delta("", [], GenerateResult(finish_reason="abort", usage=Usage()))

    engine.generate = aborted  # type: ignore[method-assign, assignment]
    session = prefiller.open()
    session.extend(ids(range(5)))
    await breathe()
    assert (session.state, session.warm) == ("stalled", 0)
    await session.close()


async def test_the_real_requests_errors_are_raised_and_close_the_session(engine: GatedEngine) -> None:
    session = Prefiller(engine, chunk_size=4).open()
    engine.die()
    with pytest.raises(EngineDiedError):
        await finish(session, [1, 2])
    assert session.state == "closed"
    assert no_tasks_left()


async def test_leaving_the_answer_early_aborts_it(engine: GatedEngine, prefiller: Prefiller) -> None:
    session = prefiller.open()
    stream = session.generate(GenerateRequest(input_ids=[1, 2, 3]))
    await anext(stream)
    assert prefiller.budget.decoding
    await stream.aclose()
    assert engine.aborted == [engine.requests[0].rid]
    assert not prefiller.budget.decoding
    assert session.state == "closed"
    assert no_tasks_left()


async def test_a_request_for_another_adapter_is_refused(prefiller: Prefiller) -> None:
    session = prefiller.open(lora="writer")
    stream = session.generate(GenerateRequest(input_ids=[1], lora="critic"))
    with pytest.raises(ValueError, match="lora='critic'"):
        await anext(stream)
    assert session.state == "idle"  # it was the wrong request, not the session's end
    await session.close()


async def test_the_prefiller_closes_all_its_sessions(engine: GatedEngine, prefiller: Prefiller) -> None:
    sessions = [prefiller.open(extra_key=str(i)) for i in range(3)]
    for session in sessions:
        session.extend(ids(range(5)))
    await breathe()
    assert len(engine.waiting) == 3
    await prefiller.close()
    assert {session.state for session in sessions} == {"closed"}
    assert (await engine.state()).running == 0
    assert no_tasks_left()


async def test_a_shared_head_is_computed_once(engine: GatedEngine, prefiller: Prefiller) -> None:
    head = ids(range(200))
    sessions = [prefiller.open() for _ in range(3)]
    other = prefiller.open(lora="another")  # another namespace: nothing to share
    for i, session in enumerate([*sessions, other]):
        session.rebase([*head, 1000 + i, 2000 + i, 3000 + i, 4000 + i])
    await breathe()
    assert len(engine.waiting) == 2  # the others wait for the first one's head
    await engine.release()
    assert len(engine.waiting) == 2
    engine.open = True
    await engine.release()
    await warm_up(*sessions, other)
    assert [session.figures.computed for session in sessions] == [204, 4, 4]
    assert all(session.warm == 204 for session in [*sessions, other])
    await prefiller.close()


async def test_warm_up_takes_heads_of_any_length(engine: GatedEngine) -> None:
    engine.open = True
    prefiller = Prefiller(engine)
    session = prefiller.open()
    session.rebase([1, 2, 3])
    await warm_up(session)
    assert session.warm == 3
    await prefiller.close()


async def test_the_start_of_the_engine_is_not_measured(engine: GatedEngine, prefiller: Prefiller) -> None:
    engine.open = True
    session = prefiller.open()
    session.extend(ids(range(5)))  # starts the engine, which may take a minute
    await session.settle()
    assert not prefiller.curve.measured and session.figures.seconds == 0
    session.extend(ids(range(5)))
    await session.settle()
    assert prefiller.curve.measured
    await prefiller.close()


class CuttingEngine(GatedEngine):
    """Computes `most` new tokens of a warm-up, as a server does that has a real request to serve."""

    most = 10
    forgets = False

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        if request.sampling.max_new_tokens == 0:
            end = (0 if self.forgets else self._cached(request)) + self.most
            request = msgspec.structs.replace(request, input_ids=request.input_ids[:end])
        async with aclosing(super().generate(request)) as stream:
            async for delta in stream:
                yield delta


async def test_a_chunk_that_the_server_cuts_is_followed_by_the_rest() -> None:
    engine = CuttingEngine(["answer"])
    prefiller = Prefiller(engine, chunk_size=4)
    session, other = prefiller.open(), prefiller.open()
    session.extend(ids(range(35)))
    other.extend(ids(range(3)))
    for warm in (10, 20, 30, 35):
        await breathe()
        await engine.release()
        assert session.warm == warm
    assert other.warm == 3 and session.figures.computed == 35 and session.figures.chunks == 4
    await breathe()
    assert session.state == "idle" and len(engine.chunks) == 4
    result = await finish(session, ids(range(36)))
    assert result.usage.prewarmed_tokens == 35
    await prefiller.close()


async def test_a_session_whose_cache_goes_as_fast_as_it_comes_stops_asking() -> None:
    engine = CuttingEngine(["answer"])
    engine.forgets = True
    session = Prefiller(engine, chunk_size=4).open()
    session.extend(ids(range(15)))
    for _ in range(3):
        await breathe()
        await engine.release()
    assert (session.state, session.warm, session.figures.chunks) == ("stalled", 10, 3)
    await finish(session, ids(range(16)))


async def test_a_session_whose_cache_is_taken_again_and_again_stops_asking() -> None:
    """However much comes between: a server could keep it busy for ever."""
    engine = CuttingEngine(["answer"])
    session = Prefiller(engine, chunk_size=4).open()
    session.extend(ids(range(35)))
    for n, warm in enumerate((10, 20, 10, 20, 10)):
        assert session.state != "stalled"
        await breathe()
        engine.forgets = n in (1, 3)
        if n in (2, 4):
            engine._seen.clear()
        await engine.release()
        assert session.warm == warm
    assert session.state == "stalled" and len(engine.chunks) == 5
    await finish(session, ids(range(36)))


async def test_a_session_whose_cache_was_taken_once_asks_for_it_again() -> None:
    """A chunk that is cut then ends before what had been warm."""
    engine = CuttingEngine(["answer"])
    session = Prefiller(engine, chunk_size=4).open()
    session.extend(ids(range(35)))
    for n, warm in enumerate((10, 20, 10, 20, 30, 35)):
        await breathe()
        engine.forgets = n == 1  # when the third chunk comes, which is upon the second one's end
        if n == 2:
            engine._seen.clear()
        await engine.release()
        assert session.state != "stalled" and session.warm == warm
    assert session.figures.computed == 55, "20 of them twice"
    result = await finish(session, ids(range(36)))
    assert result.usage.prewarmed_tokens == 35


@pytest.mark.parametrize("others", [0, 1, 7])
async def test_small_warm_ups_wait_while_the_engine_is_busy_with_others(others: int) -> None:
    engine = GatedEngine(["answer"])
    prefiller = Prefiller(engine)
    with ExitStack() as running:
        for _ in range(1 + others):  # the upstream agent's and theirs
            running.enter_context(prefiller.budget.decode())
        session = prefiller.open()
        session.extend(ids(range(40)))
        session.flush(always=True)
        await breathe()
        assert len(engine.chunks) == (1 if others == 0 else 0)
        session.extend(ids(range(1000, 1800)))
        session.flush()
        await breathe()
        await engine.release()
        assert len(engine.chunks) >= 1, "a large one saves enough"
    await session.close()
    assert no_tasks_left()


async def test_what_waited_for_a_busy_engine_goes_when_the_others_have_ended() -> None:
    engine = GatedEngine(["answer"])
    engine.open = True
    prefiller = Prefiller(engine)
    session = prefiller.open()
    with prefiller.budget.decode(), prefiller.budget.decode():
        session.extend(ids(range(40)))
        session.flush(always=True)
        await session.settle()
        assert engine.chunks == [], "and nobody who waits for the session is kept"
    prefiller.changed_now()
    await session.settle()
    assert [len(chunk.input_ids) for chunk in engine.chunks] == [40]
    await session.close()


@pytest.mark.parametrize("settings", [{"chunk_size": 4}, {"share": 1.0}])
async def test_a_set_chunk_size_and_the_whole_share_hold_nothing_back(settings: dict[str, Any]) -> None:
    engine = GatedEngine(["answer"])
    engine.open = True
    prefiller = Prefiller(engine, **settings)
    with prefiller.budget.decode(), prefiller.budget.decode():
        session = prefiller.open()
        session.extend(ids(range(40)))
        session.flush(always=True)
        await session.settle()
    assert [len(chunk.input_ids) for chunk in engine.chunks] == [40]
    await session.close()


async def test_on_a_cpu_a_warm_up_beside_others_has_to_save_more() -> None:
    class OnCpu(GatedEngine):
        @property
        def info(self) -> EngineInfo | None:
            found = super().info
            return None if found is None else msgspec.structs.replace(found, device="cpu")

    some, many = Prefiller(GatedEngine()), Prefiller(OnCpu())
    for prefiller in (some, many):
        await prefiller.engine.start()
        with ExitStack() as running:
            assert prefiller.pays(1)
            for _ in range(4):
                running.enter_context(prefiller.budget.decode())
            assert prefiller.pays(4000) and not prefiller.pays(64)
            assert prefiller.pays(512) is (prefiller is some)
