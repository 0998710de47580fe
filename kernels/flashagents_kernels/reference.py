"""The operators in plain torch: what the kernels are checked against, and what CPU runs use.

Loops over requests; computes in fp32 unless told otherwise. `dtype` exists for tests, which measure a
kernel's error against that of the same algebra in low precision.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from .core import LoraValues


def adapter_of(lora: LoraValues, batch: int) -> list[int]:
    """The adapter index of each request."""
    index = lora.adapter
    if lora.req_pool_indices is not None:
        index = index[lora.req_pool_indices.long()]
    return [int(i) for i in index[:batch].tolist()]


def low_rank_rows(lora: LoraValues, rows: Any, adapter: int) -> Any:
    """The rows `[n, r]` that an adapter reads from `rows` (`[n, r]` or `[n, sets, r]`)."""
    return rows[:, adapter - 1] if rows.dim() == 3 else rows


def attend(
    q: Any,
    k: Any,
    v: Any,
    first: int,
    sm_scale: float,
    logit_cap: float,
    window_left: int,
    dtype: Any,
) -> tuple[Any, Any]:
    """Queries `[n, hq, d]` at positions `first..` over keys `[m, hkv, d]` at positions `0..`."""
    n, q_heads, _ = q.shape
    m, kv_heads, _ = k.shape
    k = k.to(dtype).repeat_interleave(q_heads // kv_heads, 1)
    v = v.to(dtype).repeat_interleave(q_heads // kv_heads, 1)
    s = torch.einsum("nhd,mhd->hnm", q.to(dtype), k) * sm_scale
    if logit_cap > 0:
        s = logit_cap * torch.tanh(s / logit_cap)
    pos_q = first + torch.arange(n, device=q.device)[:, None]
    pos_k = torch.arange(m, device=q.device)[None, :]
    seen = pos_k <= pos_q
    if window_left >= 0:
        seen = seen & (pos_k >= pos_q - window_left)
    s = s.float().masked_fill(~seen[None], float("-inf"))
    p = torch.softmax(s, -1).to(dtype)
    return torch.einsum("hnm,mhd->nhd", p, v), torch.logsumexp(s, -1).T


def values(v: Any, rows: Any, lora: LoraValues | None, adapter: int, dtype: Any) -> Any:
    """`V_base + rows @ up[adapter]` for `v` `[n, hkv, d]`."""
    if lora is None or adapter == 0:
        return v
    w = low_rank_rows(lora, rows, adapter).to(dtype)
    return v.to(dtype) + torch.einsum("nr,hrd->nhd", w, lora.up[adapter].to(dtype))


def decode_reference(
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
    dtype: Any = torch.float32,
) -> tuple[Any, Any]:
    """`flash_lora_attention.decode` in torch; returns `(out, lse)` in `dtype` and fp32."""
    batch, q_heads, dim = q.shape
    scale = 1 / math.sqrt(dim) if sm_scale is None else sm_scale
    out = torch.zeros(q.shape, dtype=dtype, device=q.device)
    lse = torch.full((batch, q_heads), float("-inf"), device=q.device)
    adapters = adapter_of(lora, batch) if lora is not None else [0] * batch
    ends = kv_indptr.tolist()
    for b in range(batch):
        slots = kv_indices[ends[b] : ends[b + 1]].long()
        if len(slots) == 0:
            continue
        rows = lora.rows[slots] if lora is not None else None
        v = values(v_cache[slots], rows, lora, adapters[b], dtype)
        o, e = attend(q[b : b + 1], k_cache[slots], v, len(slots) - 1, scale, logit_cap, window_left, dtype)
        out[b], lse[b] = o[0], e[0]
    return out, lse


def extend_reference(
    q: Any,
    k_new: Any,
    v_new: Any,
    qo_indptr: Any,
    k_cache: Any = None,
    v_cache: Any = None,
    kv_indptr: Any = None,
    kv_indices: Any = None,
    *,
    lora: LoraValues | None = None,
    lora_new: Any = None,
    sm_scale: float | None = None,
    logit_cap: float = 0.0,
    window_left: int = -1,
    dtype: Any = torch.float32,
) -> tuple[Any, Any]:
    """`flash_lora_attention.extend` in torch; returns `(out, lse)` in `dtype` and fp32."""
    tokens, q_heads, dim = q.shape
    scale = 1 / math.sqrt(dim) if sm_scale is None else sm_scale
    out = torch.zeros(q.shape, dtype=dtype, device=q.device)
    lse = torch.full((tokens, q_heads), float("-inf"), device=q.device)
    ends = qo_indptr.tolist()
    batch = len(ends) - 1
    adapters = adapter_of(lora, batch) if lora is not None else [0] * batch
    pre_ends = kv_indptr.tolist() if kv_indptr is not None else [0] * (batch + 1)
    for b in range(batch):
        new = slice(ends[b], ends[b + 1])
        if ends[b] == ends[b + 1]:
            continue
        k, v = k_new[new], v_new[new]
        rows = lora_new[new] if lora is not None else None
        if pre_ends[b + 1] > pre_ends[b]:
            slots = kv_indices[pre_ends[b] : pre_ends[b + 1]].long()
            k, v = torch.cat([k_cache[slots], k]), torch.cat([v_cache[slots], v])
            if lora is not None:
                rows = torch.cat([lora.rows[slots], rows])
        v = values(v, rows, lora, adapters[b], dtype)
        first = pre_ends[b + 1] - pre_ends[b]
        out[new], lse[new] = attend(q[new], k, v, first, scale, logit_cap, window_left, dtype)
    return out, lse


def project_lr_reference(x: Any, down: Any, scale: float = 1.0, dtype: Any = torch.float32) -> Any:
    """`x @ down.T * scale`: `[tokens, r]`, or `[tokens, sets, r]` for a stacked `down`."""
    y = torch.einsum("tk,...rk->t...r", x.to(dtype), down.to(dtype))
    return y * scale
