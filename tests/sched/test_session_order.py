"""Warm-ups, real requests and their order in a real scheduler, by a clock that the test moves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flashagents_runtime import plugin
from flashagents_runtime.scheduling import WarmupBudgetFeature
from flashagents_runtime.scheduling.order import expected_work
from flashagents_runtime.scheduling.passes import Others
from helpers.kv_model import KvModel
from helpers.scheduler_harness import Request, SchedulerHarness

pytestmark = pytest.mark.engine


def ids(seed: int, n: int) -> list[int]:
    return [4 + (seed * 41 + i * (2 * seed + 7)) % 490 for i in range(n)]


def warm(session: str, seed: int, n: int = 40) -> Request:
    return Request(f"warm-{session}", ids(seed, n), max_new_tokens=0, session_id=session)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0
        self.next_prefill = 0.0  # seconds until the results of the next prefill pass are there

    def __call__(self) -> float:
        self.now += 1e-5
        return self.now


@pytest.fixture(scope="module")
def monkeypatch_module() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.fixture(scope="module", params=["fcfs", "lpm-overlap", "lof-mixed"])
def shared(
    model: Path, request: pytest.FixtureRequest, monkeypatch_module: pytest.MonkeyPatch
) -> Iterator[SchedulerHarness]:
    policy, _, more = request.param.partition("-")
    monkeypatch_module.setenv("FLASHAGENTS_WARMUP_SHARE", "0.05")
    with SchedulerHarness(
        model,
        check=KvModel(),
        schedule_policy=policy,
        overlap=more == "overlap",
        enable_mixed_chunk=more == "mixed",
        chunked_prefill_size=256,
        page_size=16 if more else 1,
    ) as s:
        yield s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def s(shared: SchedulerHarness, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Iterator[SchedulerHarness]:
    shared.flush()
    shared.reqs.clear()
    gate = shared.scheduler.tree_cache.gate
    gate._clock = gate.budget._clock = clock
    gate._processed_at = gate.budget._at = clock.now
    gate._pace, gate._decoding, gate._decoded_at = None, False, float("-inf")
    gate._others = Others()
    gate.budget._sum = gate.budget._squares = 0.0
    processor = type(shared.scheduler.batch_result_processor)
    process = processor.process_batch_result_prefill

    def process_later(self: Any, *args: Any, **kwargs: Any) -> Any:
        clock.now, clock.next_prefill = clock.now + clock.next_prefill, 0.0
        return process(self, *args, **kwargs)

    monkeypatch.setattr(processor, "process_batch_result_prefill", process_later)
    yield shared
    clock.now += 1000
    shared.run()
    gate.budget.pass_time(False)


def decode(s: SchedulerHarness, rid: str = "decode", new: int = 200) -> None:
    s.submit(Request(rid, ids(70, 20), max_new_tokens=new))
    s.step()
    s.step()


def overdraw(s: SchedulerHarness, clock: Clock) -> None:
    """One warm-up pass of a second beside the decode: nothing is known yet that would hold it."""
    s.scheduler.tree_cache.gate._pace = None
    s.submit(warm("first", 69))
    clock.next_prefill = 1.0
    for _ in range(3):
        s.step()
    assert "warm-first" in s.reqs and s.reqs["warm-first"].finished()
    s.scheduler.tree_cache.gate._pace = None  # a second for 40 tokens is no pace to plan with


def is_new(rids: list[str]) -> list[str]:
    return [rid for rid in rids if rid != "decode"]


def test_real_requests_go_first_and_alone(s: SchedulerHarness) -> None:
    s.submit(warm("a", 1), Request("real", ids(2, 40), 3), warm("b", 3), Request("also", ids(4, 40), 3))
    first = s.step()
    assert sorted(first.rids) == ["also", "real"]
    rest = [x.rids for x in s.run() if "warm-a" in x.rids]
    assert rest and set(rest[0]) >= {"warm-a", "warm-b"}  # one pass for both


def test_on_a_cpu_nothing_is_held_unless_asked_for(
    model: Path, s: SchedulerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = SimpleNamespace()
    assert WarmupBudgetFeature().figures(s.scheduler.tree_cache)["share"] == 0.05
    monkeypatch.delenv("FLASHAGENTS_WARMUP_SHARE")
    WarmupBudgetFeature().attach(SimpleNamespace(server_args=SimpleNamespace(device="cpu", tp_size=1)), cache)
    assert WarmupBudgetFeature().figures(cache)["share"] is None
    WarmupBudgetFeature().attach(
        SimpleNamespace(server_args=SimpleNamespace(device="cuda", tp_size=1)), cache
    )
    assert WarmupBudgetFeature().figures(cache)["share"] == 0.05


def test_an_idle_engine_holds_nothing(s: SchedulerHarness) -> None:
    for i in range(5):
        s.submit(warm(f"s{i}", i))
        assert s.step().rids == [f"warm-s{i}"]


def test_warm_ups_beside_a_decode_wait_for_the_budget_and_then_share_a_pass(
    s: SchedulerHarness, clock: Clock
) -> None:
    decode(s)
    overdraw(s, clock)
    s.submit(warm("a", 1), warm("b", 2), warm("c", 3))
    for _ in range(5):
        clock.now += 0.1
        assert not {"warm-a", "warm-b", "warm-c"} & set(s.step().rids)
    clock.now += 30  # 1.05 s at 5%
    batch = s.step()
    assert is_new(batch.rids)[:3] == ["warm-a", "warm-b", "warm-c"]
    figures = plugin.state(s.scheduler.tree_cache)["features"]["warmup_budget"]
    assert figures["beside_decodes"] >= 1 and figures["seconds_beside_decodes"] >= 1.0


def test_a_pass_beside_decodes_is_no_longer_than_the_budget_s(s: SchedulerHarness, clock: Clock) -> None:
    gate = s.scheduler.tree_cache.gate
    s.submit(warm("known", 1, 32))
    s.run()
    decode(s)
    gate._pace = gate.budget.longest_pass / 100
    for _ in range(12):  # a window is saved up
        clock.now += 0.1
        s.step()
    # 48 of its 80 tokens are new
    s.submit(warm("a", 1, 80), warm("b", 2), warm("c", 3, 200), warm("d", 4))
    assert is_new(s.step().rids) == ["warm-a", "warm-b"]
    batches = []
    for i in range(12):
        gate._pace = gate.budget.longest_pass / 100
        clock.now += 10 * (i % 2)  # with overlap results come a step later: they took no time here
        batches.append(is_new(s.step().rids))
    assert ["warm-c"] in batches and ["warm-d"] in batches  # a long one goes, alone


def test_a_long_warm_up_beside_decodes_is_cut_to_the_budget_s_pass(s: SchedulerHarness, clock: Clock) -> None:
    gate = s.scheduler.tree_cache.gate
    decode(s)
    for pace, new in ((gate.budget.longest_pass / 96, 96), (1000.0, 32)):
        for _ in range(25):  # a window is saved up, and an overdrawn one paid
            clock.now += 1.0
            s.step()
        gate._pace = pace
        s.submit(warm(f"{new}", new, 200))
        batch = s.step()
        assert dict(zip(batch.rids, batch.extend_lens, strict=True))[f"warm-{new}"] == new
        for _ in range(3):
            s.step()
        req = s.reqs[f"warm-{new}"]
        assert req.finished() and len(req.origin_input_ids) == new
    s.abort("decode")
    s.run()
    clock.now += 1.0
    s.submit(warm("idle", 9, 200))
    assert s.step().extend_lens == [200], "nobody waits"


@pytest.mark.parametrize(
    ("sessions", "seconds", "new"),
    [
        pytest.param([None, None], 0.0, 96, id="several use it"),
        pytest.param([None, "chain"], 0.0, 200, id="one does, and a session's final request"),
        pytest.param([None, None], 10.0, 200, id="several did long ago"),
    ],
)
def test_an_idle_engine_gets_short_warm_ups_while_others_use_it(
    s: SchedulerHarness, clock: Clock, sessions: list[str | None], seconds: float, new: int
) -> None:
    """Who comes next waits for the pass, and has nothing of it unless it is the session's own request."""
    gate = s.scheduler.tree_cache.gate
    for i, session in enumerate(sessions):
        s.submit(Request(f"real{i}", ids(20 + i, 20), 4, session_id=session))
        s.run()
    clock.now += 0.1 + seconds
    s.step()
    gate._pace = gate.budget.longest_pass / 96
    s.submit(warm("long", 9, 200))
    assert s.step().extend_lens == [new]


def test_how_long_a_pass_lasts_is_known_before_the_first_warm_up(s: SchedulerHarness, clock: Clock) -> None:
    gate = s.scheduler.tree_cache.gate
    decode(s)
    s.step()
    gate._pace = None
    clock.next_prefill = 1.0
    s.submit(Request("slow", ids(3, 20), 2))
    for _ in range(4):
        s.step()
    first = gate._pace
    # where the one that decodes is in the pass, it has a token of it
    assert 1 / 21 <= first <= 1.001 / 20
    clock.next_prefill = 2.0  # one that happens to be slower says nothing
    s.submit(Request("slower", ids(4, 20), 2))
    for _ in range(4):
        s.step()
    assert gate._pace == first and not gate._in_flight


def test_a_real_request_is_not_held_by_the_budget(s: SchedulerHarness, clock: Clock) -> None:
    decode(s)
    overdraw(s, clock)
    s.submit(warm("a", 1), Request("real", ids(5, 30), 2))
    assert "real" in s.step().rids
    assert "warm-a" not in [rid for x in range(3) for rid in s.step().rids]


def test_when_the_decode_ends_warm_ups_go(s: SchedulerHarness, clock: Clock) -> None:
    decode(s, new=12)
    overdraw(s, clock)
    s.submit(warm("a", 1))
    while "decode" not in s.reqs or not s.reqs["decode"].finished():
        s.step()
    began = clock.now
    assert not s.reqs["warm-a"].finished()  # a final request may follow at once
    s.run()
    assert s.reqs["warm-a"].finished()
    assert 0.005 < clock.now - began < 0.05


def test_a_warm_up_that_waits_when_its_final_request_comes_is_cancelled(
    s: SchedulerHarness, clock: Clock
) -> None:
    decode(s)
    overdraw(s, clock)
    s.submit(warm("a", 1), warm("b", 2))
    s.step()
    mark = len(s.sent)
    s.submit(Request("final", ids(1, 44), 3, session_id="a"))
    s.step()
    aborted = [getattr(x, "rid", None) for x in s.sent[mark:] if type(x).__name__ == "AbortReq"]
    assert aborted == ["warm-a"]
    assert [req.rid for req in s.scheduler.waiting_queue] == ["warm-b"]
    s.submit(warm("a", 1, 60))  # and one that comes later still
    s.step()
    assert [req.rid for req in s.scheduler.waiting_queue] == ["warm-b"]


def test_a_held_warm_up_can_be_aborted(s: SchedulerHarness, clock: Clock) -> None:
    decode(s)
    overdraw(s, clock)
    s.submit(warm("a", 1))
    s.step()
    s.abort("warm-a")
    s.step()
    assert s.scheduler.waiting_queue == []


def test_a_real_prompt_in_chunks_is_not_interrupted(s: SchedulerHarness) -> None:
    s.submit(Request("long", ids(6, 600), 2))
    s.step()
    s.submit(warm("a", 1))
    steps = s.run()
    first = next(i for i, x in enumerate(steps) if "warm-a" in x.rids)
    before = s.steps[: len(s.steps) - len(steps) + first]
    long = [n for x in before for rid, n in zip(x.rids, x.extend_lens, strict=False) if rid == "long"]
    assert sum(long) == 600


def test_expected_work() -> None:
    def req(prompt: int, matched: int, new: int, out: int = 0, hint: Any = None) -> Any:
        params = SimpleNamespace(
            max_new_tokens=new, custom_params=None if hint is None else {"expected_tokens": hint}
        )
        return SimpleNamespace(
            sampling_params=params,
            origin_input_ids=[0] * prompt,
            output_ids=[0] * out,
            num_matched_prefix_tokens=matched,
        )

    assert expected_work(req(100, 60, 20)) == 60
    assert expected_work(req(100, 60, 2000, hint=20)) == 60
    assert expected_work(req(100, 0, 10, hint=5000)) == 110
    assert expected_work(req(100, 100, 30, out=10)) == 30  # retracted: its answer so far is prompt


def sampling(s: SchedulerHarness) -> tuple[bool, ...]:
    """How the batch that decodes is sampled."""
    info = s.scheduler.running_batch.sampling_info
    needs = (info.need_top_p_sampling, info.need_top_k_sampling, info.need_min_p_sampling)
    return info.is_all_greedy, info.is_any_greedy, *needs


@pytest.mark.parametrize("idle", [False, True], ids=["beside a decode", "just before"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_warm_up_changes_not_how_others_are_sampled(
    s: SchedulerHarness, clock: Clock, temperature: float, idle: bool
) -> None:
    """With overlap it is in the decode batch for a step; what it asks for would stay there."""
    greedy = temperature == 0
    alone = (greedy, greedy, False, greedy, False)
    real = Request("decode", ids(70, 20), max_new_tokens=200, temperature=temperature)
    other = Request("warm", ids(5, 40), max_new_tokens=0, session_id="a", temperature=1.0 - temperature)
    s.submit(other if idle else real)
    s.step()
    if not idle:
        s.step()
        assert sampling(s) == alone
        clock.now += 30
    s.submit(real if idle else other)
    for _ in range(6):
        s.step()
    assert "warm" in s.reqs and s.reqs["warm"].finished()
    assert sampling(s) == alone
