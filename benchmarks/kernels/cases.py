"""The cells of the benchmark: shapes, sizes, and their inputs on the device."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import torch

from flashagents_kernels.flash_lora_attention import LoraValues

SHAPES = {"llama3.1-8b": (32, 8), "qwen2.5-7b": (28, 4), "qwen3-32b": (64, 8)}
DIM = 128
RANKS = (8, 16, 64)
ALL_RANKS = (8, 16, 32, 64)
L2_BYTES = 60 << 20


@dataclass(frozen=True)
class Cell:
    """One decode (batch, context) or extend (new, prefix) case of a model's heads."""

    op: str
    shape: str
    batch: int = 1
    context: int = 0
    new: int = 0
    prefix: int = 0

    @property
    def key(self) -> str:
        if self.op == "decode":
            return f"decode/{self.shape}/b{self.batch}/c{self.context}"
        return f"extend/{self.shape}/n{self.new}/p{self.prefix}"

    @property
    def heads(self) -> tuple[int, int]:
        return SHAPES[self.shape]

    def case(self) -> dict[str, Any]:
        if self.op == "decode":
            return {"op": "decode", "shape": self.shape, "batch": self.batch, "context": self.context}
        return {"op": "extend", "shape": self.shape, "batch": 1, "new": self.new, "prefix": self.prefix}

    def roofline_us(self, rank: int, ceiling: dict[str, float]) -> float:
        """The larger of bytes over the copy bandwidth and multiply-adds over the matrix rate."""
        q_heads, kv_heads = self.heads
        row = 2 * (2 * kv_heads * DIM + rank)
        if self.op == "decode":
            return self.batch * self.context * row / ceiling["copy_gbs"] / 1e3
        pairs = self.new * self.prefix + self.new * (self.new + 1) / 2
        flops = 2 * q_heads * pairs * (2 * DIM + rank)
        moved = (self.prefix + self.new) * row + 4 * self.new * q_heads * DIM
        return max(flops / ceiling["matmul_tflops"] / 1e6, moved / ceiling["copy_gbs"] / 1e3)


def decode_cells() -> list[Cell]:
    sizes = itertools.product(SHAPES, (1, 8, 32, 128), (1024, 8192, 32768, 131072))
    return [Cell("decode", s, batch=b, context=c) for s, b, c in sizes]


def extend_cells() -> list[Cell]:
    sizes = itertools.product(SHAPES, (128, 512, 2048, 8192), (0, 2048, 8192, 32768))
    return [Cell("extend", s, new=n, prefix=p) for s, n, p in sizes]


def filled(*shape: int) -> Any:
    """Random bf16; a large tensor repeats its first gigabyte."""
    out = torch.empty(shape, device="cuda", dtype=torch.bfloat16)
    flat = out.view(-1)
    part = min(flat.numel(), 1 << 29)
    flat[:part].normal_()
    for start in range(part, flat.numel(), part):
        stop = min(start + part, flat.numel())
        flat[start:stop] = flat[: stop - start]
    return out


class Pool:
    """One K/V pool with low-rank rows of each rank, and a shuffled page table."""

    def __init__(self, kv_heads: int, slots: int, page: int = 1) -> None:
        self.slots = slots
        self.k, self.v = filled(slots, kv_heads, DIM), filled(slots, kv_heads, DIM)
        self.rows = {r: filled(slots, r) for r in ALL_RANKS}
        self.up = {r: filled(4, kv_heads, r, DIM) for r in ALL_RANKS}
        pages = torch.randperm(slots // page, device="cuda")[:, None] * page
        self.order = (pages + torch.arange(page, device="cuda")).view(-1).to(torch.int32)

    def lora(self, rank: int, batch: int) -> LoraValues | None:
        if rank == 0:
            return None
        adapter = (torch.arange(batch, device="cuda") % 3 + 1).to(torch.int32)
        return LoraValues(self.rows[rank], self.up[rank], adapter)

    def segments(self, tokens: int, row_bytes: int) -> list[Any]:
        """Disjoint page tables of `tokens` tokens, enough to outgrow the L2 cache."""
        count = max(1, min(self.slots // tokens, 1 + 4 * L2_BYTES // max(1, tokens * row_bytes)))
        return [self.order[i * tokens : (i + 1) * tokens] for i in range(count)]
