"""What a cell will take, reckoned before it is measured: tokens that have to be computed, and seconds.

The rates are of an 8B model on an H200, rounded from what benchmarks before this one have shown; a run
corrects them by what its cells have taken so far.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.lora_sharing.cells import Cell, Group
from benchmarks.lora_sharing.trace import CONTEXTS, Step, common_tokens, steps

START = 100.0
"""Seconds until engines that start together are up and have their adapters."""
WARM_UP = 30.0
MEMORY = 139 * 2**30
"""Bytes of the GPU."""
WEIGHTS = 16.1e9
ENGINE = 3.5e9
"""Bytes of an engine besides weights and pool: CUDA, graphs, activations of a chunk."""
KV_TOKEN = 131_072
"""Bytes of a token's K and V."""
ROW_TOKEN = 512
"""Bytes of a token's row, r = 8."""

_PASS = 0.012  # seconds of a prefill, however short
_TOKEN = 25e-6  # of a prompt token: 40,000 a second
_ATTENTION = 0.95e-9  # of a prompt token, for each token before it
_DECODE, _DECODE_MORE = 5.6e-3, 0.43e-3  # of a decode step: at all, and for each request
_READ = 4e12  # bytes of KV a second


@dataclass
class Work:
    """What one variant does in one run of a cell.

    Attributes:
        computed: prompt tokens.
        seconds: all of it.
        evicted: tokens that had to leave a pool that was too small.
    """

    computed: int = 0
    seconds: float = 0.0
    evicted: int = 0


class Cache:
    """What is cached, as chains of tokens; the least recently used one gives way first."""

    def __init__(self, pool: int) -> None:
        self._pool = pool
        self._chains: dict[tuple[int, int], int] = {}
        self.evicted = 0

    def length(self, chain: tuple[int, int]) -> int:
        """Tokens of the chain that are there."""
        return self._chains.get(chain, 0)

    def keep(self, chains: dict[tuple[int, int], int]) -> None:
        """These chains have been used and are so long now."""
        for chain, length in chains.items():
            self._chains.pop(chain, None)
            self._chains[chain] = length
        over = sum(self._chains.values()) - self._pool
        for chain in list(self._chains):
            if over <= 0:
                break
            if chain in chains:
                continue
            gone = min(over, self._chains[chain])
            self._chains[chain] -= gone
            self.evicted += gone
            over -= gone


_COMMON = -1


def work(variant: str, cell: Cell, pool: int, *, scale: int = 1) -> Work:
    """Play a cell: trajectories take the steps of the trace in turns, from an empty cache.

    Args:
        pool: tokens that the cache holds.
        scale: divides the documents.
    """
    trace = steps(CONTEXTS[cell.context] // scale, cell.roles)
    common = common_tokens(trace, cell.overlap)
    cache, seen, out = Cache(pool), dict[tuple[int, int], int](), Work()
    at = 0
    for step in trace:
        at += step.new
        for one in range(cell.trajectories):
            chains = _chains(variant, step, one, at, common)
            known = 0
            for chain, length in chains.items():
                known += min(cache.length(chain), length)
                if cache.length(chain) < length:
                    break
            if variant == "base":  # it passes over what others have computed
                known = min(known, seen.get((one, step.role), 0))
                seen[one, step.role] = at + step.answer
            new = at - min(known, at - 1)
            out.computed += new
            out.seconds += _PASS + new * (_TOKEN + _ATTENTION * (at - new / 2))
            cache.keep(_chains(variant, step, one, at + step.answer, common))
        at += step.answer
        out.seconds += step.answer * _decode_step(cell.trajectories, at)
    out.evicted = cache.evicted
    return out


def _chains(
    variant: str, step: Step, trajectory: int, length: int, common: int
) -> dict[tuple[int, int], int]:
    """The chains of a prompt of this length, first to last, by (trajectory, whose)."""
    if variant == "none":
        return {(trajectory, step.role): length}
    found = {(trajectory, _COMMON): min(length, common)}
    if length > common:
        found[trajectory, step.role] = length - common
    return found


def _decode_step(requests: int, context: int) -> float:
    return _DECODE + _DECODE_MORE * requests + requests * context * KV_TOKEN / _READ


def fits(cell: Cell, pool: int, *, scale: int = 1) -> bool:
    """Whether a perfectly shared cache of the cell fits into the pool."""
    return work("floor", cell, pool, scale=scale).evicted == 0


def repeats(seconds: float, most: int) -> int:
    """How often a cell is measured whose variants take so long together: dear ones less often."""
    return max(1, min(most, 3 if seconds <= 40 else 2 if seconds <= 90 else 1))


def memory(group: Group) -> float:
    """Bytes that the engines of a group take, those that are up at the same time."""
    return max(sum(_engine_bytes(name, group) for name in names) for names in group.starts)


def _engine_bytes(name: str, group: Group) -> float:
    sets = {"none": 0, "full": 0, "base_lr": 1}.get(name, group.members)
    return WEIGHTS + ENGINE + group.pool * (KV_TOKEN + sets * ROW_TOKEN)
