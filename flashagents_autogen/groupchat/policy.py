"""What a group-chat runtime may do, and how much of it."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class GroupChatPolicy:
    """How agents overlap. None of it changes what agents say.

    Attributes:
        heads: warm the beginnings of all reachable agents' prompts at the start of a run.
        stream: stream an agent's text into the next prompts; False leaves the heads alone.
        candidates: with a speaker who is chosen by a model or a function, so many of the likeliest
            candidates are warmed beforehand; 0 for none.
        waste: speculative warm-ups stop once more than this share of the tokens that warm-ups computed
            in the run were for nothing.
        grace: tokens that may be wasted in a run before `waste` counts.
        chunk_size: tokens of a warm-up chunk; None learns it (`handoff.ChunkSizer`).
        share: of an engine's time for warm-ups beside decodes (`handoff.WarmupBudget`).
        linger: seconds that the next agent of a chain called by hand may let wait.
        keep: so many events and turns are kept.
    """

    heads: bool = True
    stream: bool = True
    candidates: int = 2
    waste: float = 0.5
    grace: int = 4096
    chunk_size: int | None = None
    share: float = 0.05
    linger: float = 30.0
    keep: int = 512

    def __post_init__(self) -> None:
        for name in ("candidates", "waste", "grace", "chunk_size", "share", "linger", "keep"):
            value = getattr(self, name)
            if value is None and name == "chunk_size":
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
                raise TypeError(f"{name} should be a number, not {value!r:.80}")
        if self.chunk_size is not None and self.chunk_size < 1:
            raise ValueError(f"chunk_size should be positive, not {self.chunk_size}")
        if self.candidates < 0 or self.grace < 0 or self.keep < 1 or self.linger <= 0:
            raise ValueError("candidates and grace should not be negative, keep and linger be positive")
        if not 0 <= self.waste <= 1:
            raise ValueError(f"waste is a share from 0 to 1, not {self.waste}")
        if not 0 < self.share <= 1:
            raise ValueError(f"share should be above 0 and at most 1, not {self.share}")


__all__ = ["GroupChatPolicy"]
