"""decode: one query token a request over a paged cache, with an optional low-rank value term."""

from __future__ import annotations

import math
from typing import Any, Literal, overload

import torch

from .checks import check_kv, check_lora, check_options, check_out, check_query, require_index
from .core import Backend, LoraValues, padded, use_triton
from .errors import ShapeError
from .plan import DecodePlan
from .reference import decode_reference

LOG2E = 1.4426950408889634


@overload
def decode(
    q: Any, k_cache: Any, v_cache: Any, kv_indptr: Any, kv_indices: Any, *,
    lora: LoraValues | None = None, sm_scale: float | None = None, logit_cap: float = 0.0,
    window_left: int = -1, out: Any = None, return_lse: Literal[False] = False,
    plan: DecodePlan | None = None, backend: Backend = "auto",
) -> Any: ...  # fmt: skip
@overload
def decode(
    q: Any, k_cache: Any, v_cache: Any, kv_indptr: Any, kv_indices: Any, *,
    lora: LoraValues | None = None, sm_scale: float | None = None, logit_cap: float = 0.0,
    window_left: int = -1, out: Any = None, return_lse: Literal[True],
    plan: DecodePlan | None = None, backend: Backend = "auto",
) -> tuple[Any, Any]: ...  # fmt: skip
def decode(
    q: Any,
    k_cache: Any,
    v_cache: Any,
    kv_indptr: Any,
    kv_indices: Any,
    *,
    lora: LoraValues | None = None,
    sm_scale: float | None = None,
    logit_cap: float = 0.0,
    window_left: int = -1,
    out: Any = None,
    return_lse: bool = False,
    plan: DecodePlan | None = None,
    backend: Backend = "auto",
) -> Any:
    """Attention of one query token a request: `O = P V_base + (P V_lr) B`, one softmax.

    Args:
        q: `[batch, q_heads, head_dim]`, bf16 or fp16, last dimension contiguous.
        k_cache: `[slots, kv_heads, head_dim]`, same dtype. Any strides but the last.
        v_cache: like `k_cache`; without any adapter's part.
        kv_indptr: `[batch + 1]` int32 or int64: request b reads `kv_indices[kv_indptr[b]:kv_indptr[b+1]]`.
        kv_indices: `[>= kv_indptr[-1]]` int32 or int64: the slot of each token, so page size is free.
        lora: the low-rank value term, or None for plain attention.
        sm_scale: factor of the scores, `head_dim ** -0.5` by default.
        logit_cap: soft cap of the scaled scores, `cap * tanh(s / cap)`; 0 is off.
        window_left: keys before its own position that a query sees; -1 is all of them.
        out: `[batch, q_heads, head_dim]` to write to.
        return_lse: also return the log-sum-exp.
        plan: a `DecodePlan` updated for this `kv_indptr`. Without one each call makes its own.
        backend: "auto" takes Triton for CUDA tensors and torch elsewhere.

    Returns:
        The output like `q`, and with `return_lse` also `[batch, q_heads]` fp32, base e. A request
        without keys gives zeros and -inf.

    Raises:
        ShapeError, DtypeError, DeviceError, UnsupportedError, WorkspaceError: a bad argument, named.

    Example:
        >>> import torch
        >>> from flashagents_kernels.flash_lora_attention import decode
        >>> q, kv = torch.randn(1, 4, 64), torch.randn(8, 2, 64)
        >>> decode(q, kv, kv, torch.tensor([0, 3]), torch.tensor([5, 0, 2])).shape
        torch.Size([1, 4, 64])
    """
    batch, q_heads, dim = check_query(q)
    kv_heads = check_kv("cache", k_cache, v_cache, q)
    check_options(logit_cap, window_left)
    require_index("kv_indptr", kv_indptr, batch + 1)
    require_index("kv_indices", kv_indices)
    if lora is not None:
        check_lora(lora, q, kv_heads, batch, k_cache.shape[0])
    if out is None:
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    else:
        check_out(out, q)
    rank = lora.rank if lora is not None else 0
    if plan is not None:
        plan.check(batch, q_heads, kv_heads, dim, rank, window_left)
    if not use_triton(backend, q):
        ref, lse = decode_reference(
            q, k_cache, v_cache, kv_indptr, kv_indices,
            lora=lora, sm_scale=sm_scale, logit_cap=logit_cap, window_left=window_left,
        )  # fmt: skip
        out.copy_(ref)
        return (out, lse) if return_lse else out
    if batch == 0:
        empty = torch.empty((0, q_heads), dtype=torch.float32, device=q.device)
        return (out, empty) if return_lse else out
    if plan is None:
        plan = DecodePlan(batch, q_heads, kv_heads, dim, rank, device=q.device, window_left=window_left)
        plan.update(kv_indptr)
    lse = torch.empty((batch, q_heads), dtype=torch.float32, device=q.device) if return_lse else None
    _launch(q, k_cache, v_cache, kv_indptr, kv_indices, lora, sm_scale, logit_cap, plan, out, lse)
    return (out, lse) if return_lse else out


def _launch(
    q: Any, k: Any, v: Any, kv_indptr: Any, kv_indices: Any, lora: LoraValues | None,
    sm_scale: float | None, logit_cap: float, plan: DecodePlan, out: Any, lse: Any,
) -> None:  # fmt: skip
    from ._decode import decode_merge_kernel, decode_split_kernel

    batch, q_heads, dim = q.shape
    kv_heads = k.shape[1]
    group = q_heads // kv_heads
    if group > 64:
        raise ShapeError(f"{group} query heads a KV head: decode takes up to 64")
    config = plan.config(batch)
    dim_p = padded(dim)
    rank, rank_p = (lora.rank, padded(lora.rank)) if lora is not None else (16, 16)
    rows = lora.rows if lora is not None else v
    adapter = lora.adapter if lora is not None else plan.start
    req = lora.req_pool_indices if lora is not None else None
    up = lora.up if lora is not None else v
    up_strides = (up.stride(0), up.stride(1), up.stride(2)) if lora is not None else (0, 0, 0)
    scale = (1 / math.sqrt(dim) if sm_scale is None else sm_scale) * LOG2E
    pdl = config.pdl if q.is_cuda else 0
    same = (k.stride(0), k.stride(1)) == (v.stride(0), v.stride(1))
    decode_split_kernel[(kv_heads // config.heads, plan.items(batch))](
        q, k, v, rows, kv_indptr, kv_indices, adapter, req if req is not None else adapter,
        plan.work, plan.start, plan.chunk, plan.partial_out, plan.partial_low, plan.partial_lse,
        scale, logit_cap * LOG2E, plan.window_left, q.stride(0), q.stride(1), k.stride(0), k.stride(1),
        v.stride(0), v.stride(1), S_LN=rows.stride(0) if lora is not None else 0,
        S_SET=lora.set_stride if lora is not None else 0, G=group, HQ=q_heads, HB=config.heads,
        BM=padded(group), BN=config.block_n, D=dim, DP=dim_p,
        R=rank, RP=rank_p, SAME=same, SPREAD=config.spread and lora is not None, CAP=logit_cap > 0,
        WINDOW=plan.window_left >= 0, LORA=lora is not None, INDIRECT=req is not None, PDL=pdl,
        num_warps=config.heads, num_stages=config.stages,
    )  # fmt: skip
    pieces = padded(max(1, plan.items(batch) // batch), 1)
    block = min(64, max(2, pieces)) if dim_p <= 128 else min(32, max(2, pieces))
    decode_merge_kernel[(q_heads, batch)](
        plan.partial_out, plan.partial_low, plan.partial_lse, plan.start,
        up, adapter, req if req is not None else adapter, out, lse if lse is not None else out,
        *up_strides, out.stride(0), out.stride(1),
        G=group, HQ=q_heads, D=dim, DP=dim_p, R=rank, RP=rank_p, SB=block,
        LORA=lora is not None, LSE=lse is not None, INDIRECT=req is not None, PDL=pdl,
        num_warps=8 if block > 16 else 4, **({"launch_pdl": True} if pdl else {}),
    )  # fmt: skip
