"""How much of an engine's time warm-ups may take from running decodes."""

from __future__ import annotations

from collections.abc import Callable

#: Times a request's decoding: a window of so many gives a pass of a tenth of it, with a share of 0.05.
_WINDOWS = 2.0

#: Seconds: no window is shorter, however short requests are, or no pass would be worth its floor.
_SHORTEST = 0.2

#: Of the requests before, what counts when one more has ended.
_KEPT = 0.9


class PassBudget:
    """An account that fills with time and that warm-up passes are paid from.

    It fills by `share` seconds for each second of decoding that is not a warm-up's, up to what a window
    gives. A pass may start once its expected time, or a full window's, is there; what it takes beyond is
    overdrawn, and waited for. So decode steps that took T seconds in all take at most `(1 + share) T`, as
    far as passes last as long as expected. While nothing decodes, nothing is held, paid or saved. Where
    others are likely to come (`pass_time`), a pass should be no longer than beside them.

    A share of a window is little for requests that last as long, and much for shorter ones: one pass of 50 ms
    is a quarter of an answer of 200 ms. So the window shrinks to twice what a request takes that decodes now
    (`decoded`; longer ones count for more, since one that decodes is likely to be one of them). Then a pass
    takes twice the share of its time, and no second one falls into it.

    A warm-up is for one agent, and all that decode wait for it. With `shrinks`, where n requests decode, the
    share is 1 / (n - 1) at most: the others together lose no more than the one can gain.

    Args:
        share: of decode time; infinity holds nothing back.
        clock: the time in seconds, from any origin.
        window: seconds whose share can be saved up, at most.
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
        self._disturbs = False
        """A pass would make somebody wait: who decodes, or who is likely to come."""
        self._balance = 0.0
        self._at = clock()
        self._sum = self._squares = 0.0
        """Of the latest requests' times, and of their squares."""

    @property
    def _most(self) -> float:
        return self._now * self.window

    @property
    def window(self) -> float:
        """Seconds whose share can be saved up now."""
        if not self._sum or not self._disturbs:
            return self._window
        return min(max(_WINDOWS * self._squares / self._sum, _SHORTEST), self._window)

    def decoded(self, seconds: float) -> None:
        """A request that took so long to decode has come to its end."""
        seconds = max(seconds, 0.0)  # a clock that was set back
        self._sum = _KEPT * self._sum + seconds
        self._squares = _KEPT * self._squares + seconds * seconds

    def pass_time(self, decoding: int, expected: int = 0) -> None:
        """To be called between any two steps of the engine.

        Args:
            decoding: how many requests do so now.
            expected: how many others are likely to come soon, on an idle engine.
        """
        now = self._clock()
        self._now, self._disturbs = self.share, decoding + expected > 0
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
