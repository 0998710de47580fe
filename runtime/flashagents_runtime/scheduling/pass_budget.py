"""How much of an engine's time warm-ups may take from running decodes."""

from __future__ import annotations

from collections.abc import Callable


class PassBudget:
    """An account that fills with time and that warm-up passes are paid from.

    It fills by `share` seconds for each second of decoding that is not a warm-up's, up to what a window
    gives. A pass may start once its expected time, or a full window's, is there; what it takes beyond is
    overdrawn, and waited for. So decode steps that took T seconds in all take at most `(1 + share) T`, as
    far as passes last as long as expected. While nothing decodes, nothing is held, paid or saved.

    A warm-up is for one agent, and all that decode wait for it. With `shrinks`, where n requests decode, the
    share is 1 / (n - 1) at most: the others together lose no more than the one can gain.

    Args:
        share: of decode time; infinity holds nothing back.
        clock: the time in seconds, from any origin.
        window: seconds whose share can be saved up.
        shrinks: with the number of requests that decode.
    """

    def __init__(
        self, share: float, clock: Callable[[], float], window: float = 1.0, *, shrinks: bool = False
    ) -> None:
        if share <= 0:
            raise ValueError(f"the share of warm-ups should be above 0, not {share}")
        self.share = share
        self._clock = clock
        self._window = window
        self._shrinks = shrinks
        self._now = share
        """The share at this moment."""
        self._balance = 0.0
        self._at = clock()

    @property
    def _most(self) -> float:
        return self._now * self._window

    def pass_time(self, decoding: int) -> None:
        """To be called between any two steps of the engine: `decoding` says how many requests do so now."""
        now = self._clock()
        self._now = self.share
        if self._shrinks and decoding > 1:
            self._now = min(self.share, 1.0 / (decoding - 1))
        passed = max(now - self._at, 0.0)  # a clock that was set back takes nothing away
        if not decoding:
            self._balance = 0.0
        elif self._now == float("inf"):
            self._balance = self._most
        else:
            self._balance = min(self._balance + self._now * passed, self._most)
        self._at = now

    def may_start(self, decoding: bool, expected: float) -> bool:
        """Whether a warm-up pass of `expected` seconds may start now."""
        return not decoding or self._balance >= min(expected, self._most)

    @property
    def longest_pass(self) -> float:
        """Seconds that one pass should last at most: what a window gives."""
        return self._most

    def pay(self, seconds: float) -> None:
        """A warm-up pass has stopped decodes for `seconds`; these earn nothing themselves."""
        if self._now != float("inf"):
            self._balance -= seconds * (1 + self._now)
