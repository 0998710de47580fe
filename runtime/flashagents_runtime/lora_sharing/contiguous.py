"""Large prefill passes by FlashAttention 3: K and V joined to contiguous rows, the low-rank part added.

Softmax knows nothing of V, so V may get its low-rank part before attention as well as after it. With many new
tokens that costs a few percent of attention, and what is left is attention without LoRA over contiguous
rows, where FlashAttention 3 is faster than any Triton kernel of ours, and than itself over pages of one
token (benchmarks/kernels/prefill.py). It comes with SGLang's own kernels, `sgl_kernel.flash_attn`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib import import_module
from typing import Any

from flashagents_kernels.configs import may_copy

_log = logging.getLogger(__name__)

LEAST = 2048
"""New tokens of a request times query heads for each KV head, from which on a pass is joined. Without any
prefix so many new tokens: there is less to gain."""


def pays(longest: int, group: int, prefix: int, cache: Any) -> bool:
    """Whether a pass is joined.

    Args:
        longest: new tokens of its longest request.
        group: query heads for each KV head.
        prefix: cached tokens of all its requests.
        cache: K of a layer, `[slots, kv_heads, head_dim]`.
    """
    return longest * (group if prefix else 1) >= LEAST and may_copy(prefix, *cache.shape)


def kernel(device: Any, head_dim: int) -> Callable[..., Any] | None:
    """FlashAttention 3's `flash_attn_varlen_func` where it runs and was measured (Hopper); else None."""
    import torch

    if torch.device(device).type != "cuda" or torch.cuda.get_device_capability(device)[0] != 9:
        return None
    if head_dim != 128:
        return None
    try:
        found: Callable[..., Any] = import_module("sgl_kernel.flash_attn").flash_attn_varlen_func
    except Exception as e:  # missing, or built for another torch: anything may come out of its import
        _log.warning("flashagents: no FlashAttention 3, Triton kernels serve all prefills: %s", e)
        return None
    return found


__all__ = ["LEAST", "kernel", "pays"]
