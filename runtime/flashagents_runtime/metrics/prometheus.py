"""A trace sink that counts for Prometheus. Needs the extra `metrics`."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Self

from .._extras import require
from ..trace import AnyEvent, Chunk, Gaps, Handoff, SessionEnd, ToolRun, Turn, add_sink, remove_sink

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

SECONDS = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5, 5, 10, 30)

#: name (without Prometheus' own endings): kind, help, labels
METRICS = {
    "flashagents_handoff_seconds": (
        "Histogram",
        "From an agent's last token to the first token of the agent that follows it.",
        ("engine",),
    ),
    "flashagents_first_token_seconds": (
        "Histogram",
        "From an agent's request to its first token.",
        ("engine",),
    ),
    "flashagents_prefill_chunk_seconds": (
        "Histogram",
        "Warm-up requests: parts of a prompt prefilled ahead of its turn.",
        ("engine", "outcome"),
    ),
    "flashagents_turns": ("Counter", "Answers of agents.", ("engine", "outcome")),
    "flashagents_prompt_tokens": ("Counter", "Tokens of agents' prompts.", ("engine",)),
    "flashagents_cached_tokens": ("Counter", "Of these, found in the KV cache.", ("engine",)),
    "flashagents_prewarmed_tokens": ("Counter", "Of the cached ones, prefilled ahead.", ("engine",)),
    "flashagents_shared_in_turn_tokens": (
        "Counter",
        "Of the cached ones, computed by another request of the same pass.",
        ("engine",),
    ),
    "flashagents_completion_tokens": ("Counter", "Generated tokens.", ("engine",)),
    "flashagents_ahead_tokens": ("Counter", "Tokens computed ahead of a turn.", ("engine",)),
    "flashagents_wasted_tokens": ("Counter", "Of those computed ahead, computed in vain.", ("engine",)),
    "flashagents_tool_seconds": ("Histogram", "Tools that agents called.", ("tool",)),
}


class PrometheusSink:
    """Counts what happens in this process; labels are engines, outcomes and tools, never agents or workflows.

    Args:
        registry: where the metrics are registered; prometheus_client's own by default, which
            `prometheus_client.start_http_server` exports.

    Raises:
        ImportError: the extra is missing.
        ValueError: the registry has these metrics already.

    Example:
        >>> prometheus_client.start_http_server(9464)
        >>> PrometheusSink().start()
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        client = require("prometheus_client", "metrics")
        registry = registry if registry is not None else client.REGISTRY
        self._metrics: dict[str, Any] = {}
        for name, (kind, text, labels) in METRICS.items():
            more = {"buckets": SECONDS} if kind == "Histogram" else {}
            self._metrics[name] = getattr(client, kind)(name, text, labels, registry=registry, **more)
        self._gaps = Gaps()
        self._told: dict[str, None] = {}  # requests whose gap was recorded by somebody else
        self._lock = threading.Lock()

    def start(self) -> Self:
        """Count from now on; twice is once."""
        add_sink(self)
        return self

    def stop(self) -> None:
        """Count no more."""
        remove_sink(self)

    def record(self, event: AnyEvent, /) -> None:
        """See `TraceSink.record`."""
        if isinstance(event, Turn):
            self._turn(event)
        elif isinstance(event, Handoff):
            self._handoff(event)
            with self._lock:
                self._told[event.rid] = None
                if len(self._told) > 1024:
                    del self._told[next(iter(self._told))]
        elif isinstance(event, Chunk):
            self._observe("prefill_chunk", event.end - event.start, event.engine, event.outcome)
        elif isinstance(event, SessionEnd):
            self._count("ahead", event.computed, event.engine)
            self._count("wasted", event.wasted, event.engine)
        elif isinstance(event, ToolRun):
            self._observe("tool", event.end - event.start, event.tool)

    def _turn(self, turn: Turn) -> None:
        self._metrics["flashagents_turns"].labels(turn.engine, turn.outcome).inc()
        for name in ("prompt", "cached", "prewarmed", "shared_in_turn", "completion"):
            self._count(name, getattr(turn, name), turn.engine)
        if turn.first is not None:
            self._observe("first_token", turn.first - turn.start, turn.engine)
        with self._lock:
            gap = self._gaps.follow(turn)
            told = self._told.pop(turn.rid, 0) is None
        if gap is not None and not told:
            self._handoff(gap)

    def _handoff(self, gap: Handoff) -> None:
        self._observe("handoff", gap.end - gap.start, gap.engine)

    def _observe(self, name: str, seconds: float, *labels: str) -> None:
        self._metrics[f"flashagents_{name}_seconds"].labels(*labels).observe(seconds)

    def _count(self, name: str, tokens: int, engine: str) -> None:
        self._metrics[f"flashagents_{name}_tokens"].labels(engine).inc(tokens)


__all__ = ["METRICS", "SECONDS", "PrometheusSink"]
