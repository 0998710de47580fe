"""Launch configurations, chosen by measurement on an H200 and looked up by shape class.

Nothing is tuned while serving. `benchmarks/kernels` searches the space again and prints the table.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from .core import padded


@dataclass(frozen=True, slots=True)
class DecodeConfig:
    """heads: KV heads of one program (and its warps); waves: programs per multiprocessor to aim for."""

    heads: int = 4
    block_n: int = 16
    stages: int = 5
    waves: int = 2
    pdl: bool = False

    def fit(self, kv_heads: int) -> DecodeConfig:
        """This configuration with `heads` reduced to a divisor of `kv_heads`."""
        heads = gcd(self.heads, kv_heads)
        return DecodeConfig(heads, self.block_n, self.stages, self.waves, self.pdl)


@dataclass(frozen=True, slots=True)
class ExtendConfig:
    """gather: copy a paged prefix to contiguous rows first; splits: pieces of the keys per block."""

    block_m: int = 128
    block_n: int = 64
    warps: int = 8
    stages: int = 3
    tma: bool = True
    gather: bool = False
    splits: int = 1


def decode_config(kv_heads: int, head_dim: int, rank: int, batch: int) -> DecodeConfig:
    """The decode configuration of a shape class; `rank` 0 is attention without LoRA."""
    block_n = 16 if padded(head_dim) <= 128 else 8
    config = DecodeConfig(heads=4, block_n=max(16, block_n), stages=5 if head_dim <= 128 else 3)
    return config.fit(kv_heads)


def extend_config(
    q_heads: int,
    kv_heads: int,
    head_dim: int,
    rank: int,
    batch: int,
    max_new: int,
    prefix_tokens: int,
    processors: int,
) -> ExtendConfig:
    """The extend configuration of a shape class; `prefix_tokens` bounds the prefix of all requests."""
    if padded(head_dim) > 128:
        block_m, block_n, warps, stages = 64, 32, 4, 2
    elif max_new <= 64:
        block_m, block_n, warps, stages = 64, 64, 4, 3
    else:
        block_m, block_n, warps, stages = 128, 64, 8, 3
    blocks = -(-max_new // block_m) * q_heads * batch
    keys = max_new + prefix_tokens // max(batch, 1)
    splits = 1
    while splits < 16 and blocks * splits * 2 <= processors * 2 and keys // (splits * 2) >= 512:
        splits *= 2
    gather = prefix_tokens > 0 and max_new * (q_heads // kv_heads) >= 4096
    return ExtendConfig(block_m, block_n, warps, stages, True, gather, splits)
