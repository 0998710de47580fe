"""A penalised answer does not depend on the requests that arrive while it is decoded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from helpers.scheduler_harness import Request, SchedulerHarness

pytestmark = pytest.mark.engine

PROMPT = list(range(10, 60))
TOKENS = 24
PENALTIES = {
    "repetition": {"repetition_penalty": 1.5},
    # Rewards, and larger than users may ask for: the random model does not repeat itself otherwise.
    "frequency": {"frequency_penalty": -8.0},
    "presence": {"presence_penalty": -8.0},
}


def answer(model: Path, penalties: dict[str, float], arrivals: dict[int, int], **options: Any) -> list[int]:
    """The tokens of one request; after the given steps others arrive, each with so many new tokens."""
    with SchedulerHarness(model, overlap=True, **options) as s:
        s.submit(Request("a", PROMPT, TOKENS, penalties=penalties))
        for step in range(TOKENS + 12):
            for arrival, tokens in arrivals.items():
                if arrival == step:
                    prompt = [100 + step + i for i in range(20)]
                    s.submit(Request(f"other-{step}", prompt, tokens))
            s.step()
        s.run()
        return s.output("a")


ARRIVALS = {
    "one warm-up": {4: 0},
    "many warm-ups": {2: 0, 3: 0, 6: 0, 9: 0, 15: 0},
    "one that speaks": {5: 6},
    "at the first step": {1: 0},
}


@pytest.mark.parametrize("penalties", PENALTIES.values(), ids=PENALTIES)
def test_others_do_not_change_a_penalised_answer(model: Path, penalties: dict[str, float]) -> None:
    ours = {"radix_cache_backend": "flashagents"}
    alone = answer(model, penalties, {}, **ours)
    assert alone != answer(model, {}, {}, **ours), "the penalty does something"
    for name, arrivals in ARRIVALS.items():
        assert answer(model, penalties, arrivals, **ours) == alone, name


def test_undisturbed_it_is_what_sglang_says(model: Path) -> None:
    for penalties in PENALTIES.values():
        alone = answer(model, penalties, {}, radix_cache_backend="flashagents")
        assert alone == answer(model, penalties, {})


def test_sglangs_own_answer_depends_on_them(model: Path) -> None:
    """The control: where this fails, the feature is no longer needed."""
    changed = 0
    for penalties in PENALTIES.values():
        alone = answer(model, penalties, {})
        changed += sum(answer(model, penalties, arrivals) != alone for arrivals in ARRIVALS.values())
    assert changed
