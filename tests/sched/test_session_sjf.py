"""Shortest job first in a real scheduler."""

from __future__ import annotations

from pathlib import Path

import pytest

from flashagents_runtime import plugin
from helpers.kv_model import KvModel
from helpers.scheduler_harness import Request, SchedulerHarness

pytestmark = pytest.mark.engine


def ids(seed: int, n: int) -> list[int]:
    return [4 + (seed * 41 + i * (2 * seed + 7)) % 490 for i in range(n)]


def warm(session: str, seed: int, n: int) -> Request:
    return Request(f"warm-{session}", ids(seed, n), max_new_tokens=0, session_id=session)


@pytest.mark.parametrize("policy", ["fcfs", "lpm"])
def test_shortest_job_first(model: Path, monkeypatch: pytest.MonkeyPatch, policy: str) -> None:
    monkeypatch.setenv("FLASHAGENTS_SJF", "1")
    with SchedulerHarness(model, check=KvModel(), max_running_requests=1, schedule_policy=policy) as s:
        assert plugin.state(s.scheduler.tree_cache)["features"]["sjf"]["active"]
        s.submit(warm("a", 1, 120))
        s.run()

        def order(*requests: Request) -> list[str]:
            first = len(s.steps)
            s.submit(*requests)
            s.run()
            return [rid for x in s.steps[first:] if x.extend_lens for rid in x.rids]

        requests = [
            Request("long", ids(2, 100), 8),
            Request("answer", ids(3, 20), 60),
            Request("warm", ids(1, 120) + ids(9, 10), 8, session_id="a"),
            Request("short", ids(4, 30), 8),
        ]
        assert order(*requests) == ["warm", "short", "answer", "long"]
        now = [1000.0]
        s.scheduler.tree_cache.order._clock = lambda: now[0]
        s.submit(Request("old", ids(20, 200), 4), Request("running", ids(21, 10), 30))
        s.step()
        now[0] += 60
        assert order(Request("new", ids(22, 10), 2))[:2] == ["old", "new"]


def test_sjf_and_priorities_exclude_each_other(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLASHAGENTS_SJF", "1")
    with SchedulerHarness(model, enable_priority_scheduling=True) as s:
        assert "priority" in plugin.state(s.scheduler.tree_cache)["features"]["sjf"]["reason"]
