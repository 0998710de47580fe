"""Launch configurations, chosen by measurement on an H200 and looked up by shape class.

Nothing is tuned while serving. `benchmarks/kernels` searches the space again and prints the table.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd

from .core import padded


@dataclass(frozen=True, slots=True)
class DecodeConfig:
    """heads: KV heads of one program (and its warps); waves: programs per multiprocessor to aim for;
    spread: low-rank rows once a head in shared memory; pdl: the merge is launched with the pieces
    (1), at their ends (2), or after them (0)."""

    heads: int = 4
    block_n: int = 16
    stages: int = 5
    waves: int = 2
    spread: bool = True
    pdl: int = 0

    def fit(self, kv_heads: int) -> DecodeConfig:
        """This configuration with `heads` reduced to a divisor of `kv_heads`."""
        return replace(self, heads=gcd(self.heads, kv_heads))


@dataclass(frozen=True, slots=True)
class ExtendConfig:
    """gather: copy a paged prefix to contiguous rows first, adding the low-rank part to V; splits: pieces
    of the keys per block; masked_stages: pipeline depth of the masked tiles; pack: a block has the rows of
    all query heads of a KV head, instead of one's."""

    block_m: int = 128
    block_n: int = 64
    warps: int = 8
    stages: int = 3
    tma: bool = True
    gather: bool = False
    splits: int = 1
    masked_stages: int = 2
    pack: bool = False


def decode_config(kv_heads: int, head_dim: int, rank: int, batch: int) -> DecodeConfig:
    """The decode configuration of a shape class; `rank` 0 is attention without LoRA."""
    if padded(head_dim) > 128:
        config = DecodeConfig(4, 16, stages=3, spread=rank <= 32)
    elif rank > 32:
        config = DecodeConfig(4, 16, 7, 1, False) if batch == 1 else DecodeConfig(4, 16, 5, 2, False)
    elif rank and 1 < batch < 32:
        config = DecodeConfig(4, 16, 7, 1)
    elif rank == 0 and batch == 1 and kv_heads <= 4:
        config = DecodeConfig(1, 32, 7, 2)
    else:
        config = DecodeConfig(2, 16, 5, 2)
    # launched early, the merge gains at batch 1 and takes room from the pieces of larger batches
    return replace(config, pdl=int(batch == 1)).fit(kv_heads)


#: Most bytes of copied K and V.
COPIED = 2 << 30


def may_copy(tokens: int, slots: int, kv_heads: int, head_dim: int) -> bool:
    """Whether a prefix of so many tokens may be copied to contiguous rows, K and V of 16 bits.

    Requests that share a prefix count it each: without a bound, one long prompt among many short ones on a
    long shared prefix would need more memory than the cache itself.
    """
    return tokens <= 2 * slots and 4 * tokens * kv_heads * head_dim <= COPIED


def extend_config(
    q_heads: int,
    kv_heads: int,
    head_dim: int,
    rank: int,
    batch: int,
    max_new: int,
    prefix_tokens: int,
    processors: int,
    slots: int,
) -> ExtendConfig:
    """The extend configuration of a shape class; `prefix_tokens` bounds the prefix of all requests, in a
    cache of `slots`."""
    group = q_heads // kv_heads
    gather = max_new * group >= 2048 and may_copy(prefix_tokens, slots, kv_heads, head_dim)
    few = max_new <= 64 or (rank > 0 and not gather)
    if padded(head_dim) > 128:
        config = ExtendConfig(64, 32, 4, 2)
    elif few:
        config = ExtendConfig(64, 64, 4, 2)
    elif max_new <= 2048 and not prefix_tokens:
        config = ExtendConfig(64, 64, 4, 3)
    else:
        config = ExtendConfig(128, 128, 8, 3)
    blocks = -(-max_new // config.block_m) * q_heads * batch
    keys = max_new + prefix_tokens // max(batch, 1)
    resident = processors * (2 if config.block_m == 64 else 1)
    splits = 1
    while splits < 16 and blocks * splits * 2 <= resident and keys // (splits * 2) >= 512:
        splits *= 2
    return replace(config, gather=gather, splits=splits)
