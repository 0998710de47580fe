"""join: prefix and new tokens of each request end to end, for attention kernels of contiguous K and V."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch

from .checks import check_kv, check_lora, check_new, check_prefix, check_query, require_index, require_shape
from .core import Backend, LoraValues, padded, use_triton
from .errors import ShapeError
from .reference import adapter_of, values


def join(
    k_new: Any,
    v_new: Any,
    qo_indptr: Any,
    k_cache: Any = None,
    v_cache: Any = None,
    kv_indptr: Any = None,
    kv_indices: Any = None,
    *,
    max_new: int,
    lora: LoraValues | None = None,
    lora_new: Any = None,
    out: tuple[Any, Any] | None = None,
    backend: Backend = "auto",
) -> tuple[Any, Any]:
    """Copy the K and V that `extend` would read to contiguous rows, V with its low-rank part added.

    Softmax knows nothing of V, so `P (V_base + V_lr B)` is what Flash-LoRA-Attention computes: with many
    new tokens the copy costs little beside attention, and attention may be any kernel without LoRA.

    Args:
        k_new, v_new, qo_indptr, k_cache, v_cache, kv_indptr, kv_indices, lora, lora_new, backend: as in
            `extend`; both offsets begin at 0.
        max_new: at least the largest number of new tokens of a request; sets the grid.
        out: two contiguous `[prefix + new tokens, kv_heads, head_dim]` to write to.

    Returns:
        K and V, `[prefix + new tokens, kv_heads, head_dim]`: request b has the rows
        `kv_indptr[b] + qo_indptr[b]` to `kv_indptr[b + 1] + qo_indptr[b + 1]`, its prefix first.

    Raises:
        ShapeError, DtypeError, DeviceError, UnsupportedError: a bad argument, named.

    Example:
        >>> import torch
        >>> from flashagents_kernels.flash_lora_attention import join
        >>> kv, new = torch.zeros(8, 2, 16), torch.ones(3, 2, 16)
        >>> k, v = join(new, new, torch.tensor([0, 3]), kv, kv, torch.tensor([0, 2]), torch.tensor([5, 1]),
        ...             max_new=3)
        >>> k[:, 0, 0].tolist()
        [0.0, 0.0, 1.0, 1.0, 1.0]
    """
    tokens, heads, dim = check_query(k_new)
    check_kv("new", k_new, v_new, k_new)
    require_index("qo_indptr", qo_indptr)
    batch = int(qo_indptr.shape[0]) - 1
    prefix = check_prefix(k_cache, v_cache, kv_indptr, kv_indices, k_new, heads, batch)
    if lora is not None:
        check_lora(lora, k_new, heads, batch, k_cache.shape[0] if prefix else None)
    check_new(lora, lora_new, k_new, max_new)
    count = int(kv_indices.shape[0]) if prefix else 0
    shape = (count + tokens, heads, dim)
    if out is None:
        k, v = (torch.empty(shape, dtype=k_new.dtype, device=k_new.device) for _ in range(2))
        out = (k, v)
    for name, t in zip(("out[0]", "out[1]"), out, strict=True):
        require_shape(name, t, shape)
        if not t.is_contiguous():
            raise ShapeError(f"{name} must be contiguous")
    pages = (k_cache, v_cache, kv_indptr, kv_indices) if prefix else None
    if not use_triton(backend, k_new):
        _reference(k_new, v_new, qo_indptr, pages, lora, lora_new, out)
    elif tokens and batch:
        _launch(k_new, v_new, qo_indptr, pages, lora, lora_new, max_new, out)
    return out


def _reference(
    k_new: Any, v_new: Any, qo_indptr: Any, pages: Any, lora: LoraValues | None, lora_new: Any, out: Any
) -> None:
    batch = int(qo_indptr.shape[0]) - 1
    members = adapter_of(lora, batch) if lora is not None else [0] * batch
    high = torch.promote_types(v_new.dtype, torch.float32)

    def full(v: Any, rows: Any, b: int) -> Any:
        return v if lora is None else values(v.to(high), rows, lora, members[b], high)

    at = 0
    for b, (a, z) in enumerate(pairwise(qo_indptr.tolist())):
        ks, vs = [k_new[a:z]], [full(v_new[a:z], None if lora is None else lora_new[a:z], b)]
        if pages is not None:
            k_cache, v_cache, indptr, indices = pages
            slots = indices[int(indptr[b]) : int(indptr[b + 1])].long()
            ks.insert(0, k_cache[slots])
            vs.insert(0, full(v_cache[slots], None if lora is None else lora.rows[slots], b))
        n = sum(len(k) for k in ks)
        out[0][at : at + n] = torch.cat(ks)
        out[1][at : at + n] = torch.cat(vs).to(out[1].dtype)
        at += n


def _launch(
    k_new: Any, v_new: Any, qo_indptr: Any, pages: Any, lora: LoraValues | None, lora_new: Any,
    max_new: int, out: tuple[Any, Any],
) -> None:  # fmt: skip
    from ._gather import join_kernel

    _, heads, dim = k_new.shape
    batch = int(qo_indptr.shape[0]) - 1
    k, v, indptr, indices = pages or (k_new, v_new, qo_indptr, qo_indptr)
    rank = lora.rank if lora is not None else 16
    block = 64
    tiles = -(-max(int(indices.shape[0]) if pages else 0, max_new) // block)
    programs = max(1, min(tiles, 2048 // max(1, batch * heads // 4)))
    req = lora.req_pool_indices if lora is not None else None
    up = lora.up if lora is not None else None
    join_kernel[(programs, heads, batch)](
        k, v, lora.rows if lora is not None else v, indptr, indices, k_new, v_new,
        lora_new if lora is not None else v, qo_indptr, up if up is not None else v,
        lora.adapter if lora is not None else qo_indptr, req if req is not None else qo_indptr, *out,
        k.stride(0), k.stride(1), v.stride(0), v.stride(1), k_new.stride(0), k_new.stride(1),
        v_new.stride(0), v_new.stride(1), *(up.stride()[:3] if up is not None else (0, 0, 0)),
        S_LN=lora.rows.stride(0) if lora is not None else 0, S_SET=lora.set_stride if lora is not None else 0,
        S_LNN=lora_new.stride(0) if lora is not None else 0,
        S_SETN=lora_new.stride(1) if lora is not None and lora_new.dim() == 3 else 0,
        HKV=heads, D=dim, DP=padded(dim), R=rank, RP=padded(rank), BT=block, PREFIX=pages is not None,
        FOLD=lora is not None, INDIRECT=req is not None, num_warps=4,
    )  # fmt: skip
