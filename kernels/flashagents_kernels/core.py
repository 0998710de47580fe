"""Types shared by the operators: the low-rank value term and the choice of a backend."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Literal

from .errors import DeviceError

Backend = Literal["auto", "triton", "torch"]

MAX_RANK = 64
MAX_HEAD_DIM = 256


@dataclass(frozen=True, slots=True)
class LoraValues:
    """The low-rank part of V: slot s of a request with adapter i holds `V_base + rows[s] @ up[i]`.

    Scales belong in `up` (or in `project_lr`): attention applies none.

    Attributes:
        rows: `[slots, r]`, one row set that all adapters share, or `[slots, sets, r]`, where adapter i
            reads set i - 1. Same slot index as K and V, same dtype, last dimension contiguous. Written
            by `project_lr`. Unused slots may hold anything, NaN too.
        up: `[adapters, kv_heads, r, head_dim]`, same dtype. Entry 0 is never read. An adapter of
            smaller rank pads its entry with zeros and its columns in `rows` with finite values.
        adapter: int32 or int64. The adapter of request b is `adapter[b]`, or
            `adapter[req_pool_indices[b]]` where the latter is given. 0: no adapter, at the cost of
            plain attention.
        req_pool_indices: `[batch]` int32 or int64, or None.
    """

    rows: Any
    up: Any
    adapter: Any
    req_pool_indices: Any = None

    @property
    def rank(self) -> int:
        return int(self.up.shape[2])

    @property
    def sets(self) -> int:
        """Row sets; 1 where all adapters share one."""
        return int(self.rows.shape[1]) if self.rows.dim() == 3 else 1

    @property
    def set_stride(self) -> int:
        """Elements from one row set to the next; 0 where all adapters share one."""
        return int(self.rows.stride(1)) if self.rows.dim() == 3 else 0


def interpreted() -> bool:
    """Whether Triton runs its kernels in the CPU interpreter."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def use_triton(backend: str, tensor: Any) -> bool:
    """Whether a call takes the Triton kernels (else the torch reference).

    Raises:
        DeviceError: Triton was asked for by name on a device that cannot run it.
    """
    if backend == "torch":
        return False
    on_gpu = tensor.device.type == "cuda"
    if backend == "triton":
        if not on_gpu and not interpreted():
            raise DeviceError(
                f'backend="triton" needs CUDA tensors, these are on {tensor.device}; use backend="auto", '
                "or set TRITON_INTERPRET=1 before triton is imported to run the kernels on the CPU"
            )
        return True
    if backend != "auto":
        raise DeviceError(f'backend must be "auto", "triton" or "torch", not {backend!r}')
    return bool(on_gpu)


def padded(n: int, least: int = 16) -> int:
    """The power of two, at least `least`, that holds `n`."""
    return max(least, 1 << (n - 1).bit_length())
