"""Prometheus gauges of engines: asked when Prometheus asks. Needs the extra `metrics`."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from .._extras import require
from ..engine import Engine
from ..plugin_figures import Figures, plugin_figures
from ..trace import engine_name
from ..types import EngineState

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

_log = logging.getLogger(__name__)


class EngineCollector:
    """Exports how full engines are, and what our plug-in counts in them: pins, warm-ups, LR rows.

    - ``flashagents_kv_tokens{engine, state}``: "used", "cached" and "free", together the whole KV cache.
    - ``flashagents_requests{engine, state}``: "running" and "waiting".
    - ``flashagents_plugin{engine, feature, figure}``: every number of `plugin_figures`.

    An engine that has not started, or does not answer in time, is left out of that scrape.

    Args:
        engines: whom to ask.
        registry: prometheus_client's own by default.
        timeout: seconds to wait for each engine.

    Raises ImportError where the extra is missing.
    """

    def __init__(
        self, engines: Iterable[Engine], registry: CollectorRegistry | None = None, *, timeout: float = 2.0
    ) -> None:
        client = require("prometheus_client", "metrics")
        self._family: Any = require("prometheus_client.core", "metrics").GaugeMetricFamily
        self._engines = list(engines)
        self._timeout = timeout
        self._registry: Any = registry if registry is not None else client.REGISTRY
        self._loop = asyncio.new_event_loop()  # scrapes come in threads; one loop keeps connections
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="flashagents-metrics", daemon=True
        )
        self._thread.start()
        self._registry.register(self)

    def close(self) -> None:
        """Ask no more. The engines stay as they are; close remote ones first, they hold connections."""
        if self._thread.is_alive():
            self._registry.unregister(self)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def describe(self) -> list[Any]:
        """Nothing is known before the first scrape; also keeps registering from asking the engines."""
        return []

    def collect(self) -> Iterator[Any]:
        """Called by the registry at each scrape, from any thread."""
        kv = self._family("flashagents_kv_tokens", "Tokens of the KV cache.", labels=["engine", "state"])
        requests = self._family("flashagents_requests", "Requests in the engine.", labels=["engine", "state"])
        plugin = self._family(
            "flashagents_plugin", "What the plug-in counts.", labels=["engine", "feature", "figure"]
        )
        pins = self._family(
            "flashagents_pins", "Prefill sessions whose KV is evicted last.", labels=["engine"]
        )
        rows = self._family(
            "flashagents_lr_bytes",
            "LR rows of shared LoRA caches, beside K and V.",
            labels=["engine", "state"],
        )
        for engine in self._engines:
            found = self._ask(engine)
            if found is None:
                continue
            name, (state, figures) = engine_name(engine), found
            for part in ("used", "cached", "free"):
                kv.add_metric([name, part], getattr(state, f"kv_{part}"))
            for part in ("running", "waiting"):
                requests.add_metric([name, part], getattr(state, part))
            for feature, counted in figures.items():
                for figure, value in counted.items():
                    plugin.add_metric([name, feature, figure], value)
            if "pins" in (soft := figures.get("soft_pins", {})):
                pins.add_metric([name], soft["pins"])
            if "token_bytes_rows" in (sharing := figures.get("lora_sharing", {})):
                each = sharing["token_bytes_rows"]
                rows.add_metric([name, "allocated"], each * state.kv_total)
                rows.add_metric([name, "in use"], each * (state.kv_total - state.kv_free))
        yield from (kv, requests, plugin, pins, rows)

    def _ask(self, engine: Engine) -> tuple[EngineState, Figures] | None:
        if engine.info is None:
            return None  # asking would start it

        async def look() -> tuple[EngineState, Figures]:
            async with asyncio.timeout(self._timeout):
                return await engine.state(), await plugin_figures(engine)

        try:
            return asyncio.run_coroutine_threadsafe(look(), self._loop).result(self._timeout + 1)
        except Exception as error:
            _log.warning("an engine did not say how it is: %r", error)
            return None


__all__ = ["EngineCollector"]
