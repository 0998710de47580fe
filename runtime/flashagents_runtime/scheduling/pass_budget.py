"""How much of an engine's time warm-ups may take from running decodes."""

from __future__ import annotations

from collections.abc import Callable


class PassBudget:
    """An account that fills with time and that warm-up passes are paid from.

    It fills by `share` seconds for each second that is not a warm-up's, up to what a window gives, and may
    be overdrawn by one pass, which is then waited for. So decode steps that took one second in all take at
    most `1 + share`, plus what the window has saved up. While nothing decodes, nothing is held or paid.

    Args:
        share: of decode time; infinity holds nothing back.
        clock: the time in seconds, from any origin.
        window: seconds whose share can be saved up.
    """

    def __init__(self, share: float, clock: Callable[[], float], window: float = 1.0) -> None:
        if share <= 0:
            raise ValueError(f"the share of warm-ups should be above 0, not {share}")
        self.share = share
        self._clock = clock
        self._most = share * window
        self._balance = self._most
        self._at = clock()

    def may_start(self, decoding: bool) -> bool:
        """Whether a warm-up pass may start now."""
        now = self._clock()
        if not decoding or self.share == float("inf"):
            self._balance = self._most
        else:
            self._balance = min(self._balance + self.share * (now - self._at), self._most)
        self._at = now
        return self._balance > 0

    def pay(self, seconds: float) -> None:
        """A warm-up pass has stopped decodes for `seconds`; these earn nothing themselves."""
        if self.share != float("inf"):
            self._balance -= seconds * (1 + self.share)
