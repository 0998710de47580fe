"""Reckoned time: what the plug-in costs real requests, the same on every machine."""

from __future__ import annotations

import operator
from pathlib import Path

import pytest

from helpers.reckoned import KINDS, Load, Reckoning, Run
from helpers.reckoned_steps import Pace
from helpers.scheduler_harness import SchedulerHarness

pytestmark = pytest.mark.engine

PACE = Pace(step=0.008, token=4e-5)
LOAD = Load(workflows=10, turns=6)
HEADS = Load(workflows=2, turns=6, head=300, agents=3)
FIGURES = operator.attrgetter("served", "prompt", "cached", "warmed", "outputs")


@pytest.fixture(scope="module")
def runs(model: Path) -> dict[str, Reckoning]:
    """Of stock, and with the plug-in by what is forecast."""
    found = {}
    settings = {"max_total_tokens": 4096, "chunked_prefill_size": 2048}
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("FLASHAGENTS_WARMUP_SHARE", "0.05")
        with SchedulerHarness(model, radix_cache_backend=None, **settings) as s:
            found["stock"] = Run(s, PACE).play(LOAD)
            found["stock, own heads"] = Run(s, PACE).play(HEADS)
        with SchedulerHarness(model, **settings) as s:
            for kind in ("none", *KINDS):
                found[kind] = Run(s, PACE).play(LOAD, kind)
            found["none again"] = Run(s, PACE).play(LOAD)
            found["right"] = Run(s, PACE).play(HEADS, "right")
    return found


def test_the_same_again(runs: dict[str, Reckoning]) -> None:
    assert FIGURES(runs["none"]) == FIGURES(runs["none again"])


def test_the_plug_in_alone_costs_no_pass_and_no_token(runs: dict[str, Reckoning]) -> None:
    ours, stock = runs["none"], runs["stock"]
    assert ours.outputs == stock.outputs
    for share in (0.5, 0.99):
        assert ours.latency(share) <= 1.01 * stock.latency(share)
        assert ours.first(share) <= 1.01 * stock.first(share)


@pytest.mark.parametrize("kind", KINDS)
def test_useless_warm_ups_change_no_answer(runs: dict[str, Reckoning], kind: str) -> None:
    ours, stock = runs[kind], runs["stock"]
    assert ours.outputs == stock.outputs
    assert ours.warmed > 0
    # docs/reliability.md says what more of them cost the last one in a hundred.
    assert ours.latency(0.5) <= 1.1 * stock.latency(0.5)
    assert ours.latency(0.99) <= 1.1 * stock.latency(0.99)


def test_right_forecasts_are_of_use(runs: dict[str, Reckoning]) -> None:
    ours, stock = runs["right"], runs["stock, own heads"]
    assert ours.outputs == stock.outputs
    assert ours.cached > 1.2 * stock.cached
    assert ours.latency(0.5) < stock.latency(0.5)
    assert ours.latency(0.99) <= 1.05 * stock.latency(0.99)
