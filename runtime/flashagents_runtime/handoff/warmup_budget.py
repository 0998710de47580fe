"""Holds warm-ups back so that running decodes are hardly disturbed, where the server does not.

A prefill pass stops every decode of the engine for as long as it takes. With our plug-in the scheduler
keeps warm-ups within a share of its time. On any other server the client does: after a warm-up of d
seconds the next one starts no earlier than d / share later, as long as a request of ours decodes there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class WarmupBudget:
    """The share of one engine's time that warm-ups may take while it decodes for us.

    Args:
        share: of wall time, 0 < share <= 1; 1 holds nothing back.
        longest_pass: seconds; a single warm-up pass beside a decode should not take longer.
        clock: the time in seconds, from any origin.
    """

    def __init__(
        self, clock: Callable[[], float], *, share: float = 0.05, longest_pass: float = 0.05
    ) -> None:
        if not 0 < share <= 1:
            raise ValueError(f"share should be above 0 and at most 1, not {share}")
        self.share = share
        self.longest_pass = longest_pass
        self._clock = clock
        self._decoding = 0
        self._wait = 0.0
        """Seconds from `_at` until a warm-up may start; below 0 where it might have for some time."""
        self._at = clock()

    @property
    def decoding(self) -> bool:
        """A request of ours decodes on the engine."""
        return self._decoding > 0

    @property
    def running(self) -> int:
        """How many of ours do, or wait for it."""
        return self._decoding

    @contextmanager
    def decode(self) -> Iterator[None]:
        """While a real request runs. Warm-ups before it do not count against it."""
        if self._decoding == 0:
            self._wait, self._at = 0.0, self._clock()
        self._decoding += 1
        try:
            yield
        finally:
            self._decoding -= 1

    def delay(self) -> float:
        """Seconds until the next warm-up may start; 0 where it may start now."""
        if not self.decoding or self.share == 1:
            return 0.0
        return max(self._left(), 0.0)

    def charge(self, seconds: float) -> float:
        """A warm-up of about `seconds` starts now; returns what was charged for it."""
        if not self.decoding:
            return 0.0
        self._wait = max(self._left(), 0.0) + seconds / self.share
        return seconds

    def correct(self, charged: float, measured: float) -> None:
        """The warm-up for which `charged` was taken has taken `measured` seconds."""
        if charged > 0:
            self._wait += (measured - charged) / self.share

    def _left(self) -> float:
        """`_wait` as of now; a clock that was set back adds nothing to it."""
        now = self._clock()
        self._wait -= max(now - self._at, 0.0)
        self._at = now
        return self._wait


__all__ = ["WarmupBudget"]
