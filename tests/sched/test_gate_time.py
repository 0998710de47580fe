"""What a warm-up's pass is taken to have lasted, which the budget is charged with."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from flashagents_runtime.scheduling.gate import Gate
from flashagents_runtime.scheduling.pass_budget import PassBudget
from flashagents_runtime.scheduling.ranks import LeadersClock

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("model")]  # SGLang has been imported

STEP = 0.005


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def batch(*new: int) -> Any:
    """A pass of warm-ups that compute so many tokens each; a decode step where there are none."""
    params = SimpleNamespace(max_new_tokens=0)
    same = {"sampling_params": params, "session_id": "a", "finished_reason": "length"}
    reqs = [SimpleNamespace(**same, extend_range=SimpleNamespace(length=n)) for n in new]
    return SimpleNamespace(forward_mode=SimpleNamespace(is_extend=lambda: bool(new)), reqs=reqs)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def gate(clock: Clock) -> Gate:
    """Of a scheduler that has decoded for a while."""
    gate = Gate(PassBudget(0.05, clock), clock)
    decoding = SimpleNamespace(
        sampling_params=SimpleNamespace(max_new_tokens=9), session_id=None, finished_reason=None
    )
    for _ in range(3):
        gate.hold(SimpleNamespace(waiting_queue=[]), SimpleNamespace(reqs=[decoding]))
        gate.launched(batch())
        clock.now += STEP
        gate.processed(batch())
    return gate


@pytest.mark.parametrize(
    ("looked_at", "seconds"),
    [
        pytest.param(0.002, 0.048, id="as-it-ended"),  # the pass begins when the step is over
        pytest.param(0.020, 0.045, id="late"),  # the step was over long before: at most one step's time ago
        pytest.param(0.049, 0.045, id="with-the-pass"),
    ],
)
def test_with_overlap_a_pass_begins_at_most_a_step_after_its_launch(
    gate: Gate, clock: Clock, looked_at: float, seconds: float
) -> None:
    launched = clock.now
    gate.launched(batch(1024, 1024))
    clock.now = launched + looked_at
    gate.processed(batch())  # of the step that ran while the pass was launched
    clock.now = launched + 0.050
    gate.processed(batch(1024, 1024))
    assert gate.figures.seconds_beside_decodes == pytest.approx(seconds)


def test_without_overlap_it_begins_at_its_launch(gate: Gate, clock: Clock) -> None:
    gate.launched(batch(512))
    clock.now += 0.015
    gate.processed(batch(512))
    assert gate.figures.seconds_beside_decodes == pytest.approx(0.015)


@pytest.mark.parametrize(
    ("launch", "between", "results", "known"),
    [
        pytest.param(True, [], True, True, id="every-step"),
        pytest.param(True, [True], True, True, id="with-overlap"),
        pytest.param(False, [True], True, False, id="no-time-at-its-launch"),
        pytest.param(True, [False], True, False, id="no-time-when-it-ended"),
    ],
)
def test_over_ranks_a_pass_is_measured_between_steps_that_have_a_time(
    launch: bool, between: list[bool], results: bool, known: bool
) -> None:
    """Its results are read when a step has a time; they say how long it took if that is the next step."""
    now = Clock()
    ranks = LeadersClock(now)
    gate = Gate(PassBudget(0.05, ranks), ranks)

    def step(has_time: bool) -> None:
        ranks.follow(ranks.lead([object()] if has_time else []))

    step(True)
    now.now += 0.5
    step(launch)
    gate.launched(batch(512))
    for has_time in between:
        now.now += 0.010
        step(has_time)
    now.now += 0.010
    gate.processed(batch(512))
    step(results)
    assert gate._pace == (pytest.approx(0.010 * (1 + len(between)) / 512) if known else None)
    assert not gate._in_flight and not gate._unread


def test_over_ranks_what_is_admitted_is_part_of_the_checksum() -> None:
    sums = set()
    for rid, prefix, new in (("a", 0, 9), ("b", 0, 9), ("a", 1, 9), ("a", 0, 8)):
        ranks = LeadersClock(Clock())
        made = SimpleNamespace(reqs=[SimpleNamespace(rid=rid)], prefix_lens=[prefix], extend_lens=[new])
        plan = SimpleNamespace(batch_to_run=made, running_batch=SimpleNamespace(reqs=[]))
        Gate(PassBudget(0.05, ranks), ranks).agree(plan, held=False)
        assert ranks.busy
        sums.add(ranks.lead([object()])[-1].decided)
    assert len(sums) == 4
