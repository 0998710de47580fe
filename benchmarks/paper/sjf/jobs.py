"""Jobs of mixed length: A writes, B answers; a third each are short, medium and long."""

from __future__ import annotations

import random
from dataclasses import dataclass

KINDS = {"short": (32, 16), "medium": (128, 64), "long": (512, 256)}
PREFIX = 2000  # tokens of B's system message, the same in all jobs


@dataclass(frozen=True)
class Job:
    """What one user asks for.

    Attributes:
        kind: of `KINDS`.
        upstream: tokens that A writes.
        answer: tokens that B writes.
    """

    kind: str
    upstream: int
    answer: int


def jobs(count: int, seed: int, *, scale: int = 1) -> list[Job]:
    """So many jobs in a random order; as many of each kind as of any other, as far as `count` allows."""
    kinds = [name for name, _ in zip(_again(), range(count), strict=False)]
    random.Random(seed).shuffle(kinds)
    return [Job(kind, *(max(n // scale, 2) for n in KINDS[kind])) for kind in kinds]


def _again() -> list[str]:
    return list(KINDS) * 1000


def nearest_rank(values: list[float], q: float) -> float:
    """The smallest value that at least the share `q` of all does not exceed."""
    ordered = sorted(values)
    return ordered[max(-(-int(q * 1000) * len(ordered) // 1000) - 1, 0)]
