"""An idle scheduler sleeps until a message comes, but not over warm-ups that it holds back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from flashagents_runtime.host.build import default_args
from flashagents_runtime.scheduling.hooks import BUDGET, around_maybe_sleep_on_idle


@pytest.mark.parametrize(
    ("waiting", "sleeper", "sleeps"),
    [([], object(), True), (["a warm-up"], object(), False), (["a warm-up"], None, True)],
    ids=["nothing waits", "a warm-up is held", "sleep_on_idle is off"],
)
def test_it_sleeps_only_while_nothing_waits(waiting: list[str], sleeper: Any, sleeps: bool) -> None:
    slept = []
    scheduler = SimpleNamespace(waiting_queue=waiting, idle_sleeper=sleeper)
    around_maybe_sleep_on_idle(slept.append, scheduler)
    assert bool(slept) is sleeps


def test_it_is_hooked_and_asked_for_where_cores_are_few() -> None:
    assert around_maybe_sleep_on_idle in BUDGET.values()
    assert default_args(cuda=False)["sleep_on_idle"] is True
    assert "sleep_on_idle" not in default_args(cuda=True)
