"""Longest common prefix."""

from __future__ import annotations

from bisect import bisect_left


def common_prefix(a: str | list[int], b: str | list[int]) -> int:
    """Length of the longest common prefix of two texts, or of two lists of tokens.

    Compares whole slices, so that the work is done in C: prompts have tens of thousands of tokens.
    """
    shorter = min(len(a), len(b))
    if a[:shorter] == b[:shorter]:
        return shorter
    # Prefixes are equal up to the first difference and unequal from it on.
    return bisect_left(range(shorter), True, key=lambda n: a[: n + 1] != b[: n + 1])


__all__ = ["common_prefix"]
