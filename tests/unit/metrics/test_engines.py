"""Engines as Prometheus sees them, and what the plug-in counts in them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from flashagents_runtime import EngineState, ScriptedEngine
from flashagents_runtime.metrics import EngineCollector
from flashagents_runtime.plugin_figures import numbers, plugin_figures
from flashagents_runtime.trace import engine_name
from helpers.plugged_engine import FIGURES, SERVER, PluggedEngine


class Silent(ScriptedEngine):
    async def state(self) -> EngineState:
        await asyncio.sleep(60)
        raise AssertionError


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def collect(registry: CollectorRegistry) -> Iterator[Any]:
    made: list[EngineCollector] = []

    def collect(*engines: ScriptedEngine) -> EngineCollector:
        made.append(EngineCollector(engines, registry, timeout=0.2))
        return made[-1]

    yield collect
    for collector in made:
        collector.close()


async def test_numbers_of_active_features() -> None:
    assert numbers(SERVER) == FIGURES == await plugin_figures(PluggedEngine())
    [scheduler] = SERVER["internal_states"]
    assert numbers(scheduler) == FIGURES, "as an embedded engine says it"
    assert await plugin_figures(ScriptedEngine()) == {}


@pytest.mark.parametrize(
    "server",
    [
        {},
        {"internal_states": []},
        {"internal_states": [None]},
        {"internal_states": [{"flashagents": 1}]},
        {"internal_states": [{"flashagents": {"features": [1]}}]},
        {"internal_states": [{"flashagents": {"features": {"a": 1}}}]},
    ],
)
def test_other_servers_have_none(server: dict[str, Any]) -> None:
    assert numbers(server) == {}


async def test_what_prometheus_sees(registry: CollectorRegistry, collect: Any) -> None:
    engine = PluggedEngine(max_total_tokens=1000)
    await engine.start()
    collect(engine)
    name = engine_name(engine)

    def value(metric: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"flashagents_{metric}", {"engine": name, **labels})

    assert await asyncio.to_thread(value, "kv_tokens", state="free") == 1000
    assert await asyncio.to_thread(value, "requests", state="running") == 0
    assert await asyncio.to_thread(value, "plugin", feature="soft_pins", figure="pins") == 3
    assert await asyncio.to_thread(value, "plugin", feature="lora_sharing", figure="token_bytes_rows") == 1024
    assert await asyncio.to_thread(value, "pins") == 3
    assert await asyncio.to_thread(value, "lr_bytes", state="allocated") == 1024 * 1000
    assert await asyncio.to_thread(value, "lr_bytes", state="in use") == 0


async def test_engines_that_are_not_up_are_left_out(
    registry: CollectorRegistry, collect: Any, caplog: pytest.LogCaptureFixture
) -> None:
    silent, sleeping, good = Silent(), ScriptedEngine(), ScriptedEngine()
    await silent.start()
    await good.start()
    collect(silent, sleeping, good)
    families = await asyncio.to_thread(lambda: list(registry.collect()))
    seen = {sample.labels["engine"] for family in families for sample in family.samples}
    assert seen == {engine_name(good)}
    assert sleeping.info is None, "a scrape starts no engine"
    assert "did not say how it is" in caplog.text


def test_after_closing_nothing_is_asked(registry: CollectorRegistry, collect: Any) -> None:
    collector = collect(ScriptedEngine())
    collector.close()
    collector.close()
    assert list(registry.collect()) == []
