"""Chunks, aborts, retraction, eviction, preemption: nothing leaks, no output changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers.ab import Run, ab, publisher, run
from helpers.kv_model import KvModel
from helpers.scheduler_harness import Request, SchedulerHarness

from .conftest import Tokens

pytestmark = pytest.mark.engine

SMALL = {"chunked_prefill_size": 128, "max_total_tokens": 640, "max_running_requests": 16}
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "page1": SMALL,
    "page1-overlap": {**SMALL, "overlap": True},
    "page16-overlap": {**SMALL, "page_size": 16, "overlap": True},
    "page16-lpm": {**SMALL, "page_size": 16, "schedule_policy": "lpm"},
    "mixed-chunk": {**SMALL, "enable_mixed_chunk": True},
    "no-chunks": {**SMALL, "chunked_prefill_size": -1, "mem_fraction_static": 0.5, "overlap": True},
}


@pytest.fixture(scope="module", params=CONFIGURATIONS)
def small(model: Path, request: pytest.FixtureRequest) -> Iterator[SchedulerHarness]:
    """A scheduler with a small pool and small chunks."""
    with SchedulerHarness(model, check=KvModel(), **CONFIGURATIONS[request.param]) as s:
        yield s


def test_chunked_leader(small: SchedulerHarness, tokens: Tokens) -> None:
    prefix = tokens(300)
    stock, ours = ab(small, [Request(f"r{i}", prefix + tokens(16), 4) for i in range(3)])
    assert ours.computed == 316 + 16 + 16 + (0 if small.scheduler.page_size == 1 else 2 * (300 % 16))
    assert ours.computed <= stock.computed


def test_followers_of_a_part_of_a_chunked_leader(small: SchedulerHarness, tokens: Tokens) -> None:
    prefix = tokens(300)
    waves = [Request("r0", prefix + tokens(16), 4)]
    waves += [Request(f"r{i}", prefix[:160] + tokens(10), 4) for i in range(1, 4)]
    ab(small, waves)


def test_arrivals_between_chunks(small: SchedulerHarness, tokens: Tokens) -> None:
    prefix = tokens(400)
    waves = [(n, [Request(f"r{n}", prefix + tokens(10), 4)]) for n in range(4)]
    stock, ours = ab(small, waves)
    assert ours.computed <= stock.computed


def abort_at(step: int, who: str) -> Callable[..., None]:
    def before_step(s: SchedulerHarness, n: int, rid: Callable[[str], str]) -> None:
        if n == step:
            s.abort(rid(who))

    return before_step


@pytest.mark.parametrize("step", [0, 1, 2, 3])
def test_abort_of_the_leader(small: SchedulerHarness, tokens: Tokens, step: int) -> None:
    """Queued, mid-chunk, or running: who shares its prefix goes on."""
    prefix = tokens(300)
    waves = [Request(f"r{i}", prefix[: 300 - 60 * i] + tokens(16), 4) for i in range(4)]
    plain = run(small, False, waves)
    ours = run(small, True, waves, abort_at(step, "r0"))
    assert_same_but(plain, ours, "r0")


def test_abort_between_admission_and_launch(small: SchedulerHarness, tokens: Tokens) -> None:
    prefix = tokens(90)
    waves = [Request(f"r{i}", prefix + tokens(8), 4) for i in range(4)]
    plain = run(small, False, waves)
    run_batch = small.scheduler.run_batch

    def abort_first(batch: Any, *args: Any, **kwargs: Any) -> Any:
        from sglang.srt.managers.io_struct import AbortReq

        small.scheduler.run_batch = run_batch
        before, small.scheduler.last_batch = small.scheduler.last_batch, batch
        small.scheduler.abort_request(AbortReq(rid=batch.reqs[0].rid))
        small.scheduler.last_batch = before
        return run_batch(batch, *args, **kwargs)

    small.flush()
    small.scheduler.run_batch = abort_first
    assert_same_but(plain, run(small, True, waves), "r0")


def assert_same_but(plain: Run, other: Run, aborted: str) -> None:
    for rid, output in other.outputs.items():
        if rid == aborted:
            assert plain.outputs[rid][: len(output)] == output
        else:
            assert plain.outputs[rid] == output


def test_retraction(small: SchedulerHarness, tokens: Tokens) -> None:
    """Decodes outgrow the pool; retracted requests come back and end as they should."""
    prefix = tokens(100)
    waves = [Request(f"r{i}", prefix[: 40 + 6 * i] + tokens(8), 72) for i in range(8)]
    small.flush()
    small.scheduler.new_token_ratio_tracker.current = 0.1  # admit more than will fit
    ours = run(small, True, waves, flush=False)
    assert any(req.retraction_count for req in ours.reqs.values())
    alone = {}
    for wave in waves[:3]:
        alone |= run(small, False, [wave]).outputs
    assert {rid: ours.outputs[rid] for rid in alone} == alone


def test_eviction(small: SchedulerHarness, tokens: Tokens) -> None:
    families = [tokens(180) for _ in range(6)]
    waves = [
        (3 * i, [Request(f"r{i}{j}", f + tokens(12), 3) for j in range(3)]) for i, f in enumerate(families)
    ]
    before = publisher(small).figures.evictions
    stock, ours = ab(small, waves)
    assert publisher(small).figures.evictions > before
    assert ours.computed < stock.computed


def test_waiting_prefixes_outlive_an_eviction(small: SchedulerHarness, tokens: Tokens) -> None:
    """Publishing one request's prefix must not evict what the next one in the queue is about to match."""
    cached, others = tokens(160), [tokens(144) for _ in range(3)]
    a, b = tokens(80), [*cached, *tokens(8)]
    for on in (False, True):
        run(small, on, [Request("x", cached, 1)])  # the oldest
        for i, ids in enumerate(others):
            run(small, on, [Request(f"o{i}", ids, 1)], flush=False)
        last = run(small, on, [Request("a", a, 2), Request("b", b, 2)], flush=False)
        assert last.reqs["b"].cached_tokens == 160, f"publishing {on}"


def test_out_of_memory_leaves_the_books_right(small: SchedulerHarness, tokens: Tokens) -> None:
    """No slots for publishing, nor after evicting: the request stays private; stock's allocation decides."""
    allocator = small.scheduler.token_to_kv_pool_allocator
    alloc = allocator.alloc
    waves = [Request(f"r{i}", tokens(40), 2) for i in range(3)]
    plain = run(small, False, waves)
    before = publisher(small).figures.not_published["memory"]
    calls = []

    def fail_twice(size: int) -> Any:
        calls.append(size)
        return None if len(calls) <= 2 else alloc(size)

    small.flush()
    allocator.alloc = fail_twice
    try:
        ours = run(small, True, waves)
    finally:
        del allocator.alloc
    assert ours.outputs == plain.outputs
    assert publisher(small).figures.not_published["memory"] == before + 1
