"""What is counted for Prometheus, and the dashboard that asks for it."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from flashagents_runtime import _extras, trace
from flashagents_runtime.metrics import EngineCollector, PrometheusSink, dashboard
from flashagents_runtime.metrics.prometheus import METRICS
from flashagents_runtime.trace import Handoff, SessionEnd, Trace, Turn
from helpers.clients import scripted, user
from helpers.plugged_engine import PluggedEngine
from helpers.traces import ENGINE, made_up

ENGINE_METRICS = (
    *("flashagents_kv_tokens", "flashagents_requests", "flashagents_plugin"),
    *("flashagents_pins", "flashagents_lr_bytes"),
)


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def sink(registry: CollectorRegistry) -> PrometheusSink:
    return PrometheusSink(registry)


def test_the_counts_are_those_of_the_trace(registry: CollectorRegistry, sink: PrometheusSink) -> None:
    recorded = made_up(agents=3, workflows=2, turns=6)
    for event in recorded.events:
        sink.record(event)
    summary, view = recorded.view.summary, recorded.view

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"flashagents_{name}", {"engine": ENGINE, **labels})

    assert value("turns_total", outcome="done") == summary.turns
    for name in ("prompt", "cached", "prewarmed", "shared_in_turn", "completion", "wasted"):
        assert value(f"{name}_tokens_total") == getattr(summary, name), name
    assert value("ahead_tokens_total") == sum(end.computed for end in view.sessions)
    assert value("handoff_seconds_count") == len(view.handoffs)
    assert value("handoff_seconds_sum") == pytest.approx(sum(g.end - g.start for g in view.handoffs))
    assert value("prefill_chunk_seconds_count", outcome="cancelled") == summary.aborted_chunks
    assert registry.get_sample_value("flashagents_tool_seconds_count", {"tool": "search"}) == len(view.tools)


def test_a_recorded_gap_is_counted_once(registry: CollectorRegistry, sink: PrometheusSink) -> None:
    for agent, start, rid in (("a", 0.0, "r1"), ("b", 2.0, "r2")):
        if agent == "b":
            sink.record(Handoff(agent="b", workflow="w", upstream="a", start=1, end=2.5, rid="r2"))
        sink.record(Turn(agent=agent, workflow="w", rid=rid, start=start, first=start + 0.5, end=start + 1))
    assert registry.get_sample_value("flashagents_handoff_seconds_count", {"engine": ""}) == 1
    assert registry.get_sample_value("flashagents_handoff_seconds_sum", {"engine": ""}) == 1.5


async def test_it_counts_beside_a_trace(registry: CollectorRegistry, sink: PrometheusSink) -> None:
    client, _ = scripted("One.", "Two.")
    with Trace() as recorded:
        sink.start()
        await client.create([user()])
        sink.stop()
        await client.create([user()])
    assert not trace.recording()
    assert len(recorded) == 2
    text = generate_latest(registry).decode()
    assert re.search(r'flashagents_turns_total\{engine="scripted:[^"]+",outcome="done"\} 1.0', text)


def test_a_missing_extra_is_named(registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_extras, "find_missing", lambda modules: ["prometheus_client"])
    with pytest.raises(ImportError, match=r"flashagents-autogen\[metrics\]"):
        PrometheusSink(registry)


def queries() -> list[tuple[str, dict[str, Any]]]:
    return [(target["expr"], panel) for panel in dashboard()["panels"] for target in panel["targets"]]


@pytest.mark.parametrize(("query", "panel"), queries())
async def test_every_query_names_what_is_exported(
    query: str, panel: dict[str, Any], registry: CollectorRegistry, sink: PrometheusSink
) -> None:
    for event in [*made_up(turns=6).events, SessionEnd(session="s", time=0, engine=ENGINE)]:
        sink.record(event)
    engine = PluggedEngine()
    await engine.start()
    collector = EngineCollector([engine], registry)
    text = await asyncio.to_thread(generate_latest, registry)
    collector.close()
    families = list(text_string_to_metric_families(text.decode()))
    labels = {sample.name: set(sample.labels) for family in families for sample in family.samples}
    names = re.findall(r"\bflashagents_\w+", query)
    assert names and set(names) <= labels.keys()
    grouped = {name for group in re.findall(r"by \(([^)]*)\)", query) for name in group.split(", ")}
    assert grouped <= set().union(*(labels[name] for name in names))
    assert query.count("(") == query.count(")")
    shown = {
        name for target in panel["targets"] for name in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])
    }
    assert shown <= grouped or len(panel["targets"]) > 1


def test_the_dashboard_shows_every_metric_and_fits_its_grid() -> None:
    board = dashboard()
    asked = " ".join(query for query, _ in queries())
    assert all(name in asked for name in (*METRICS, *ENGINE_METRICS))
    cells = [
        (x, y)
        for panel in board["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells)), "no panel covers another"
    assert max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    assert {v["name"] for v in board["templating"]["list"]} == {"source", "job"}
