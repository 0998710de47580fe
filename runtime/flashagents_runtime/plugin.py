"""The SGLang plug-in: entry point `flashagents` of the group `sglang.srt.plugins`.

**One switch.** `register()` only makes the radix cache backend ``flashagents`` known. Nothing of SGLang
is wrapped until a scheduler is started with ``--radix-cache-backend flashagents`` (the embedded engine
passes it; anyone who runs SGLang can): then SGLang calls `build_cache` inside each scheduler process,
which checks the seams, installs the hooks of every feature that fits the configuration, and proves that
they are in place. A plain `sglang` with this package installed runs stock code.

**Fails closed.** SGLang logs the exceptions of plug-ins and goes on; so nothing that matters happens in
`register()`. `build_cache` runs in the scheduler's constructor, where an exception ends the start-up.
A feature that does not fit the configuration (see its `refusal`) is off, stock behaviour stays, and
the reason is logged and shown in the handshake; with ``FLASHAGENTS_STRICT=1`` it ends the start-up.

**Handshake.** `Scheduler.get_internal_state` gains an entry ``flashagents``: see `state`.

Environment: ``FLASHAGENTS_DISABLE=intra_turn,...`` switches features off by name;
``FLASHAGENTS_LORA_SHARING`` asks for `lora_sharing`, whose hooks `register()` puts in place.
"""

from __future__ import annotations

import logging
import os
import pkgutil
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, Protocol

from . import lora_sharing
from . import sglang_seams as seams
from ._version import __version__
from .exact_penalties import ExactPenalties
from .intra_turn import IntraTurn
from .scheduling import ShortestJobFirst, SoftPins, WarmupBudgetFeature

__all__ = ["CACHE_BACKEND", "Feature", "active_hooks", "build_cache", "install_hooks", "register", "state"]

logger = logging.getLogger(__name__)

CACHE_BACKEND = "flashagents"
"""The value of `--radix-cache-backend` that switches the plug-in on."""

Hook = Callable[..., Any]
"""An AROUND hook: called with the original function, then its arguments."""


class Feature(Protocol):
    """One part of the plug-in."""

    name: str

    @property
    def hooks(self) -> Mapping[str, Hook]:
        """The hook of each target (dotted path)."""

    def refusal(self, ctx: Any, cache: Any) -> str | None:
        """Why this feature cannot run with `cache` and `ctx` (TreeCacheBuildContext), or None."""

    def attach(self, ctx: Any, cache: Any) -> None:
        """Set up the feature's state for `cache`, whose hooks are in place."""

    def figures(self, cache: Any) -> dict[str, Any]:
        """Counters for the handshake, of plain types."""


def register() -> None:
    """Make the cache backend known to SGLang in this process; idempotent.

    With another SGLang than the pinned one, selecting the backend ends the start-up with the reason.
    """
    registry = seams.symbol("sglang.srt.mem_cache.registry.get_radix_cache_factory")
    if registry(CACHE_BACKEND) is None:
        seams.symbol("sglang.srt.mem_cache.registry.register_radix_cache_backend")(CACHE_BACKEND, build_cache)
    if lora_sharing.configured() is not None:
        # Adapters are loaded and the KV pool is sized before `build_cache` runs.
        from .lora_sharing import feature

        feature.install(install_hooks)


def features() -> list[Feature]:
    """The features of this release, in the order in which they attach."""
    found: list[Feature] = [IntraTurn(), ExactPenalties(), SoftPins(), WarmupBudgetFeature()]
    if ShortestJobFirst.wanted():
        found.append(ShortestJobFirst())
    if lora_sharing.configured() is not None:
        from .lora_sharing.feature import LoraSharing

        found.append(LoraSharing())
    return found


def build_cache(ctx: Any) -> Any:
    """The factory behind `--radix-cache-backend flashagents`; runs in each scheduler process.

    Returns the tree cache. Raises SeamError where SGLang does not fit or a hook is not in place.
    """
    try:
        seams.require(seams.SCHEDULER_SEAMS)
        cache = seams.symbol("sglang.srt.mem_cache.registry.default_radix_cache_factory")(ctx)
        candidates = features()
        refused = _refusals(ctx, cache, candidates)
        running = [f for f in candidates if f.name not in refused]
        hooks: dict[str, Hook] = {f"{_SCHEDULER}.get_internal_state": _around_get_internal_state}
        for feature in running:
            hooks.update(feature.hooks)
        install_hooks(hooks)
    except seams.SeamError as e:
        # The scheduler's own report can be below the log level.
        sys.stderr.write(f"flashagents: cannot start: {e}\n")
        raise
    for feature in running:
        feature.attach(ctx, cache)
    cache.flashagents = _Attached(running, refused, list(hooks))
    for name, reason in refused.items():
        logger.warning("flashagents: %s is off, SGLang's stock behaviour stays: %s", name, reason)
    logger.info("flashagents %s: %s on", __version__, ", ".join(f.name for f in running) or "nothing")
    return cache


_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"


class _Attached:
    """What was put in place for one tree cache."""

    def __init__(self, running: list[Feature], refused: dict[str, str], hooks: list[str]) -> None:
        self.running = running
        self.refused = refused
        self.hooks = hooks


def _refusals(ctx: Any, cache: Any, candidates: list[Feature]) -> dict[str, str]:
    switched_off = {name.strip() for name in os.environ.get("FLASHAGENTS_DISABLE", "").split(",")}
    refused: dict[str, str] = {}
    for feature in candidates:
        reason = feature.refusal(ctx, cache)
        if feature.name in switched_off:
            refused[feature.name] = "switched off by FLASHAGENTS_DISABLE"
        elif reason is not None:
            if os.environ.get("FLASHAGENTS_STRICT") == "1":
                raise seams.SeamError(f"{feature.name} cannot run: {reason} (FLASHAGENTS_STRICT=1)")
            refused[feature.name] = reason
    return refused


_installed: dict[str, Hook] = {}


def install_hooks(hooks: Mapping[str, Hook]) -> None:
    """Wrap each target (dotted path) with its hook, once a process, and verify that all are in place.

    Raises SeamError naming the hook that could not be installed, and for a target that is not listed as
    hooked in `sglang_seams.SEAMS`.
    """
    registry = seams.symbol("sglang.srt.plugins.hook_registry.HookRegistry")
    around = seams.symbol("sglang.srt.plugins.hook_registry.HookType").AROUND
    listed = {seam.target for seam in seams.SEAMS if seam.hooked}
    for target, hook in hooks.items():
        if target not in listed:
            raise seams.SeamError(f"hook on {target}, which is not listed as hooked")
        if _installed.get(target) is hook:
            continue
        # apply_hooks() would pass over a target that another plug-in has wrapped, and swallow errors.
        try:
            registry._apply_target(target, [(around, hook, None)])
        except Exception as e:
            raise seams.SeamError(f"hook on {target} could not be installed: {e}") from e
        registry._patched.add(target)
        _installed[target] = hook
    missing = [target for target, hook in hooks.items() if not _reaches(target, hook)]
    if missing:
        raise seams.SeamError(f"hooks not in place: {', '.join(missing)}")


def active_hooks() -> list[str]:
    """Targets whose installed hook is really reached by a call today, in every module that names it."""
    return [target for target, hook in _installed.items() if _reaches(target, hook)]


def _reaches(target: str, hook: Hook) -> bool:
    owner_name, _, name = target.rpartition(".")
    owner = pkgutil.resolve_name(owner_name)
    original = getattr(owner, name)
    found = False
    while True:
        cells = getattr(original, "__closure__", None) or ()
        found = found or any(cell.cell_contents is hook for cell in cells)
        if not hasattr(original, "__wrapped__"):
            break
        original = original.__wrapped__
    # Of a function other modules may hold a copy; a method is looked up in its class. There are thousands
    # of modules, and schedulers are asked while they serve.
    return found and not (isinstance(owner, ModuleType) and _is_held(original, name))


def _is_held(original: object, name: str) -> bool:
    """Whether a module still has the function under its name, as `from x import name` copies it."""
    return any(getattr(m, "__dict__", {}).get(name) is original for m in list(sys.modules.values()))


def state(cache: Any) -> dict[str, Any]:
    """The handshake, of plain types, for the tree cache of a scheduler.

    ``{"version": str, "hooks": [dotted paths verified now], "features": {name: {"active": bool,
    "reason": str (where it is off), and the feature's figures}}}``; raises SeamError where a hook that
    was installed has been taken away since.
    """
    attached = attachment(cache)
    hooks = active_hooks()
    lost = [target for target in attached.hooks if target not in hooks]
    if lost:
        raise seams.SeamError(f"hooks not in place any more: {', '.join(lost)}")
    shown: dict[str, Any] = {f.name: {"active": True, **f.figures(cache)} for f in attached.running}
    shown |= {name: {"active": False, "reason": reason} for name, reason in attached.refused.items()}
    return {"version": __version__, "hooks": hooks, "features": shown}


def attachment(cache: Any) -> _Attached:
    """What `build_cache` put in place for `cache`; raises AttributeError for any other cache."""
    # StreamingSession wraps the cache that the factory returned.
    attached = getattr(cache, "flashagents", None) or cache.inner.flashagents
    assert isinstance(attached, _Attached)
    return attached


def _around_get_internal_state(original: Hook, self: Any, recv_req: Any) -> Any:
    output = original(self, recv_req)
    output.internal_state["flashagents"] = {**state(self.tree_cache), "kv": kv_figures(self)}
    return output


def kv_figures(scheduler: Any) -> dict[str, int]:
    """How full a scheduler is: the fields of `EngineState`, in tokens and requests."""
    total = int(scheduler.max_total_num_tokens)
    free = int(scheduler.token_to_kv_pool_allocator.available_size())
    cached = int(scheduler.tree_cache.evictable_size())
    return {
        "kv_total": total,
        "kv_used": total - free - cached,
        "kv_cached": cached,
        "kv_free": free,
        # A request that has ended leaves the batch one step later.
        "running": sum(not req.finished() for req in scheduler.running_batch.reqs),
        "waiting": len(scheduler.waiting_queue),
    }
