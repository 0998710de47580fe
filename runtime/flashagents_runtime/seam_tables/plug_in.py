"""The plug-in itself, and penalties that do not depend on others."""

from __future__ import annotations

from .seam import Seam

_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
_REGISTRY = "sglang.srt.mem_cache.registry"
_HOOKS = "sglang.srt.plugins.hook_registry"

PLUG_IN: tuple[Seam, ...] = (
    # ---- the plug-in
    Seam(
        f"{_HOOKS}.HookRegistry",
        "wraps the hooked functions below, also where modules hold copies of them",
        attributes=("_apply_target", "_patched"),
    ),
    Seam(
        f"{_HOOKS}.HookRegistry._apply_target",
        "applies a hook on top of other plug-ins'",
        "(target, hooks)",
    ),
    Seam(f"{_HOOKS}.HookType", "the kind of every hook: AROUND", attributes=("AROUND",)),
    Seam(
        f"{_REGISTRY}.register_radix_cache_backend",
        "`--radix-cache-backend flashagents` is what switches the plug-in on",
        "(name, factory)",
    ),
    Seam(f"{_REGISTRY}.get_radix_cache_factory", "registers the backend once a process", "(name)"),
    Seam(
        f"{_REGISTRY}.default_radix_cache_factory",
        "the cache of configurations that ours does not serve",
        "(ctx)",
    ),
    Seam(
        f"{_REGISTRY}.TreeCacheBuildContext",
        "what the cache is built for: decides which features can run",
        attributes=(
            "server_args",
            "params",
            "is_hybrid_swa",
            "is_hybrid_ssm",
            "enable_hierarchical_cache",
            "disable_radix_cache",
            "tp_worker",
            "model_config",
            "is_dsa",
        ),
    ),
    Seam(
        f"{_SCHEDULER}.get_internal_state",
        "adds the `flashagents` entry: version, active hooks, features and figures",
        "(self, recv_req)",
        hooked=True,
    ),
    # ---- exact penalties
    Seam(
        "sglang.srt.managers.schedule_batch.ScheduleBatch.cumulate_penalty_output_tokens",
        "counts the same token at each decode step, whether or not another request came between",
        "(self)",
        hooked=True,
    ),
    Seam(
        "sglang.srt.managers.schedule_batch.ScheduleBatch",
        "the batch whose penalties are counted",
        attributes=("reqs", "device", "enable_overlap", "sampling_info"),
    ),
    Seam(
        "sglang.srt.sampling.penaltylib.orchestrator.BatchedPenalizerOrchestrator.cumulate_output_tokens",
        "takes the tokens that are counted",
        "(self, output_ids)",
    ),
)
