"""How many tokens a prefill chunk should have.

Small chunks cost more in all: each pays the floor of one request (some 10 ms on an H200, as much as 128
tokens). Large ones leave more for the moment of the hand-off, which the user waits for. So: chunks are
as small as an account of overhead allows, and shrink towards the expected end of the stream.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, field

#: Prefill of n tokens in seconds: Qwen2.5-7B in bf16 on one H200, fa3, prefill graphs, SGLang 0.5.18.
#: Until an engine has been measured, only the shape of this curve is used, never its scale.
H200_PREFILL = (
    (1, 0.0095),
    (128, 0.0108),
    (512, 0.0154),
    (1024, 0.0240),
    (2048, 0.0440),
    (4096, 0.0863),
    (8192, 0.1839),
)
#: Tokens; below, a pass costs little less than this one.
_LEAST_PASS = 512
_SIZES = tuple(sorted({int(base * 2**power) for power in range(6, 14) for base in (1.0, 1.25, 1.5, 1.75)}))


def _prior(tokens: float) -> float:
    sizes = [size for size, _ in H200_PREFILL]
    if tokens >= sizes[-1]:
        return H200_PREFILL[-1][1] * tokens / sizes[-1]
    i = max(bisect_left(sizes, tokens), 1)
    (n0, t0), (n1, t1) = H200_PREFILL[i - 1], H200_PREFILL[i]
    return t0 + (t1 - t0) * (max(tokens, 1) - n0) / (n1 - n0)


class PrefillCurve:
    """Seconds that an engine takes to prefill n new tokens, learnt from chunks that have run.

    The prior's shape times a factor that is measured for each power of two of n, and interpolated
    between them. One curve for each engine, shared by all its sessions.
    """

    def __init__(self) -> None:
        self._factors: dict[int, float] = {}  # by round(log2(tokens)): measured / prior
        self._known: list[int] = []  # their keys, sorted
        self._best: dict[float | None, float] = {}  # by `longest`

    @property
    def measured(self) -> bool:
        """At least one chunk has been measured."""
        return bool(self._factors)

    def observe(self, tokens: int, seconds: float) -> None:
        """Take in one chunk: `tokens` computed in `seconds` from the request to its result."""
        if tokens < 1 or seconds <= 0:
            return
        bucket = round(math.log2(tokens))
        factor = seconds / _prior(tokens)
        old = self._factors.get(bucket)
        # Waiting in the queue only ever adds: follow a fall fast and a rise slowly.
        weight = 1.0 if old is None else 0.5 if factor < old else 0.15
        self._factors[bucket] = factor if old is None else old + weight * (factor - old)
        self._known = sorted(self._factors)
        self._best.clear()

    def seconds(self, tokens: int) -> float:
        """The expected time for `tokens` new tokens; not above zero only for 0."""
        if tokens <= 0:
            return 0.0
        return _prior(tokens) * self._factor(math.log2(tokens))

    def dearest(self, tokens: int) -> float:
        """The expected time, but no more than smaller chunks would take for as many tokens, and a fifth.

        A size that happened to be measured behind others would look too dear to be tried again.
        """
        seconds = self.seconds(tokens)
        for bucket in self._known:
            if 2**bucket < tokens:
                size = 2**bucket
                seconds = min(seconds, 1.2 * tokens / size * _prior(size) * self._factors[bucket])
        return seconds

    def _factor(self, place: float) -> float:
        known = self._known
        if not known:
            return 1.0
        i = bisect_left(known, place)
        if i == 0:
            return self._factors[known[0]]
        if i == len(known):
            return self._factors[known[-1]]
        low, high = known[i - 1], known[i]
        share = (place - low) / (high - low)
        return self._factors[low] * (1 - share) + self._factors[high] * share

    def largest(self, longest: float) -> int:
        """The largest chunk that is expected to take `longest` seconds at most; never below 512 tokens."""
        return max([size for size in _SIZES if self.seconds(size) <= longest] + [_LEAST_PASS])

    def best_rate(self, longest: float | None = None) -> float:
        """Seconds a token in the best chunk: what one pass over everything would cost.

        Args:
            longest: seconds that a pass may take; None: no bound.
        """
        found = self._best.get(longest)
        if found is None:
            most = _SIZES[-1] if longest is None else self.largest(longest)
            found = self._best[longest] = min(self.seconds(size) / size for size in _SIZES if size <= most)
        return found


@dataclass
class ChunkSizer:
    """Decides for one session when the waiting tokens make a chunk.

    Attributes:
        curve: the engine's prefill times.
        chunk_size: a fixed size instead of a learnt one; None learns.
        overhead: the chunks of a stream may cost so much more than one pass over its tokens.
        dearest_chunk: of a stream without an expected end, no chunk costs more than so many times its part
            of one pass.
        smallest: never a chunk of fewer tokens, except at the end of the stream.
        expected: how many tokens the stream is expected to have in all; None: not known.
    """

    curve: PrefillCurve = field(default_factory=PrefillCurve)
    chunk_size: int | None = None
    overhead: float = 0.25
    dearest_chunk: float = 2.0
    smallest: int = 64
    expected: int | None = None
    _tokens: int = 0  # prefilled in chunks so far
    _spent: float = 0.0  # seconds above one pass's so far
    _arrived: int = 0
    _at_first: int = 0
    _first: float | None = None
    _last: float = 0.0

    def __post_init__(self) -> None:
        if self.chunk_size is not None and self.chunk_size < 1:
            raise ValueError(f"chunk_size should be at least 1, not {self.chunk_size}")

    def arrived(self, tokens: int, now: float) -> None:
        """Tokens came from upstream at the time `now` (seconds, any origin)."""
        if self._first is None:
            self._first, self._at_first = now, tokens  # when these began is not known
        self._arrived += tokens
        self._last = now

    @property
    def rate(self) -> float | None:
        """Tokens a second from upstream, over the stream so far; None while it is not known."""
        since = self._arrived - self._at_first
        if self._first is None or since == 0 or self._last <= self._first:
            return None
        return since / (self._last - self._first)

    def issued(self, tokens: int, longest: float | None = None) -> None:
        """A chunk with `tokens` new ones is on its way: book its cost above that of one pass.

        The prompt's head counts, too: what one large chunk of it saves, small ones of the stream may cost.
        `longest` as in `is_due`.
        """
        self._tokens += tokens
        self._spent += max(self.curve.dearest(tokens) - self.curve.best_rate(longest) * tokens, 0.0)

    def is_due(self, waiting: int, longest: float | None = None) -> bool:
        """Whether to issue a chunk of the `waiting` tokens now.

        Args:
            waiting: tokens.
            longest: seconds that a pass may take at present, beside decodes; None: no bound. What one pass
                over everything would cost is no measure for chunks that may not be as large.
        """
        if waiting <= 0:
            return False
        if self.chunk_size is not None:
            return waiting >= self.chunk_size
        if waiting < self.smallest:
            return False
        left, overhead, grace = self._left(), self.overhead, 0.0
        if left is not None:
            closing = waiting >= 2 * left
            if waiting < self._efficient(overhead / 2, longest):
                if not closing or self._would_be_late(waiting, left):
                    return False  # larger chunks first; they shrink as the end comes near
                grace = 0.75 * self.curve.seconds(1)  # of a short stream too, most should be warm
            if not closing:
                overhead /= 2  # keep some for small chunks at the end
        cost = self.curve.dearest(waiting)
        pass_cost = self.curve.best_rate(longest)
        if left is None and cost > self.dearest_chunk * pass_cost * waiting:
            return False  # when the stream ends is not known: do not spend all at its beginning
        allowed = max(overhead * pass_cost * (self._tokens + waiting), grace)
        return self._spent + cost - pass_cost * waiting <= allowed

    def is_worth_a_flush(self, waiting: int, gap: float | None = None) -> bool:
        """Whether the rest of an ended stream should be a chunk of its own.

        The user then waits for two requests instead of one, but for less: what the chunk does before the
        real request comes is gained, the floor of one request is lost.

        Args:
            waiting: tokens that are left.
            gap: seconds between the end of the stream and the real request, as seen before; None where
                it is not known.
        """
        if self.chunk_size is not None:
            return waiting > 0
        if waiting < self.smallest:
            return False
        floor = self.curve.seconds(1)
        return self.curve.seconds(waiting) > 1.5 * floor if gap is None else gap > floor

    def _left(self) -> int | None:
        """Tokens still to come; None where it is not known, or the stream is longer than expected."""
        if self.expected is None or self.expected <= self._arrived:
            return None
        return self.expected - self._arrived

    def _efficient(self, overhead: float, longest: float | None) -> int:
        """The smallest chunk that alone stays within the overhead."""
        best = self.curve.best_rate(longest)
        sizes = (size for size in _SIZES if self.curve.dearest(size) <= (1 + overhead) * best * size)
        return next(sizes, _SIZES[-1])

    def _would_be_late(self, waiting: int, left: int) -> bool:
        """Whether the chunk would still run when the stream ends, and the final request wait for it."""
        rate = self.rate
        return rate is not None and self.curve.seconds(waiting) > left / rate


__all__ = ["ChunkSizer", "PrefillCurve"]
