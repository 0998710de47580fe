"""What the gate notes of passes, and who else uses the engine."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

#: More requests of those without a session are expected where so many came in so many seconds.
_OTHERS, _LATELY = 2, 5.0


@dataclass(frozen=True)
class Pass:
    """A prefill pass that was launched."""

    launched_at: float
    tokens: int
    """Of warm-ups, where it has any; else of all."""
    warms: bool
    """It has warm-ups."""
    beside_decodes: bool
    timed: bool = True
    """It is known when it was launched."""


@dataclass(frozen=True)
class Results:
    """What a batch's results say."""

    of_prompts: bool
    """Of a prefill pass, not of a decode step."""
    decoded_since: list[float]
    """When each of the requests that have ended began to decode."""

    @property
    def says_nothing(self) -> bool:
        """One decode step of many: only the last one's time matters."""
        return not self.of_prompts and not self.decoded_since


@dataclass
class GateFigures:
    """Counters since start."""

    passes: int = 0
    """Prefill passes of warm-ups."""
    chunks: int = 0
    """Warm-ups in them."""
    beside_decodes: int = 0
    """Of the passes, those that made decodes wait."""
    seconds_beside_decodes: float = 0.0
    cancelled: int = 0
    """Warm-ups that waited when their session's final request came."""
    cut: int = 0
    """Warm-ups that were longer than a pass."""


class Others:
    """The requests without a session that came lately: warm-ups are nothing to them.

    A single one may be the first of a chain whose next request is a session's final one.
    """

    def __init__(self) -> None:
        self._came: deque[float] = deque()

    def came(self, now: float) -> None:
        """One has begun to decode."""
        self._came.append(now)

    def expected(self, now: float) -> int:
        """How many are likely to come soon."""
        while self._came and not 0 <= now - self._came[0] <= _LATELY:  # also of a clock that was set back
            self._came.popleft()
        return len(self._came) if len(self._came) >= _OTHERS else 0
