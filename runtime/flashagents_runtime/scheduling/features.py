"""The parts of the plug-in that this package adds: see `flashagents_runtime.plugin.Feature`.

Environment of the scheduler's process:

- ``FLASHAGENTS_PIN_TTL``: seconds that a pin lasts after its session's last warm-up; 300
- ``FLASHAGENTS_PIN_SHARE``: how much of the KV pool that no running request holds pins may hold; 0.5
- ``FLASHAGENTS_WARMUP_SHARE``: by how much warm-ups may slow decodes; ``inf`` holds nothing back. Where it is
  not set: 0.05, on a CPU ``inf``, since a prompt costs so much more than a decode step there that nothing
  would be warm in time; and in either case 1 / (n - 1) at most while n > 1 requests decode
- ``FLASHAGENTS_SJF=1``: shortest job first, off by default
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from .. import sglang_seams as seams
from ..intra_turn.radix_cache import adopt
from . import hooks
from .gate import Gate
from .kinds import state_of
from .order import Order
from .pass_budget import PassBudget
from .pins import PinnedLast, Pins
from .ranks import clock_for, refusal_of_ranks
from .worth import Worth

Hooks = Mapping[str, Callable[..., Any]]


class SoftPins:
    """``soft_pins``: what sessions have prefilled is evicted last."""

    name = "soft_pins"
    hooks: Hooks = hooks.PINS

    def refusal(self, ctx: Any, cache: Any) -> str | None:
        """See `Feature`."""
        _number("FLASHAGENTS_PIN_TTL", 300.0)
        _number("FLASHAGENTS_PIN_SHARE", 0.5)
        if ctx.disable_radix_cache or cache.disable:
            return "the radix cache is disabled"
        if not adopt(cache):
            return f"this model or configuration uses another cache ({type(cache).__name__})"
        return refusal_of_ranks(ctx.server_args)

    def attach(self, ctx: Any, cache: Any) -> None:
        """See `Feature`."""
        share, allocator = _number("FLASHAGENTS_PIN_SHARE", 0.5), cache.token_to_kv_pool_allocator

        def most() -> float:
            """Of what no running request holds, by what the latest sessions were worth."""
            part = share * cache.pins.worth.share()
            return float(part * (allocator.available_size() + cache.evictable_size()))

        ttl = _number("FLASHAGENTS_PIN_TTL", 300.0)
        cache.pins = Pins(ttl, clock_for(ctx, cache), most, Worth(allocator.size))
        cache.eviction_strategy = PinnedLast(cache.eviction_strategy, cache.pins)

    def figures(self, cache: Any) -> dict[str, Any]:
        """Pins now; since start: pins that ran out or gave way, and pinned tokens that were evicted."""
        pins = state_of(cache, "pins")
        return {
            "pins": len(pins),
            "expired": pins.expired,
            "gave_way": pins.gave_way,
            "evicted_tokens": pins.evicted_tokens,
        }


class WarmupBudgetFeature:
    """``warmup_budget``: real requests first, and warm-ups within a share of the decodes' time."""

    name = "warmup_budget"
    hooks: Hooks = hooks.BUDGET

    def refusal(self, ctx: Any, cache: Any) -> str | None:
        """See `Feature`."""
        _number("FLASHAGENTS_WARMUP_SHARE", 0.05)
        return refusal_of_ranks(ctx.server_args)

    def attach(self, ctx: Any, cache: Any) -> None:
        """See `Feature`."""
        default = float("inf") if ctx.server_args.device == "cpu" else 0.05
        clock = clock_for(ctx, cache)
        budget = PassBudget(
            _number("FLASHAGENTS_WARMUP_SHARE", default),
            clock,
            shrinks=not os.environ.get("FLASHAGENTS_WARMUP_SHARE"),
        )
        cache.gate = Gate(budget, clock)
        cache.order = Order(clock)

    def figures(self, cache: Any) -> dict[str, Any]:
        """The share, None where nothing is held back, and `passes.GateFigures`."""
        gate: Gate = state_of(cache, "gate")
        share = gate.budget.share
        return {"share": None if share == float("inf") else share, **gate.plain()}


class ShortestJobFirst:
    """``sjf``: real requests in the order of their expected work."""

    name = "sjf"
    hooks: Hooks = hooks.SJF

    @staticmethod
    def wanted() -> bool:
        """Asked for by the environment."""
        return os.environ.get("FLASHAGENTS_SJF") == "1"

    def refusal(self, ctx: Any, cache: Any) -> str | None:
        """See `Feature`."""
        if ctx.server_args.enable_priority_scheduling:
            return "priority scheduling orders the queue"
        return refusal_of_ranks(ctx.server_args)

    def attach(self, ctx: Any, cache: Any) -> None:
        """See `Feature`."""
        cache.order = Order(clock_for(ctx, cache), shortest_first=True)

    def figures(self, cache: Any) -> dict[str, Any]:
        """Admission passes whose queue was sorted."""
        order: Order = state_of(cache, "order")
        return {"sorted_passes": order.sorted_passes}


def _number(variable: str, default: float) -> float:
    text = os.environ.get(variable, "")
    try:
        value = float(text) if text else default
    except ValueError:
        value = 0.0
    if not value > 0:
        raise seams.SeamError(f"{variable} should be a number above 0, not {text!r}")
    return value
