"""Seeded, poisoned inputs for the operators, and the tolerance rule."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from flashagents_kernels.flash_lora_attention import LoraValues

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ON_GPU = DEVICE.type == "cuda"
FP16 = torch.float16
BF16 = torch.bfloat16 if ON_GPU else torch.float16  # the interpreter has no bf16 dot


def randn(gen: torch.Generator, *shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(*shape, generator=gen).to(dtype).to(DEVICE)


def poisoned(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.full(shape, float("nan"), dtype=dtype, device=DEVICE)


@dataclass
class Case:
    """A batch over a paged cache whose unused slots are NaN."""

    lengths: list[int]  # cached tokens of each request
    new: list[int] = field(default_factory=list)  # new tokens of each request (extend)
    q_heads: int = 4
    kv_heads: int = 2
    dim: int = 64
    rank: int = 16  # 0: plain attention
    adapters: int = 3  # with entry 0, which is NaN
    sets: int = 0  # row sets; 0: one shared, 2-D
    page: int = 1
    dtype: torch.dtype = torch.float16
    index: torch.dtype = torch.int32
    indirect: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        gen = torch.Generator().manual_seed(self.seed)
        batch = len(self.lengths)
        pages = [-(-n // self.page) for n in self.lengths]
        slots = (sum(pages) + 3) * self.page
        order = torch.randperm(slots // self.page, generator=gen)
        taken, indices = 0, []
        for n, count in zip(self.lengths, pages, strict=True):
            mine = order[taken : taken + count, None] * self.page + torch.arange(self.page)
            indices.append(mine.reshape(-1)[:n])
            taken += count
        used = torch.cat(indices) if indices else torch.zeros(0, dtype=torch.long)
        self.kv_indices = used.to(self.index).to(DEVICE)
        self.kv_indptr = self.offsets(self.lengths)
        free = torch.ones(slots, dtype=torch.bool)
        free[used] = False
        dtype, kv, dim = self.dtype, self.kv_heads, self.dim
        self.k = randn(gen, slots, kv, dim, dtype=dtype)
        self.v = randn(gen, slots, kv, dim, dtype=dtype)
        self.k[free], self.v[free] = float("nan"), float("nan")
        tokens = sum(self.new) if self.new else batch
        self.q = randn(gen, tokens, self.q_heads, dim, dtype=dtype)
        self.lora: LoraValues | None = None
        self.lora_new: Any = None
        if self.new:
            fused = randn(gen, tokens, 2 * kv * dim + 16, dtype=dtype)  # K and V as views of one projection
            self.k_new = fused[:, : kv * dim].view(tokens, kv, dim)
            self.v_new = fused[:, kv * dim : 2 * kv * dim].view(tokens, kv, dim)
            self.qo_indptr = self.offsets(self.new)
        if self.rank:
            width = (self.sets, self.rank) if self.sets else (self.rank,)
            rows = randn(gen, slots, *width, dtype=dtype)
            rows[free] = float("nan")
            up = (randn(gen, self.adapters, kv, self.rank, dim, dtype=torch.float32) * self.rank**-0.5).to(
                dtype
            )
            up[0] = float("nan")
            which = (torch.arange(batch) + self.seed + 1) % self.adapters
            req = None
            if self.indirect:
                table = torch.zeros(2 * batch + 5, dtype=torch.long)
                place = torch.randperm(2 * batch + 5, generator=gen)[:batch]
                table[place] = which
                which, req = table, place.to(self.index).to(DEVICE)
            self.lora = LoraValues(rows, up, which.to(self.index).to(DEVICE), req)
            if self.new:
                self.lora_new = randn(gen, tokens, *width, dtype=dtype)

    def offsets(self, counts: list[int]) -> torch.Tensor:
        return torch.tensor([0, *counts]).cumsum(0).to(self.index).to(DEVICE)

    def __str__(self) -> str:
        parts = [f"B{len(self.lengths)}", f"T{max(self.lengths, default=0)}"]
        if self.new:
            parts.append(f"N{max(self.new)}")
        parts += [f"H{self.q_heads}:{self.kv_heads}", f"D{self.dim}", f"r{self.rank}"]
        parts += [str(self.dtype).removeprefix("torch.")]
        if self.index == torch.int64:
            parts.append("int64")
        if self.page > 1:
            parts.append(f"page{self.page}")
        if self.sets:
            parts.append(f"sets{self.sets}")
        if self.indirect:
            parts.append("table")
        return "-".join(parts)


def judge(out: Any, ref32: Any, ref_low: Any, atol: float = 1e-3) -> None:
    """The error against fp32 is at most twice that of low-precision torch, in maximum and in RMS."""
    assert not torch.isnan(out).any(), "NaN in the output: something unused was read, or never written"
    out, ref32, ref_low = out.double().cpu(), ref32.double().cpu(), ref_low.double().cpu()
    worst, allowed = (out - ref32).abs().max().item(), 2 * (ref_low - ref32).abs().max().item() + atol
    assert worst <= allowed, f"maximum error {worst:.3e} > {allowed:.3e}"
    rms, rms_low = ((x - ref32).pow(2).mean().sqrt().item() for x in (out, ref_low))
    assert rms <= 2 * rms_low + 1e-5, f"RMS error {rms:.3e}, low-precision torch {rms_low:.3e}"
