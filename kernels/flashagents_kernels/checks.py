"""Argument checks of the operators. None of them reads device memory, so they are safe under capture."""

from __future__ import annotations

from typing import Any

import torch

from .core import MAX_HEAD_DIM, MAX_RANK, LoraValues
from .errors import DeviceError, DtypeError, ShapeError, UnsupportedError

_FLOATS = (torch.bfloat16, torch.float16)
_INDICES = (torch.int32, torch.int64)


def require_shape(name: str, tensor: Any, shape: tuple[int | None, ...]) -> None:
    """Raise unless `tensor` has `shape` (None: any size)."""
    got = tuple(tensor.shape)
    if len(got) != len(shape) or any(w is not None and w != g for g, w in zip(got, shape, strict=True)):
        want = "[" + ", ".join("*" if s is None else str(s) for s in shape) + "]"
        raise ShapeError(f"{name} must have the shape {want}, not {list(got)}")


def require_index(name: str, tensor: Any, length: int | None = None) -> None:
    """Raise unless `tensor` is a contiguous 1-D int32 or int64 tensor."""
    if tensor.dtype not in _INDICES:
        raise DtypeError(f"{name} must be int32 or int64, not {tensor.dtype}")
    require_shape(name, tensor, (length,))
    if not tensor.is_contiguous():
        raise ShapeError(f"{name} must be contiguous: pass {name}.contiguous()")


def require_like(name: str, tensor: Any, q: Any) -> None:
    """Raise unless `tensor` has the dtype and device of `q` and a contiguous last dimension."""
    if tensor.dtype != q.dtype:
        raise DtypeError(f"{name} is {tensor.dtype} and q is {q.dtype}: cast one of them")
    if tensor.device != q.device:
        raise DeviceError(f"{name} is on {tensor.device} and q on {q.device}: move one of them")
    if tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
        raise ShapeError(f"the last dimension of {name} must be contiguous: pass {name}.contiguous()")


def check_query(q: Any) -> tuple[int, int, int]:
    """Check `q` `[n, heads, head_dim]` and return its shape."""
    require_shape("q", q, (None, None, None))
    n, heads, dim = q.shape
    if q.dtype not in _FLOATS and not (q.dtype == torch.float32 and q.device.type == "cpu"):
        raise DtypeError(f"q must be bfloat16 or float16 (float32 on the CPU too), not {q.dtype}")
    if q.stride(-1) != 1:
        raise ShapeError("the last dimension of q must be contiguous: pass q.contiguous()")
    if dim > MAX_HEAD_DIM or dim % 16:
        raise UnsupportedError(f"head_dim must be a multiple of 16 up to {MAX_HEAD_DIM}, not {dim}")
    return int(n), int(heads), int(dim)


def check_kv(name: str, k: Any, v: Any, q: Any) -> int:
    """Check K and V rows `[n, kv_heads, head_dim]` against `q`; return the number of KV heads."""
    require_shape(f"k_{name}", k, (None, None, q.shape[2]))
    require_shape(f"v_{name}", v, tuple(k.shape))
    require_like(f"k_{name}", k, q)
    require_like(f"v_{name}", v, q)
    kv_heads = int(k.shape[1])
    if kv_heads == 0 or q.shape[1] % kv_heads:
        raise ShapeError(f"{q.shape[1]} query heads cannot be divided among {kv_heads} KV heads")
    return kv_heads


def check_prefix(
    k_cache: Any, v_cache: Any, kv_indptr: Any, kv_indices: Any, q: Any, kv_heads: int, batch: int
) -> bool:
    """Check the paged prefix of a batch, where it has one; returns whether it has."""
    if kv_indices is None or kv_indices.shape[0] == 0:
        return False
    if k_cache is None or v_cache is None or kv_indptr is None:
        raise ShapeError("a prefix needs k_cache, v_cache, kv_indptr and kv_indices")
    if check_kv("cache", k_cache, v_cache, q) != kv_heads:
        raise ShapeError(f"k_cache has {k_cache.shape[1]} KV heads and k_new {kv_heads}")
    require_index("kv_indptr", kv_indptr, batch + 1)
    require_index("kv_indices", kv_indices)
    return True


def check_new(lora: LoraValues | None, lora_new: Any, q: Any, max_new: int) -> None:
    """Check what goes with the new tokens `q` `[tokens, heads, head_dim]`."""
    if lora is not None:
        check_rows_new(lora, lora_new, q)
    if max_new < 1 and q.shape[0]:
        raise ShapeError(f"max_new must be at least 1, not {max_new}")


def check_options(logit_cap: float, window_left: int) -> None:
    """Check the soft cap and the window."""
    if logit_cap < 0:
        raise UnsupportedError(f"logit_cap must be 0 (off) or positive, not {logit_cap}")
    if window_left < -1:
        raise UnsupportedError(f"window_left must be -1 (off) or at least 0, not {window_left}")


def check_lora(lora: LoraValues, q: Any, kv_heads: int, batch: int, slots: int | None) -> None:
    """Check the low-rank term against `q`, the KV heads, the batch and the number of slots."""
    if lora.rows.dim() not in (2, 3):
        raise ShapeError(f"lora.rows must be [slots, r] or [slots, sets, r], not {list(lora.rows.shape)}")
    require_shape("lora.up", lora.up, (None, kv_heads, None, q.shape[2]))
    if not 1 <= lora.rank <= MAX_RANK:
        raise UnsupportedError(f"the rank must be 1 to {MAX_RANK}, not {lora.rank}")
    if lora.rows.shape[-1] != lora.rank:
        raise ShapeError(f"lora.rows has rank {lora.rows.shape[-1]} and lora.up rank {lora.rank}")
    if lora.rows.dim() == 3 and lora.sets < lora.up.shape[0] - 1:
        raise ShapeError(f"lora.rows has {lora.sets} row sets for {lora.up.shape[0] - 1} adapters")
    if slots is not None and lora.rows.shape[0] < slots:
        raise ShapeError(f"lora.rows has {lora.rows.shape[0]} slots and the cache {slots}")
    require_like("lora.rows", lora.rows, q)
    require_like("lora.up", lora.up, q)
    if lora.req_pool_indices is None:
        require_index("lora.adapter", lora.adapter)
        if lora.adapter.shape[0] < batch:
            raise ShapeError(f"lora.adapter has {lora.adapter.shape[0]} entries for {batch} requests")
    else:
        require_index("lora.adapter", lora.adapter)
        require_index("lora.req_pool_indices", lora.req_pool_indices)
        if lora.req_pool_indices.shape[0] < batch:
            raise ShapeError(
                f"lora.req_pool_indices has {lora.req_pool_indices.shape[0]} entries for {batch} requests"
            )


def check_rows_new(lora: LoraValues, lora_new: Any, q: Any) -> None:
    """Check the low-rank rows of the new tokens."""
    if lora_new is None:
        raise ShapeError("lora_new is missing: extend needs the new tokens' low-rank rows beside lora")
    want = (q.shape[0], lora.rank) if lora.rows.dim() == 2 else (q.shape[0], lora.sets, lora.rank)
    require_shape("lora_new", lora_new, want)
    require_like("lora_new", lora_new, q)


def check_out(out: Any, q: Any) -> None:
    """Check an output given by the caller."""
    require_shape("out", out, tuple(q.shape))
    require_like("out", out, q)
