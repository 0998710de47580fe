"""Warm-ups change nothing of how the requests beside them are sampled.

A warm-up samples nothing that anyone reads, but with overlap it is in the decode batch for a step. SGLang
samples a batch as its most demanding member asks, and keeps to that for as long as the batch lives, which on
a busy engine is for ever: a greedy batch would be sorted by probability at each step from then on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import sglang_seams as seams


def alike(warm_up: Any, req: Any) -> None:
    """Let a warm-up ask for what `req` does: they may share a pass."""
    for name in ("temperature", "top_p", "top_k", "min_p"):
        setattr(warm_up.sampling_params, name, getattr(req.sampling_params, name))


def of_their_own(batch: Any, reqs: Sequence[Any]) -> None:
    """Let `batch` be sampled as `reqs` ask for, those of its members whose tokens are read.

    A warm-up of an idle engine is there before it can be known beside whom. As
    `SamplingBatchInfo.from_schedule_batch` decides for a new batch.
    """
    every: int = seams.symbol("sglang.srt.sampling.sampling_params.TOP_K_ALL")
    asked = [req.sampling_params for req in reqs]
    info = batch.sampling_info
    info.is_all_greedy = all(params.top_k <= 1 for params in asked)
    info.is_any_greedy = any(params.top_k <= 1 for params in asked)
    info.need_top_p_sampling = any(params.top_p != 1.0 for params in asked)
    info.need_top_k_sampling = any(params.top_k != every for params in asked)
    info.need_min_p_sampling = any(params.min_p > 0 for params in asked)
