"""Sets of token positions."""

from __future__ import annotations


class Intervals:
    """A set of whole numbers as sorted, disjoint intervals `[start, end)`."""

    def __init__(self) -> None:
        self._parts: list[tuple[int, int]] = []

    def add(self, start: int, end: int) -> None:
        """Add `[start, end)`; nothing where it is empty."""
        if start >= end:
            return
        kept = []
        for low, high in self._parts:
            if high < start or low > end:
                kept.append((low, high))
            else:
                start, end = min(start, low), max(end, high)
        self._parts = sorted([*kept, (start, end)])

    def copy(self) -> Intervals:
        """An equal one of its own."""
        found = Intervals()
        found._parts = list(self._parts)
        return found

    def cut(self, end: int) -> None:
        """Drop everything from `end` on."""
        self._parts = [(low, min(high, end)) for low, high in self._parts if low < end]

    def total(self, end: int) -> int:
        """How many numbers below `end` are in the set."""
        return sum(min(high, end) - low for low, high in self._parts if low < end)


__all__ = ["Intervals"]
