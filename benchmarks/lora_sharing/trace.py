"""LRAgent's trace: plan, action and reflect agents on one growing context, as (role, new tokens, answer)."""

from __future__ import annotations

import random
from collections.abc import Sequence
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


def tokens_of(trace: Sequence[Step]) -> int:
    """Length of the context in the end: what a perfectly shared cache computes or decodes."""
    return sum(s.new + s.answer for s in trace)


def common_tokens(trace: Sequence[Step], overlap: int) -> int:
    """How many tokens, from the beginning, all roles have in common where `overlap` percent are."""
    return tokens_of(trace) * overlap // 100


class Conversation:
    """What each role has read in one trajectory; the texts are random tokens.

    The first `overlap` percent of the context are the same for all roles. What comes later has the same
    length for each of them, but is a text of its own: nobody can share it.

    Args:
        trace: the steps.
        overlap: percent of the context.
        seed: of the texts; equal seeds give equal texts.
        vocabulary: tokens are below it.
    """

    def __init__(self, trace: Sequence[Step], overlap: int, seed: int, vocabulary: int) -> None:
        self._common = common_tokens(trace, overlap)
        self._vocabulary = vocabulary
        roles = {step.role for step in trace}
        self._read: dict[int, list[int]] = {role: [] for role in roles}
        self._texts = {role: random.Random(f"{seed} {role}") for role in roles}
        rng = random.Random(seed)
        self._told = [self._random(rng, step.new) for step in trace]  # now: later somebody holds a clock
        self._told.reverse()

    def prompt(self, step: Step) -> list[int]:
        """The next step's new tokens come; returns all that its role has read."""
        told = self._told.pop()
        self._append({role: told for role in self._read})
        return list(self._read[step.role])

    def answer(self, step: Step, tokens: Sequence[int]) -> None:
        """The step's role has said this, and all roles read it."""
        self._append({role: list(tokens) for role in self._read}, speaker=step.role)

    def _append(self, told: dict[int, list[int]], speaker: int | None = None) -> None:
        for role, tokens in told.items():
            read = self._read[role]
            common = len(tokens) if role == speaker else max(0, self._common - len(read))
            read += tokens[:common]
            read += self._random(self._texts[role], len(tokens[common:]))

    def _random(self, rng: random.Random, count: int) -> list[int]:
        return rng.choices(range(4, self._vocabulary), k=count)
