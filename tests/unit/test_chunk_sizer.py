"""Chunk sizes that follow what an engine was measured to take, and the share of time for warm-ups."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashagents_runtime import GenerateRequest
from flashagents_runtime.handoff import ChunkSizer, PrefillCurve, Prefiller, WarmupBudget
from helpers.gated_engine import GatedEngine, breathe

# docs: fa3, SGLang 0.5.18, one H200 (seconds).
H200 = {1: 0.0096, 128: 0.0108, 512: 0.0154, 1024: 0.0240, 2048: 0.0440, 4096: 0.0863, 8192: 0.1839}


def h200(tokens: int) -> float:
    sizes = sorted(H200)
    for low, high in pairwise(sizes):
        if tokens <= high:
            return H200[low] + (H200[high] - H200[low]) * (tokens - low) / (high - low)
    return H200[8192] * tokens / 8192


def curve_of(seconds: dict[int, float]) -> PrefillCurve:
    curve = PrefillCurve()
    for tokens, time in seconds.items():
        curve.observe(tokens, time)
    return curve


def stream(sizer: ChunkSizer, tokens: int, rate: float = 220.0, step: int = 4) -> list[int]:
    """The chunks of a stream whose engine takes the curve's time; tokens pool up meanwhile."""
    chunks: list[int] = []
    waiting, busy_until = 0, 0.0
    for arrived in range(step, tokens + 1, step):
        now = arrived / rate
        waiting += step
        sizer.arrived(step, now)
        if now >= busy_until and sizer.is_due(waiting):
            sizer.issued(waiting)
            busy_until = now + sizer.curve.seconds(waiting)
            chunks.append(waiting)
            waiting = 0
    return chunks


@pytest.mark.parametrize("expected", [None, 2048, 1000, 5000])
def test_chunks_of_a_stream_cost_at_most_a_quarter_more_than_one_pass(expected: int | None) -> None:
    chunks = stream(ChunkSizer(curve_of(H200), expected=expected), 2048)
    rest = 2048 - sum(chunks)
    assert len(chunks) >= 2
    assert sum(map(h200, chunks)) <= 1.26 * h200(2048) * (2048 - rest) / 2048
    assert rest < 1024


def test_chunks_shrink_towards_the_expected_end() -> None:
    known = stream(ChunkSizer(curve_of(H200), expected=4096), 4096)
    assert known[0] >= 640
    assert known[-1] < known[0] * 0.75
    unknown = stream(ChunkSizer(curve_of(H200)), 4096)
    assert 4096 - sum(known) <= 4096 - sum(unknown)


def test_passes_that_may_not_be_long_are_measured_against_such_passes() -> None:
    curve = curve_of(H200)
    assert curve.largest(0.05) == 2048
    assert curve.largest(0.001) == 512  # shorter ones would cost as much
    assert curve.best_rate(0.016) > 1.2 * curve.best_rate(0.05) > 1.2 * curve.best_rate()
    curve.observe(512, 1.2 * h200(512))  # then it is reckoned anew
    assert curve.best_rate(0.016) > 1.02 * h200(512) / 512


@pytest.mark.parametrize(("longest", "due"), [(0.016, True), (None, False)])
def test_a_second_chunk_is_due_where_none_may_be_larger(longest: float | None, due: bool) -> None:
    sizer = ChunkSizer(curve_of(H200))
    for _ in range(3):
        sizer.issued(512, longest)  # the head, in passes beside decodes
    assert sizer.is_due(512, longest) == due


def test_a_slow_engine_gets_larger_chunks() -> None:
    slow = curve_of({tokens: 200 * seconds for tokens, seconds in H200.items()})
    chunks = stream(ChunkSizer(slow), 8192, rate=400.0)
    assert len(chunks) <= 4
    assert chunks == sorted(chunks)
    assert chunks[-1] > 2 * chunks[0]


def test_no_chunk_just_before_the_end_that_the_real_request_would_wait_for() -> None:
    sizer = ChunkSizer(curve_of(H200), expected=300)
    sizer.arrived(4, 0.0)
    sizer.arrived(292, 292 / 20_000)
    assert not sizer.is_due(296)  # four tokens to come: 0.2 ms, the chunk would take 12


def test_a_fixed_size_is_a_fixed_size() -> None:
    sizer = ChunkSizer(curve_of(H200), chunk_size=100)
    assert stream(sizer, 1000) == [100] * 10
    assert sizer.is_worth_a_flush(1) and not sizer.is_worth_a_flush(0)
    with pytest.raises(ValueError, match="chunk_size"):
        ChunkSizer(chunk_size=0)


def test_a_flush_has_to_be_worth_a_request() -> None:
    sizer = ChunkSizer(curve_of(H200))
    assert not sizer.is_worth_a_flush(128)  # computed about as fast as one token
    assert sizer.is_worth_a_flush(1024)
    assert sizer.is_worth_a_flush(128, gap=0.05)  # the real request comes later than it takes
    assert not sizer.is_worth_a_flush(1024, gap=0.001)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    seen=st.lists(st.tuples(st.integers(1, 20_000), st.floats(1e-4, 100)), max_size=8),
    waiting=st.integers(0, 30_000),
    expected=st.none() | st.integers(1, 10_000),
)
def test_any_measurements_make_a_decision(
    seen: list[tuple[int, float]], waiting: int, expected: int | None
) -> None:
    curve = PrefillCurve()
    for tokens, seconds in seen:
        curve.observe(tokens, seconds)
    assert curve.measured == bool(seen)
    assert curve.seconds(0) == 0
    assert all(curve.seconds(n) > 0 for n in (1, 100, 50_000))
    sizer = ChunkSizer(curve, expected=expected)
    sizer.arrived(waiting, 1.0)
    assert sizer.rate is None
    assert isinstance(sizer.is_due(waiting), bool)
    assert not sizer.is_due(0)


def test_a_curve_follows_its_engine() -> None:
    curve = curve_of(H200)
    for tokens, seconds in H200.items():
        assert curve.seconds(tokens) == pytest.approx(seconds, rel=0.2)
    for _ in range(20):
        curve.observe(1024, 1.0)
    assert curve.seconds(1024) > 0.9
    curve.observe(0, 1.0)
    curve.observe(5, 0.0)  # nothing measured


class Clock:
    """A clock that stands still."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_warm_ups_stay_within_their_share_while_something_decodes() -> None:
    clock = Clock()
    budget = WarmupBudget(clock, share=0.05)
    assert budget.charge(0.5) == 0.0 and budget.delay() == 0.0  # an idle engine is free
    with budget.decode():
        assert budget.delay() == 0.0
        charged = budget.charge(0.02)
        assert budget.delay() == pytest.approx(0.4)
        budget.correct(charged, 0.01)
        assert budget.delay() == pytest.approx(0.2)
        clock.now += 0.25
        assert budget.delay() == 0.0
        budget.charge(0.01)
        with budget.decode():
            assert budget.delay() == pytest.approx(0.2)
    assert not budget.decoding and budget.delay() == 0.0
    for share in (0.0, 1.5):
        with pytest.raises(ValueError, match="share"):
            WarmupBudget(clock, share=share)


async def test_the_client_holds_warm_ups_back_and_the_plug_in_does_it_itself() -> None:
    engine = GatedEngine(["a" * 200, "b" * 200])
    info = await engine.start()
    clock = Clock()
    prefiller = Prefiller(engine, chunk_size=8, share=0.05)
    prefiller.clock = clock
    session = prefiller.open()

    async def chunk() -> int:
        """More tokens come; a chunk, where one is issued, takes 20 ms. How many there have been."""
        session.extend(list(range(8)))
        await breathe()
        if engine.waiting:
            clock.now += 0.02
        await engine.release()
        return len(engine.chunks)

    other = prefiller.generate(GenerateRequest(input_ids=[1]))
    await anext(other)  # somebody decodes
    assert await chunk() == 1
    assert await chunk() == 1  # the second one is held back
    clock.now += 0.3
    assert await chunk() == 1
    clock.now += 0.1
    assert await chunk() == 2
    assert await chunk() == 2
    await other.aclose()  # nobody decodes any more
    await engine.release()
    assert len(engine.chunks) == 3
    info.features.append("warmup_budget")
    other = prefiller.generate(GenerateRequest(input_ids=[1]))
    await anext(other)
    assert [await chunk() for _ in range(3)] == [4, 5, 6]
    await other.aclose()
    await prefiller.close()


async def test_passes_beside_a_decode_are_short() -> None:
    engine = GatedEngine(["a" * 200])
    clock = Clock()
    prefiller = Prefiller(engine)
    prefiller.clock = clock
    prefiller.curve.observe(1024, 0.024)
    session = prefiller.open()
    other = prefiller.generate(GenerateRequest(input_ids=[1]))
    await anext(other)
    session.rebase(list(range(8000)))
    await breathe()
    assert [len(chunk.input_ids) for chunk in engine.chunks] == [2048]  # 44 ms; 2560 would take 55
    clock.now += 0.05
    await engine.release()
    assert len(engine.chunks) == 1
    engine.open = True
    await other.aclose()
    await session.settle()
    assert [len(chunk.input_ids) for chunk in engine.chunks] == [2048, 8000]
    await prefiller.close()
