"""The intra-turn prefix cache as a feature of the plug-in."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from . import hooks
from .integrity import around_on_idle
from .publish import Publisher
from .radix_cache import adopt
from .support import refusal

_ON_IDLE = "sglang.srt.managers.scheduler.Scheduler.on_idle"


class IntraTurn:
    """`flashagents_runtime.plugin.Feature`; its state for a tree cache is `cache.intra_turn`.

    With ``FLASHAGENTS_CHECK=1`` the scheduler runs `check_integrity` whenever it is idle, and dies with
    IntegrityError where it fails.
    """

    name = "intra_turn"

    @property
    def hooks(self) -> Mapping[str, Callable[..., Any]]:
        check = {_ON_IDLE: around_on_idle} if os.environ.get("FLASHAGENTS_CHECK") == "1" else {}
        return hooks.HOOKS | check

    def refusal(self, ctx: Any, cache: Any) -> str | None:
        adopt(cache)
        return refusal(ctx, cache)

    def attach(self, ctx: Any, cache: Any) -> None:
        cache.intra_turn = Publisher(cache)

    def figures(self, cache: Any) -> dict[str, Any]:
        publisher = hooks.publisher_of(cache)
        return publisher.figures.plain() if publisher is not None else {}
