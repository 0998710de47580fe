"""What chunks cost above one pass, reckoned: how many there are, and what they read again."""

from __future__ import annotations

from collections.abc import Iterator

SIZES = (128, 256, 512, 1024, 2048, 4096)


def starts(cached: int, new: int, size: int) -> Iterator[tuple[int, int]]:
    """Of each chunk over `new` tokens behind `cached` ones: where it starts, and its tokens."""
    for at in range(0, new, size):
        yield cached + at, min(size, new - at)


def read_again(cached: int, new: int, size: int) -> int:
    """Tokens whose KV the chunks read from the pool and one pass would not: its own ones' of earlier chunks.

    What was cached before the first chunk one pass reads as well, so only its further readings count.
    """
    return sum(start for start, _ in starts(cached, new, size)) - cached


def share(tokens: int, bytes_a_token: int, bandwidth: float, seconds: float) -> float:
    """Of `seconds`, in percent, what reading the KV of so many tokens once takes at `bandwidth` (bytes/s)."""
    return 100.0 * tokens * bytes_a_token / bandwidth / seconds
