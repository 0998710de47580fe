"""How much of what warm-ups have put into a cache somebody used."""

from __future__ import annotations

import math

#: Where a quarter was used, warm-ups are worth what they take: of three who may speak next one does.
_ENOUGH = 4.0

#: What is left to warm-ups of which nothing was: some have to stay, or none could show that it is of use.
_LEAST = 1 / 16

#: Of the pool: what counts as used before anything was, so that the first eviction says little.
_CREDIT = 1 / 64


class Worth:
    """The latest tokens that warm-ups have computed, by what became of them.

    Tokens are of use once a request that generates has had them, and wasted where they were evicted before.
    What happened a pool's size of tokens ago counts for 1 / e of what happens now.

    Args:
        pool: tokens of the KV pool.
    """

    def __init__(self, pool: int) -> None:
        self._pool = max(pool, 1)
        self._used, self._wasted = _CREDIT * self._pool, 0.0

    def used(self, tokens: int) -> None:
        """So many tokens were of use."""
        tokens = min(tokens, self._pool)
        self._fade(tokens)
        self._used += tokens

    def wasted(self, tokens: int) -> None:
        """So many were evicted, and nobody had had them."""
        tokens = min(tokens, self._pool)
        self._fade(tokens)
        self._wasted += tokens

    def share(self) -> float:
        """Of what warm-ups may hold where they are of use, what they are worth now: 1/16 to 1."""
        known = self._used + self._wasted
        return max(min(_ENOUGH * self._used / known, 1.0), _LEAST) if known else 1.0

    def _fade(self, tokens: int) -> None:
        keep = math.exp(-tokens / self._pool)
        self._used, self._wasted = keep * self._used, keep * self._wasted
