"""The variants of a cell, each as a list of calls over different data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from flashagents_kernels import flash_lora_attention as fla
from flashagents_kernels.configs import DecodeConfig, ExtendConfig

from . import external
from .cases import ALL_RANKS, DIM, RANKS, Cell, Pool, filled

Calls = list[Callable[[], Any]]


class DecodeInputs:
    def __init__(self, cell: Cell, pool: Pool) -> None:
        self.cell, self.pool = cell, pool
        q_heads, kv_heads = cell.heads
        self.q = filled(cell.batch, q_heads, DIM)
        self.out = torch.empty_like(self.q)
        self.indptr = torch.arange(cell.batch + 1, device="cuda", dtype=torch.int32) * cell.context
        self.segments = pool.segments(cell.batch * cell.context, 4 * kv_heads * DIM)

    def ours(self, rank: int, config: DecodeConfig | None = None) -> Calls:
        q_heads, kv_heads = self.cell.heads
        batch, pool = self.cell.batch, self.pool
        lora = pool.lora(rank, batch)
        plan = fla.DecodePlan(batch, q_heads, kv_heads, DIM, rank, device="cuda", config=config)
        plan.update(self.indptr)  # once a forward pass, for all layers
        return [
            lambda t=t: fla.decode(self.q, pool.k, pool.v, self.indptr, t, lora=lora, out=self.out, plan=plan)
            for t in self.segments
        ]

    def reconstruct(self, rank: int) -> Calls:
        q_heads, kv_heads = self.cell.heads
        batch, pool = self.cell.batch, self.pool
        lora, scratch = pool.lora(rank, batch), torch.empty_like(pool.v)
        plan = fla.DecodePlan(batch, q_heads, kv_heads, DIM, 0, device="cuda")
        plan.update(self.indptr)
        return [
            lambda t=t: fla.reconstruct_then_decode(
                self.q, pool.k, pool.v, self.indptr, t, lora, scratch, out=self.out, plan=plan
            )
            for t in self.segments
        ]


class ExtendInputs:
    def __init__(self, cell: Cell, pool: Pool) -> None:
        self.cell, self.pool = cell, pool
        q_heads, kv_heads = cell.heads
        new, prefix = cell.new, cell.prefix
        self.q, self.out = filled(new, q_heads, DIM), filled(new, q_heads, DIM)
        self.k, self.v = filled(new, kv_heads, DIM), filled(new, kv_heads, DIM)
        self.rows = {r: filled(new, r) for r in ALL_RANKS}
        self.starts = torch.tensor([0, new], dtype=torch.int32, device="cuda")
        self.indptr = torch.tensor([0, prefix], dtype=torch.int32, device="cuda")
        self.segments = pool.segments(prefix + new, 4 * kv_heads * DIM)[:8]

    def ours(self, rank: int, config: ExtendConfig | None = None) -> Calls:
        pool, prefix = self.pool, self.cell.prefix
        lora, rows = pool.lora(rank, 1), self.rows.get(rank)

        def call(table: Any) -> Any:
            pages = (pool.k, pool.v, self.indptr, table[:prefix]) if prefix else ()
            return fla.extend(
                self.q, self.k, self.v, self.starts, *pages, max_new=self.cell.new, lora=lora,
                lora_new=rows, out=self.out, config=config,
            )  # fmt: skip

        return [lambda t=t: call(t) for t in self.segments]

    def reconstruct(self, rank: int) -> Calls:
        """Rebuild V of the prefix from pages; of the new tokens by the same kernel over their rows."""
        pool, prefix = self.pool, self.cell.prefix
        lora, rows = pool.lora(rank, 1), self.rows[rank]
        assert lora is not None
        scratch, v_new = torch.empty_like(pool.v), torch.empty_like(self.v)
        own = torch.arange(self.cell.new, dtype=torch.int32, device="cuda")
        lora_new = fla.LoraValues(rows, lora.up, lora.adapter)

        def call(table: Any) -> Any:
            fla.reconstruct(self.q, self.k, self.v, self.starts, own, lora_new, v_new)
            if not prefix:
                return fla.extend(self.q, self.k, v_new, self.starts, max_new=self.cell.new, out=self.out)
            return fla.reconstruct_then_extend(
                self.q, self.k, v_new, self.starts, pool.k, pool.v, self.indptr, table[:prefix], lora,
                scratch, max_new=self.cell.new, out=self.out,
            )  # fmt: skip

        return [lambda t=t: call(t) for t in self.segments]


def variants(
    cell: Cell, pool: Pool, lib: dict[str, Any]
) -> Iterator[tuple[str, int, Callable[[], list[Calls]]]]:
    """(name, rank, how to make the candidates of which the fastest counts)."""
    x = DecodeInputs(cell, pool) if cell.op == "decode" else ExtendInputs(cell, pool)
    yield "no_lora_twin", 0, lambda: [x.ours(0)]
    for rank in RANKS:
        yield "ours", rank, lambda rank=rank: [x.ours(rank)]
    yield "reconstruct", 16, lambda: [x.reconstruct(16)]
    if isinstance(x, DecodeInputs):
        if "fa3" in lib:
            yield "fa3", 0, lambda: [external.fa3_decode(lib, cell, pool, x.q, x.segments)]
        if "sglang_decode" in lib and pool.k.numel() < 1 << 31:  # its offsets are 32-bit
            yield (
                "sglang_triton", 0,
                lambda: [external.sglang_decode(lib, cell, pool, x.q, x.segments, s) for s in (8, 16, 32)],
            )  # fmt: skip
    else:
        if "fa3" in lib:
            yield "fa3", 0, lambda: [external.fa3_extend(lib, cell, pool, x.q, x.segments)]
        if "sglang_extend" in lib:
            yield (
                "sglang_triton", 0,
                lambda: [external.sglang_extend(lib, cell, pool, x.q, x.k, x.v, x.segments)],
            )  # fmt: skip
