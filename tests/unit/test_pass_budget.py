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
        if budget.may_start(True):
            lasted = pass_seconds[passes % len(pass_seconds)]
            clock.now += lasted
            budget.pay(lasted)
            passes += 1
        clock.now += 0.005
        steps += 1
    return steps, passes


@pytest.mark.parametrize("share", [0.01, 0.05, 0.2])
@pytest.mark.parametrize("seed", range(4))
def test_decodes_are_slowed_by_the_share_at_most(share: float, seed: int) -> None:
    rng = random.Random(seed)
    clock = Clock()
    lengths = [rng.uniform(0.005, 0.2) for _ in range(50)]
    steps, passes = simulate(PassBudget(share, clock), clock, 60.0, lengths)
    slower = clock.now / (steps * 0.005)
    assert passes > 5
    # One window saved up and one pass overdrawn, in sixty seconds.
    assert 1 + 0.8 * share < slower < 1 + share + (share + 0.2) / 60


def test_an_idle_engine_is_not_held() -> None:
    clock = Clock()
    budget = PassBudget(0.05, clock)
    for _ in range(100):
        assert budget.may_start(False)
        budget.pay(0.5)
    assert budget.may_start(False)
    assert budget.may_start(True)  # what ran while nothing decoded is forgotten


def test_a_long_pass_is_waited_for() -> None:
    clock = Clock()
    budget = PassBudget(0.05, clock)
    assert budget.may_start(True)
    budget.pay(0.2)
    clock.now += 0.2
    waited = 0
    while not budget.may_start(True):
        clock.now += 0.01
        waited += 1
    assert 3.9 < waited * 0.01 < 4.1  # 0.2 / 0.05, and nothing earned by the pass itself


def test_no_limit() -> None:
    clock = Clock()
    budget = PassBudget(float("inf"), clock)
    for _ in range(10):
        assert budget.may_start(True)
        budget.pay(1.0)


def test_a_share_must_be_above_0() -> None:
    with pytest.raises(ValueError, match="above 0"):
        PassBudget(0, Clock())


@pytest.mark.parametrize("value", ["0", "-1", "soon", "nan"])
@pytest.mark.parametrize(
    ("variable", "feature"),
    [("FLASHAGENTS_PIN_TTL", SoftPins()), ("FLASHAGENTS_WARMUP_SHARE", WarmupBudgetFeature())],
)
def test_settings_are_checked_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, variable: str, feature: SoftPins | WarmupBudgetFeature, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(SeamError, match=variable):
        feature.refusal(None, None)
