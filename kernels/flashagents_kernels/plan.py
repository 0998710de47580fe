"""What decode prepares once a forward pass: the pieces of work, and room for their results."""

from __future__ import annotations

from typing import Any

import torch

from .checks import require_index
from .configs import DecodeConfig, decode_config
from .core import interpreted, padded
from .errors import WorkspaceError


def processors(device: Any) -> int:
    """Multiprocessors of a device (a small number without one, for the interpreter)."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).multi_processor_count)
    return 4


class DecodePlan:
    """The pieces into which a decode batch is cut, and the buffers of their partial results.

    Long requests get more pieces than short ones. The tables live on the device and are written by a
    kernel from `kv_indptr`: no host synchronisation, and grids depend on the batch size alone, so a
    captured graph stays valid for any lengths. All layers of a forward pass share one plan.

    Args:
        max_batch: the largest batch.
        q_heads: query heads.
        kv_heads: KV heads.
        head_dim: head dimension.
        max_rank: the largest LoRA rank, 0 if decode is never called with LoRA.
        device: where the tables live.
        window_left: as given to decode; a model with windowed and full layers keeps two plans.
        config: a launch configuration, for tuning.

    Example:
        plan = DecodePlan(64, 32, 8, 128, max_rank=16, device="cuda")
        plan.update(kv_indptr)                       # once a forward pass
        for layer in layers:
            decode(q, k, v, kv_indptr, kv_indices, lora=lora, plan=plan)
    """

    def __init__(
        self,
        max_batch: int,
        q_heads: int,
        kv_heads: int,
        head_dim: int,
        max_rank: int = 0,
        *,
        device: Any,
        window_left: int = -1,
        config: DecodeConfig | None = None,
    ) -> None:
        device = torch.device(device)
        self.max_batch = max_batch
        self.shape = (q_heads, kv_heads, head_dim)
        self.max_rank = max_rank
        self.window_left = window_left
        self._config = config
        self._processors = processors(device)
        self.batch = 0
        items = max(self.items(b) for b in {1, max_batch} | {1 << i for i in range(max_batch.bit_length())})
        self._max_items = items
        rows = items * q_heads
        self.start = torch.zeros(max_batch + 1, dtype=torch.int32, device=device)
        self.work = torch.full((items,), -1, dtype=torch.int32, device=device)
        self.chunk = torch.ones(1, dtype=torch.int32, device=device)
        self.partial_out = torch.empty(rows * padded(head_dim), dtype=torch.float32, device=device)
        self.partial_low = torch.empty(
            rows * padded(max_rank) if max_rank else 0, dtype=torch.float32, device=device
        )
        self.partial_lse = torch.empty(rows, dtype=torch.float32, device=device)

    def config(self, batch: int) -> DecodeConfig:
        """The launch configuration of a batch size."""
        _, kv_heads, head_dim = self.shape
        if self._config is not None:
            return self._config.fit(kv_heads)
        return decode_config(kv_heads, head_dim, self.max_rank, batch)

    def target(self, batch: int) -> int:
        """Pieces to aim for: so many that all heads' programs fill the device `waves` times."""
        config = self.config(batch)
        programs = self.shape[1] // config.heads
        return max(1, self._processors * config.waves // programs)

    def items(self, batch: int) -> int:
        """The most pieces that `update` makes of a batch: the grid of the split kernel."""
        return max(self.target(batch), batch)

    def update(self, kv_indptr: Any) -> DecodePlan:
        """Cut the batch that `kv_indptr` (`[batch + 1]`, int32 or int64) describes. Capturable.

        Raises:
            WorkspaceError: the batch is larger than `max_batch`.
        """
        require_index("kv_indptr", kv_indptr)
        batch = int(kv_indptr.shape[0]) - 1
        if batch > self.max_batch:
            raise WorkspaceError(f"a batch of {batch} in a plan for {self.max_batch}: make a larger plan")
        self.batch = batch
        if kv_indptr.device.type != "cuda" and not interpreted():
            return self  # the torch path needs no plan
        from ._plan import decode_plan_kernel

        block = padded(max(batch, 1), 2)
        items = self.items(batch)
        decode_plan_kernel[(1,)](
            kv_indptr, self.start, self.work, self.chunk, batch, self.target(batch), self.window_left,
            BS=block, NI=items, BI=max(1, min(128, 4096 // block)), UNIT=self.config(batch).block_n,
            WINDOW=self.window_left >= 0, num_warps=4,
        )  # fmt: skip
        return self

    def check(
        self, batch: int, q_heads: int, kv_heads: int, head_dim: int, rank: int, window_left: int
    ) -> None:
        """Raise `WorkspaceError` unless the plan was made and updated for such a call."""
        if (q_heads, kv_heads, head_dim) != self.shape:
            raise WorkspaceError(
                f"the plan is for {self.shape}, the call for {(q_heads, kv_heads, head_dim)}"
            )
        if rank > self.max_rank:
            raise WorkspaceError(f"rank {rank} with a plan for rank {self.max_rank}: raise max_rank")
        if window_left != self.window_left:
            raise WorkspaceError(f"window_left {window_left} with a plan for {self.window_left}")
        if batch != self.batch:
            raise WorkspaceError(
                f"batch {batch}, but the plan holds {self.batch}: call plan.update(kv_indptr)"
            )
