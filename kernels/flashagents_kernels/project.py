"""project_lr: the low-rank rows of new tokens, `x A`, written to their slots."""

from __future__ import annotations

from typing import Any

import torch

from .checks import require_index, require_like, require_shape
from .core import Backend, padded, use_triton
from .errors import DtypeError, ShapeError
from .reference import project_lr_reference

#: Up to so many tokens each is a program of its own.
_FEW = 64


def project_lr(
    x: Any, down: Any, rows: Any, slots: Any, *, scale: float = 1.0, backend: Backend = "auto"
) -> None:
    """Write `scale * x A` to `rows[slots]`, for one shared A or for all agents' A stacked.

    Args:
        x: `[tokens, k]`, bf16 or fp16, last dimension contiguous: the input of the V projection.
        down: `[r, k]`, A as PEFT stores it, or `[sets, r, k]`; same dtype, contiguous.
        rows: `[slots, r]` or `[slots, sets, r]`, same dtype, a slot's row contiguous; written in place.
        slots: `[tokens]` int32 or int64; a negative slot (padding) is skipped. No slot twice.
        scale: factor applied in fp32 before the cast.
        backend: "auto" takes Triton for CUDA tensors and torch elsewhere.

    Raises:
        ShapeError, DtypeError, DeviceError: a bad argument, named.

    Example:
        >>> import torch
        >>> from flashagents_kernels.flash_lora_attention import project_lr
        >>> rows = torch.zeros(8, 4)
        >>> project_lr(torch.ones(2, 16), torch.ones(4, 16), rows, torch.tensor([5, 1]))
        >>> rows[:, 0].tolist()
        [0.0, 16.0, 0.0, 0.0, 0.0, 16.0, 0.0, 0.0]
    """
    require_shape("x", x, (None, None))
    tokens, k = x.shape
    if x.dtype not in (torch.bfloat16, torch.float16) and x.device.type != "cpu":
        raise DtypeError(f"x must be bfloat16 or float16, not {x.dtype}")
    if down.dim() not in (2, 3) or down.shape[-1] != k:
        raise ShapeError(f"down must be [r, {k}] or [sets, r, {k}], not {list(down.shape)}")
    if not down.is_contiguous():
        raise ShapeError("down must be contiguous: pass down.contiguous()")
    require_shape("rows", rows, (None, *down.shape[:-1]))
    for name, t in (("x", x), ("down", down), ("rows", rows)):
        require_like(name, t, x)
    if rows.dim() == 3 and rows.shape[1] > 1 and rows.stride(1) != rows.shape[2]:
        raise ShapeError("the sets of a slot in rows must be contiguous")
    require_index("slots", slots, tokens)
    if not use_triton(backend, x):
        live = slots >= 0
        rows[slots[live].long()] = project_lr_reference(x[live], down, scale).to(rows.dtype)
        return
    if tokens == 0:
        return
    from ._project import project_lr_few_kernel, project_lr_kernel

    columns = down.numel() // k
    if tokens <= _FEW:
        block_r = 8
        project_lr_few_kernel[(tokens, -(-columns // block_r))](
            x, down, rows, slots, scale, x.stride(0), k, rows.stride(0),
            K=k, N=columns, BR=block_r, BK=min(2048, padded(k)), num_warps=8,
        )  # fmt: skip
        return
    block_r = min(64, padded(columns))
    small = tokens <= 256
    block_t, block_k = (16, 256) if small else (64, 64)
    project_lr_kernel[(-(-tokens // block_t), -(-columns // block_r))](
        x, down, rows, slots, scale, tokens, x.stride(0), k, rows.stride(0),
        K=k, N=columns, BT=block_t, BR=block_r, BK=block_k, num_warps=4, num_stages=4,
    )  # fmt: skip
