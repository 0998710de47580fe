"""LRAgent's trace: plan, action and reflect agents on one growing context, as (role, new tokens, answer)."""

from __future__ import annotations

import random
from dataclasses import dataclass

CONTEXTS = {"1.9k": 250, "9.1k": 2048, "17.3k": 4096, "33.7k": 8192, "66.4k": 16384, "128k": 32000}
"""Length of each of the four documents, by the length that the context has in the end."""


@dataclass(frozen=True)
class Step:
    role: int
    new: int
    answer: int


def steps(document: int, roles: int) -> list[Step]:
    """The 17 steps. With three roles these are plan, action and reflect; with more they take turns."""
    plan, action, reflect = 0, 1, 2
    found = [Step(plan, 512, 32), Step(plan, 8, 8), Step(action, 8, 8)]
    for _ in range(4):
        found += [Step(plan, document, 32), Step(plan, 8, 8), Step(action, 8, 8)]
    found += [Step(reflect, 32, 32), Step(reflect, 8, 8)]
    if roles == 1:
        return [Step(0, s.new, s.answer) for s in found]
    if roles == 3:
        return found
    return [Step(i % roles, s.new, s.answer) for i, s in enumerate(found)]


def tokens_of(trace: list[Step]) -> int:
    """Length of the context in the end: what a perfectly shared cache computes or decodes."""
    return sum(s.new + s.answer for s in trace)


def inputs(trace: list[Step], seed: int, vocabulary: int) -> list[list[int]]:
    """Random tokens for each step."""
    rng = random.Random(seed)
    return [[rng.randrange(4, vocabulary) for _ in range(s.new)] for s in trace]
