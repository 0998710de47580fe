"""Priority scheduling with preemption."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.ab import run
from helpers.kv_model import KvModel
from helpers.scheduler_harness import Request, SchedulerHarness

from .conftest import Tokens

pytestmark = pytest.mark.engine


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("overlap", [False, True], ids=["normal", "overlap"])
def test_preemption(model: Path, tokens: Tokens, page_size: int, overlap: bool) -> None:
    prefix = tokens(96)
    low = [Request(f"l{i}", prefix + tokens(8), 40, priority=0) for i in range(4)]
    high = [Request(f"h{i}", prefix[:64] + tokens(8), 6, priority=100) for i in range(4)]
    with SchedulerHarness(
        model,
        check=KvModel(),
        page_size=page_size,
        overlap=overlap,
        max_running_requests=4,
        enable_priority_scheduling=True,
        priority_scheduling_preemption_threshold=10,
    ) as s:
        ours = run(s, True, [(0, low), (6, high)])
        assert any(req.retraction_count for req in ours.reqs.values())
        alone: dict[str, list[int]] = {}
        for request in (*low[:2], *high[:2]):
            alone |= run(s, False, [request]).outputs
        assert {rid: ours.outputs[rid] for rid in alone} == alone
