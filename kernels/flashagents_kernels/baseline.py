"""What Flash-LoRA-Attention replaces: rebuild V for the whole context, then attend."""

from __future__ import annotations

from typing import Any

from .checks import check_kv, check_lora, check_query, require_index
from .core import Backend, LoraValues, padded, use_triton
from .decode import decode
from .extend import extend
from .reference import adapter_of, values


def reconstruct(
    q: Any,
    k_cache: Any,
    v_cache: Any,
    kv_indptr: Any,
    kv_indices: Any,
    lora: LoraValues,
    v_out: Any,
    *,
    backend: Backend = "auto",
) -> None:
    """Write `V_base + V_lr B` of every slot in the page table to `v_out`, a buffer like `v_cache`.

    A slot shared by requests with different adapters cannot hold both: use this for comparison only.

    Raises:
        ShapeError, DtypeError, DeviceError: a bad argument, named.

    Example:
        reconstruct(q, k_cache, v_cache, kv_indptr, kv_indices, lora, v_full)
        decode(q, k_cache, v_full, kv_indptr, kv_indices)
    """
    check_query(q)
    kv_heads = check_kv("cache", k_cache, v_cache, q)
    check_kv("cache", k_cache, v_out, q)
    require_index("kv_indptr", kv_indptr)
    require_index("kv_indices", kv_indices)
    batch = int(kv_indptr.shape[0]) - 1
    check_lora(lora, q, kv_heads, batch, v_cache.shape[0])
    if not use_triton(backend, q):
        ends = kv_indptr.tolist()
        for b, adapter in enumerate(adapter_of(lora, batch)):
            slots = kv_indices[ends[b] : ends[b + 1]].long()
            full = values(v_cache[slots].float(), lora.rows[slots], lora, adapter, v_cache.float().dtype)
            v_out[slots] = full.to(v_out.dtype)
        return
    from ._gather import reconstruct_kernel

    dim = v_cache.shape[2]
    count = int(kv_indices.shape[0])
    block = 64
    req = lora.req_pool_indices
    programs = max(1, min(-(-count // (batch * block)), 4096 // max(1, batch * kv_heads)))
    reconstruct_kernel[(programs, kv_heads, batch)](
        v_cache, lora.rows, lora.up, kv_indptr, kv_indices, lora.adapter,
        req if req is not None else lora.adapter, v_out, v_cache.stride(0), v_cache.stride(1),
        lora.up.stride(0), lora.up.stride(1), lora.up.stride(2), v_out.stride(0), v_out.stride(1),
        S_LN=lora.rows.stride(0), S_SET=lora.set_stride, D=dim, DP=padded(dim), R=lora.rank,
        RP=padded(lora.rank), BT=block,
        INDIRECT=req is not None, num_warps=4,
    )  # fmt: skip


def reconstruct_then_decode(
    q: Any,
    k_cache: Any,
    v_cache: Any,
    kv_indptr: Any,
    kv_indices: Any,
    lora: LoraValues,
    v_out: Any,
    **options: Any,
) -> Any:
    """`reconstruct`, then `decode` without a low-rank term; `options` go to `decode`."""
    backend = options.get("backend", "auto")
    reconstruct(q, k_cache, v_cache, kv_indptr, kv_indices, lora, v_out, backend=backend)
    return decode(q, k_cache, v_out, kv_indptr, kv_indices, **options)


def reconstruct_then_extend(
    q: Any,
    k_new: Any,
    v_new_full: Any,
    qo_indptr: Any,
    k_cache: Any,
    v_cache: Any,
    kv_indptr: Any,
    kv_indices: Any,
    lora: LoraValues,
    v_out: Any,
    **options: Any,
) -> Any:
    """`reconstruct` the prefix, then `extend`; the new tokens' V comes with its low-rank part added."""
    backend = options.get("backend", "auto")
    reconstruct(q, k_cache, v_cache, kv_indptr, kv_indices, lora, v_out, backend=backend)
    return extend(q, k_new, v_new_full, qo_indptr, k_cache, v_out, kv_indptr, kv_indices, **options)
