"""The sharing of adapters as a feature of the plug-in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .. import sglang_seams as seams
from ..errors import SeamError
from ..intra_turn.radix_cache import adopt as adopt_plain
from ..intra_turn.radix_cache import cache_class
from . import attention, sharing
from .config import ENVIRONMENT, configured
from .hooks import HOOKS
from .support import arguments_refusal
from .tree import adopt


class LoraSharing:
    """`flashagents_runtime.plugin.Feature`, in a scheduler for which sharing is configured.

    Unlike other features it is never merely off: what was asked for and cannot be had ends the start.
    """

    name = "lora_sharing"

    @property
    def hooks(self) -> Mapping[str, Callable[..., Any]]:
        return HOOKS

    def refusal(self, ctx: Any, cache: Any) -> str | None:
        """None; raises SeamError where sharing cannot run."""
        reason = self._reason(ctx, cache)
        if reason is not None:
            config = configured()
            scheme = config.scheme if config is not None else "none"
            raise SeamError(f"lora_sharing={scheme!r} cannot run: {reason}")
        return None

    def _reason(self, ctx: Any, cache: Any) -> str | None:
        state = sharing.current
        if state is None:
            return (
                f"its hooks were not in place when adapters were loaded; {ENVIRONMENT} must be set before "
                "the engine starts, and LoRA must be enabled"
            )
        if state.config.keeps_rows and state.rows is None:
            return f"attention runs in another backend than {attention.NAME!r}"
        if ctx.disable_radix_cache or cache.disable:
            return "the radix cache is disabled"
        adopt_plain(cache)
        if not isinstance(cache, cache_class()):
            return f"this configuration uses another cache ({type(cache).__name__})"
        return arguments_refusal(ctx.server_args)

    def attach(self, ctx: Any, cache: Any) -> None:
        assert sharing.current is not None
        if sharing.current.config.scheme == "base" and not hasattr(cache, "intra_turn"):
            raise SeamError(
                "lora_sharing='base' cannot run: agents catch up as the intra-turn cache publishes, and that "
                "is off"
            )
        adopt(cache, sharing.current)

    def figures(self, cache: Any) -> dict[str, Any]:
        return cache.sharing.figures() if hasattr(cache, "sharing") else {}


def install(install_hooks: Callable[[Mapping[str, Callable[..., Any]]], None]) -> None:
    """Put hooks and attention backend in place, where sharing is configured; before a scheduler is built.

    Raises SeamError where SGLang does not fit.
    """
    seams.require(seams.LORA_SEAMS)
    install_hooks(HOOKS)
    attention.register()


__all__ = ["LoraSharing", "install"]
