"""One record for each real request: was it foreseen, and how much of it was warm."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from autogen_core.models import CreateResult

from flashagents_runtime.handoff import CutRules, Downstream, PromptForecast
from flashagents_runtime.handoff.forecast import strip_text
from flashagents_runtime.handoff.intervals import Intervals

from .._side_channel import ClientCall
from .._usage import FlashRequestUsage
from .guess import Guess


@dataclass(frozen=True)
class SlotCoverage:
    """What happened inside the place of one upstream text in a prompt; token positions.

    Attributes:
        start: where the text begins.
        end: where it ends.
        prewarmed: tokens in between that were computed while others spoke, and found in the cache.
        issued_early: tokens in between that had been sent to the engine before the upstream agent ended.
        done_early: of these, those whose chunk was done by then: the request finds at least them.
    """

    start: int
    end: int
    prewarmed: int
    issued_early: int
    done_early: int


@dataclass
class Expected:
    """An agent whose next prompt is kept warm, in the event loop that it was first expected in.

    `early`: for each of the guess's sources that has ended, how far the prompt had been prefilled, and how
    far it had been sent, by then.
    """

    guess: Guess
    forecast: PromptForecast
    downstream: Downstream
    rules: CutRules
    scope: object
    loop: asyncio.AbstractEventLoop
    early: dict[int, tuple[int, int]] = field(default_factory=dict)

    def note_end(self, slot: int) -> None:
        """The source of a slot is about to end."""
        session = self.downstream.session
        self.early[slot] = session.warm, max(session.warm, len(session.in_flight or ()))

    def unhook(self) -> None:
        """The sources feed it no more."""
        for source in self.guess.sources:
            source.handoff.drop(self.downstream)


@dataclass(frozen=True)
class _Warmth:
    """What `Turn.slots` is worked out from, without the agents and teams that it came of."""

    forecast: PromptForecast
    texts: tuple[str, ...]
    """Of the guess's sources."""
    rules: CutRules
    computed: Intervals
    early: dict[int, tuple[int, int]]

    @classmethod
    def of(cls, expected: Expected) -> _Warmth:
        texts = tuple(source.text for source in expected.guess.sources)
        computed = expected.downstream.session.computed
        return cls(expected.forecast, texts, expected.rules, computed, dict(expected.early))


@dataclass
class Turn:
    """One request of an agent or a manager.

    Attributes:
        team: the team's name; "" outside of teams.
        agent: whose request.
        after: who spoke before it in this run; None for the first.
        forecast: "message" where the whole conversation was guessed, "head" where its beginning was,
            "none" where nothing was.
        right: the guess was the real conversation; None without one.
        prompt, cached, prewarmed: tokens, as `Usage` has them.
        wasted: tokens that were computed for this request and not used.
        slots: see `SlotCoverage`; one for each upstream text of the guess. Empty unless it was right.
    """

    team: str
    agent: str
    after: str | None
    forecast: Literal["message", "head", "none"] = "none"
    right: bool | None = None
    prompt: int = 0
    cached: int = 0
    prewarmed: int = 0
    wasted: int = 0
    _warmth: _Warmth | None = field(default=None, repr=False, compare=False)

    def finish(self, call: ClientCall, expected: Expected | None, result: CreateResult) -> None:
        """Book the end of the request."""
        usage = result.usage
        self.prompt = usage.prompt_tokens
        if isinstance(usage, FlashRequestUsage):
            self.cached, self.prewarmed = usage.cached_tokens, usage.prewarmed_tokens
        if expected is None:
            return
        guess = expected.guess
        self.wasted = expected.downstream.figures.wasted
        self.forecast = "message" if guess.known and all(s.feeds for s in guess.sources) else "head"
        if self.forecast == "message":
            self.right = guess.matches(call.call.messages, call.call.tools)
            if self.right:
                self._warmth = _Warmth.of(expected)

    @property
    def slots(self) -> list[SlotCoverage]:
        """Worked out when asked for: it tokenises the prompt again."""
        warmth = self._warmth
        if warmth is None:
            return []
        encode, parts = warmth.rules.encode, warmth.computed
        text, covered = warmth.forecast.head, []
        for i, (slot, said) in enumerate(zip(warmth.forecast.slots, warmth.texts, strict=False)):
            start = len(encode(text))
            if not slot.dropped:
                text += strip_text(said, slot.strip)
            end = len(encode(text))
            warm = parts.total(min(end, max(self.cached, start))) - parts.total(start)
            done, issued = (max(min(n, end) - start, 0) for n in warmth.early.get(i, (0, 0)))
            covered.append(SlotCoverage(start, end, warm, issued, done))
            text += slot.after
        return covered


@dataclass(frozen=True)
class HitRate:
    """How often forecasts were right.

    Attributes:
        turns: requests that came after somebody else had spoken in the same run.
        foreseen: of these, with a guess of the whole conversation.
        right: of these, with the guess right.
    """

    turns: int
    foreseen: int
    right: int


def hit_rate(turns: Iterable[Turn]) -> HitRate:
    """Over turns of other agents than the one that spoke before."""
    counted = [turn for turn in turns if turn.after is not None and turn.after != turn.agent]
    foreseen = [turn for turn in counted if turn.forecast == "message"]
    return HitRate(len(counted), len(foreseen), sum(turn.right is True for turn in foreseen))


__all__ = ["Expected", "HitRate", "SlotCoverage", "Turn", "hit_rate"]
