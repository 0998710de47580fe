"""A hook of the plug-in that raises: the scheduler stops with that very error."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flashagents_runtime.intra_turn.publish import Publisher
from flashagents_runtime.scheduling.gate import Gate
from flashagents_runtime.scheduling.pins import Pins
from helpers.scheduler_harness import Request, SchedulerHarness, tiny_model

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield tiny_model(tmp_path_factory.mktemp("models"))


@pytest.mark.parametrize(
    ("part", "method"),
    [
        (Publisher, "begin_pass"),
        (Publisher, "publish"),
        (Publisher, "end_pass"),
        (Gate, "hold"),
        (Gate, "offered"),
        (Gate, "processed"),
        (Pins, "finished"),
    ],
)
def test_a_hook_that_raises_is_not_passed_over(
    model: Path, part: type[Any], method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SGLang's loop ends with it, and the host with that: waiting calls raise EngineDiedError."""
    rng = random.Random(1)
    prompts = [[rng.randrange(4, 500) for _ in range(60)] for _ in range(4)]
    original = getattr(part, method)
    calls = 0

    def fails_at_third(self: Any, *args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise RuntimeError("the hook fell over")
        return original(self, *args)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with SchedulerHarness(model) as scheduler:
            monkeypatch.setattr(part, method, fails_at_third)
            scheduler.submit(*[Request(f"r{i}", p, 2) for i, p in enumerate(prompts)])
            with pytest.raises(RuntimeError, match="the hook fell over"):
                scheduler.run()
                scheduler.submit(Request("s", prompts[0], 2))
                scheduler.run()
