"""The account of warm-up passes, against a clock that stands still until it is told to go."""

from __future__ import annotations

import random

import pytest

from flashagents_runtime.scheduling import SoftPins, WarmupBudgetFeature
from flashagents_runtime.scheduling.pass_budget import PassBudget
from flashagents_runtime.sglang_seams import SeamError


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def simulate(budget: PassBudget, clock: Clock, seconds: float, pass_seconds: list[float]) -> tuple[int, int]:
    """Decode steps of 5 ms with a warm-up always waiting; returns decode steps and passes in `seconds`."""
    steps = passes = 0
    while clock.now < seconds:
        budget.pass_time(True)
        lasts = pass_seconds[passes % len(pass_seconds)]
        if budget.may_start(True, lasts):
            clock.now += lasts
            budget.pay(lasts)
            passes += 1
        clock.now += 0.005
        steps += 1
    return steps, passes


@pytest.mark.parametrize("share", [0.01, 0.05, 0.2])
@pytest.mark.parametrize("seconds", [2.0, 60.0])
@pytest.mark.parametrize("seed", range(4))
def test_decodes_are_slowed_by_the_share_at_most(share: float, seconds: float, seed: int) -> None:
    """As long as no pass lasts longer than a window gives."""
    rng = random.Random(seed)
    clock = Clock()
    lengths = [rng.uniform(0.005, share) for _ in range(50)]
    steps, passes = simulate(PassBudget(share, clock), clock, seconds, lengths)
    slower = clock.now / (steps * 0.005)
    assert slower <= 1 + share
    if seconds > 10:
        assert passes > 5 and slower > 1 + 0.8 * share


def test_a_pass_that_is_too_long_is_overdrawn_and_waited_for() -> None:
    clock = Clock()
    budget = PassBudget(0.05, clock)

    def wait() -> float:
        began = clock.now
        while True:
            budget.pass_time(True)
            if budget.may_start(True, 0.2):
                return clock.now - began
            clock.now += 0.01

    budget.pass_time(False)
    assert 0.9 < wait() < 1.1  # a full window
    budget.pay(0.2)
    clock.now += 0.2
    assert 3.9 < wait() < 4.1  # 0.2 / 0.05, and nothing earned by the pass itself


def test_an_idle_engine_is_not_held_and_saves_nothing() -> None:
    clock = Clock()
    budget = PassBudget(0.05, clock)
    for _ in range(100):
        clock.now += 1
        budget.pass_time(False)
        assert budget.may_start(False, 0.5)
    budget.pass_time(True)
    assert not budget.may_start(True, 0.001)
    assert budget.may_start(True, 0.0)  # nothing has been measured


def test_no_limit() -> None:
    clock = Clock()
    budget = PassBudget(float("inf"), clock)
    for _ in range(10):
        budget.pass_time(True)
        assert budget.may_start(True, 1e9)
        budget.pay(1.0)


def test_a_share_must_be_above_0() -> None:
    with pytest.raises(ValueError, match="above 0"):
        PassBudget(0, Clock())


@pytest.mark.parametrize("value", ["0", "-1", "soon", "nan"])
@pytest.mark.parametrize(
    ("variable", "feature"),
    [
        ("FLASHAGENTS_PIN_TTL", SoftPins()),
        ("FLASHAGENTS_PIN_SHARE", SoftPins()),
        ("FLASHAGENTS_WARMUP_SHARE", WarmupBudgetFeature()),
    ],
)
def test_settings_are_checked_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, variable: str, feature: SoftPins | WarmupBudgetFeature, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(SeamError, match=variable):
        feature.refusal(None, None)


@pytest.mark.parametrize("share", [0.05, float("inf")])
@pytest.mark.parametrize("running", [2, 5, 33])
def test_the_more_decode_the_less_warm_ups_get_where_no_share_was_set(share: float, running: int) -> None:
    """The others together lose no more than the one that is warmed can gain."""
    clock = Clock()
    budget = PassBudget(share, clock, shrinks=True)
    steps = 0
    while clock.now < 200:
        budget.pass_time(running)
        if budget.may_start(True, 0.002):
            clock.now += 0.002
            budget.pay(0.002)
        clock.now += 0.005
        steps += 1
    slower = clock.now / (steps * 0.005) - 1
    assert slower <= min(share, 1 / (running - 1), 0.002 / 0.005) * 1.01
    assert slower > 0.9 * min(share, 1 / (running - 1), 0.002 / 0.005)


def test_short_requests_are_kept_from_long_passes() -> None:
    """No pass takes more than twice the share of what a request takes; short ones count for less."""
    budget = PassBudget(0.05, Clock())
    budget.pass_time(10)
    assert budget.longest_pass == pytest.approx(0.05)
    for _ in range(5):
        budget.decoded(0.3)
    assert budget.longest_pass == pytest.approx(2 * 0.05 * 0.3)
    for _ in range(100):
        budget.decoded(0.001)
    assert budget.longest_pass == pytest.approx(0.05 * 0.2), "never less"
    for seconds in (0.02, 0.02, 2.0) * 10:  # a selector's words beside an agent's
        budget.decoded(seconds)
    assert budget.longest_pass == pytest.approx(0.05), "never more"
    for _ in range(50):
        budget.decoded(0.3)
    before = budget.longest_pass
    budget.decoded(-1e9)
    assert budget.longest_pass == pytest.approx(before), "a clock that was set back"
    budget.pass_time(0)
    assert budget.longest_pass == pytest.approx(0.05), "nobody waits"


def test_one_that_decodes_alone_is_not_spared_on_a_cpu() -> None:
    clock = Clock()
    budget = PassBudget(float("inf"), clock, shrinks=True)
    budget.pass_time(1)
    assert budget.may_start(True, 100.0)
    budget.pay(100.0)
    budget.pass_time(3)
    assert budget.longest_pass == 0.5
    budget.pay(1.0)
    budget.pass_time(3)
    assert not budget.may_start(True, 0.1), "overdrawn"
    budget.pass_time(1)
    assert budget.may_start(True, 100.0)
