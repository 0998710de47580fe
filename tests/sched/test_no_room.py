"""Warm-ups for which a full pool has no room, in a real scheduler by a clock that the test moves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from helpers.scheduler_harness import Request, SchedulerHarness

pytestmark = pytest.mark.engine


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_warm_up_without_room_is_not_tried_at_each_step(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looking its prompt up takes the scheduler a part of each decode step."""
    monkeypatch.setenv("FLASHAGENTS_WARMUP_SHARE", "inf")
    clock = Clock()
    tried: list[list[str]] = []
    with SchedulerHarness(model, max_total_tokens=512, chunked_prefill_size=512) as s:
        gate = s.scheduler.tree_cache.gate
        gate._clock = gate.budget._clock = clock
        gate._processed_at = gate.budget._at = clock.now
        look = s.scheduler.policy.calc_priority

        def count(waiting_queue: list[Any], *args: Any, **kwargs: Any) -> Any:
            tried.append([req.rid for req in waiting_queue])
            return look(waiting_queue, *args, **kwargs)

        monkeypatch.setattr(s.scheduler.policy, "calc_priority", count)
        s.submit(Request("decode", list(range(4, 24)), max_new_tokens=400))
        s.step()
        s.step()
        s.submit(Request("warm-large", list(range(30, 280)), max_new_tokens=0, session_id="large"))
        tried.clear()
        for _ in range(20):
            s.step()
            clock.now += 0.005
        before = len(tried)
        assert 1 <= before <= 2, tried
        clock.now += 0.2
        s.step()
        s.step()
        assert len(tried) == before + 1  # from time to time
        s.submit(Request("small", list(range(290, 300)), max_new_tokens=2))  # real requests as ever
        s.step()
        assert "small" in tried[-1] and s.reqs["small"].output_ids
