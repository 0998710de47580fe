"""Other attention kernels, where they are installed: FlashAttention 3 and SGLang's Triton kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .cases import DIM, Cell, Pool

SCALE = DIM**-0.5


def load() -> dict[str, Any]:
    found: dict[str, Any] = {}
    try:
        from sgl_kernel.flash_attn import flash_attn_with_kvcache

        found["fa3"] = flash_attn_with_kvcache
    except Exception as error:
        print("no fa3:", repr(error)[:200])
    try:
        from sglang.kernels.ops.attention.decode_attention import decode_attention_fwd
        from sglang.kernels.ops.attention.extend_attention import extend_attention_fwd

        found["sglang_decode"], found["sglang_extend"] = decode_attention_fwd, extend_attention_fwd
    except Exception as error:
        print("no sglang:", repr(error)[:200])
    return found


def fa3_decode(lib: dict[str, Any], cell: Cell, pool: Pool, q: Any, segments: list[Any]) -> list[Any]:
    batch, context = cell.batch, cell.context
    k, v = (t.view(pool.slots, 1, -1, DIM) for t in (pool.k, pool.v))
    lengths = torch.full((batch,), context, dtype=torch.int32, device="cuda")
    starts = torch.arange(batch + 1, dtype=torch.int32, device="cuda")
    return [
        lambda t=t: lib["fa3"](
            q=q, k_cache=k, v_cache=v, page_table=t.view(batch, context), cache_seqlens=lengths,
            cu_seqlens_q=starts, max_seqlen_q=1, softmax_scale=SCALE, causal=True,
        )
        for t in segments
    ]  # fmt: skip


def sglang_decode(
    lib: dict[str, Any], cell: Cell, pool: Pool, q: Any, segments: list[Any], splits: int
) -> list[Callable[[], Any]]:
    batch, heads = cell.batch, q.shape[1]
    indptr = torch.arange(batch + 1, dtype=torch.int32, device="cuda") * cell.context
    count = torch.full((batch,), splits, dtype=torch.int32, device="cuda")
    logits = torch.empty((batch, heads, splits, DIM), dtype=torch.float32, device="cuda")
    lse = torch.empty((batch, heads, splits), dtype=torch.float32, device="cuda")
    out = torch.empty_like(q)
    return [
        lambda t=t: lib["sglang_decode"](
            q, pool.k, pool.v, out, indptr, t, logits, lse, count, splits, SCALE, 1.0, 1.0
        )
        for t in segments
    ]


def fa3_extend(lib: dict[str, Any], cell: Cell, pool: Pool, q: Any, segments: list[Any]) -> list[Any]:
    """The new tokens lie in the pool too, as SGLang calls it: page size 1, shuffled."""
    k, v = (t.view(pool.slots, 1, -1, DIM) for t in (pool.k, pool.v))
    total = torch.tensor([cell.prefix + cell.new], dtype=torch.int32, device="cuda")
    starts = torch.tensor([0, cell.new], dtype=torch.int32, device="cuda")
    return [
        lambda t=t: lib["fa3"](
            q=q, k_cache=k, v_cache=v, page_table=t.view(1, -1), cache_seqlens=total, cu_seqlens_q=starts,
            max_seqlen_q=cell.new, softmax_scale=SCALE, causal=True,
        )
        for t in segments
    ]  # fmt: skip


def sglang_extend(
    lib: dict[str, Any], cell: Cell, pool: Pool, q: Any, k: Any, v: Any, segments: list[Any]
) -> list[Callable[[], Any]]:
    starts = torch.tensor([0, cell.new], dtype=torch.int32, device="cuda")
    indptr = torch.tensor([0, cell.prefix], dtype=torch.int32, device="cuda")
    out = torch.empty_like(q)
    return [
        lambda t=t: lib["sglang_extend"](
            q, k, v, out, pool.k, pool.v, starts, indptr, t[: max(1, cell.prefix)], None, True, None,
            cell.new, 1.0, 1.0,
        )
        for t in segments
    ]  # fmt: skip
