"""Prefill sessions in the scheduler: pins, budget, order."""

from __future__ import annotations

from .seam import Seam

_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
_POLICY = "sglang.srt.managers.schedule_policy"
_RADIX = "sglang.srt.mem_cache.radix_cache"

SCHEDULING: tuple[Seam, ...] = (
    # ---- prefill sessions: pins, budget, order (scheduling)
    Seam(
        f"{_SCHEDULER}.get_new_batch_prefill",
        "holds warm-ups back before a prefill pass, and cancels those that nobody waits for",
        "(self, running_batch)",
        hooked=True,
    ),
    Seam(
        f"{_SCHEDULER}._add_request_to_queue",
        "notes that a warm-up waits",
        "(self, req, is_retracted=False)",
        hooked=True,
    ),
    Seam(
        f"{_SCHEDULER}.process_batch_result",
        "measures how long a pass of warm-ups lasted",
        "(self, batch, result)",
        hooked=True,
    ),
    Seam(
        f"{_SCHEDULER}.close_session",
        "ends the pin of a prefill session",
        "(self, recv_req)",
        hooked=True,
    ),
    Seam(
        f"{_POLICY}.SchedulePolicy.calc_priority",
        "real requests before warm-ups, under any policy; shortest job first",
        "(self, waiting_queue, running_batch=None)",
        hooked=True,
    ),
    Seam(
        "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager"
        ".flush_cache_after_weight_update",
        "new weights end all pins",
        "(self, recv_req)",
        hooked=True,
    ),
    Seam(
        "sglang.srt.managers.scheduler_components.request_receiver.SchedulerRequestReceiver"
        "._broadcast_reqs_across_ranks",
        "sends the first rank's time to the others, behind the requests of a step",
        "(self, recv_reqs)",
        hooked=True,
    ),
    Seam(
        f"{_SCHEDULER}.maybe_sleep_on_idle",
        "does not sleep until a message comes while warm-ups are held",
        "(self)",
        hooked=True,
    ),
    Seam(
        _SCHEDULER,
        "its queue and batches, before a prefill pass",
        attributes=(
            "waiting_queue",
            "running_batch",
            "chunked_req",
            "abort_request",
            "session_controller",
            "idle_sleeper",
        ),
    ),
    Seam(
        "sglang.srt.managers.schedule_batch.Req",
        "tells warm-ups from real requests; their expected work; whether and how they ended",
        attributes=(
            "session_id",
            "sampling_params",
            "num_matched_prefix_tokens",
            "finished",
            "finished_reason",
            "rid",
        ),
    ),
    Seam(
        "sglang.srt.sampling.sampling_params.SamplingParams",
        "`max_new_tokens=0` is a warm-up, sampled as the decodes beside it; a hint of the answer's length",
        attributes=("max_new_tokens", "custom_params", "temperature", "top_p", "top_k", "min_p"),
    ),
    Seam(
        "sglang.srt.sampling.sampling_batch_info.SamplingBatchInfo",
        "a batch that a warm-up was in is sampled as the others ask for",
        attributes=(
            "is_all_greedy",
            "is_any_greedy",
            "need_top_p_sampling",
            "need_top_k_sampling",
            "need_min_p_sampling",
        ),
    ),
    Seam("sglang.srt.sampling.sampling_params.TOP_K_ALL", "the `top_k` that asks for no sorting"),
    Seam("sglang.srt.managers.schedule_batch.FINISH_ABORT", "a warm-up that was aborted is not pinned"),
    Seam("sglang.srt.managers.io_struct.AbortReq", "cancels a warm-up", attributes=("rid",)),
    Seam(
        f"{_POLICY}.match_prefix_for_req",
        "what the cache holds of a waiting request",
        "(tree_cache, req, token_ids=None, *, cow_mamba=False, include_req=False)",
    ),
    Seam(
        f"{_RADIX}.RadixCache",
        "evicts by the pins' order",
        attributes=("evict", "_delete_leaf", "reset", "cache_finished_req", "eviction_strategy"),
    ),
    Seam(
        "sglang.srt.mem_cache.allocator.paged",
        "its two Triton kernels are replaced on machines without CUDA (cpu_shims)",
        attributes=("alloc_extend_kernel", "alloc_decode_kernel", "alloc_extend_naive"),
    ),
)
