"""What is kept warm: one session for each agent or manager that may be asked next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

from flashagents_runtime.handoff import CutRules, Downstream, PromptForecast
from flashagents_runtime.handoff.stable_tokenizer import DEFAULT_BATCH

from .._side_channel import ClientCall
from .engines import Engines, rules_of
from .guess import Guess, Upstream
from .policy import GroupChatPolicy
from .scope import RunScope
from .turns import Expected


class Expectations:
    """The sessions of a runtime, by the object whose next request each is for.

    Attributes:
        computed: tokens that closed sessions had computed.
        wasted: of these, for nothing.
    """

    def __init__(self, policy: GroupChatPolicy, engines: Engines) -> None:
        self.computed = 0
        self.wasted = 0
        self._policy = policy
        self._engines = engines
        self._waiting: dict[int, Expected] = {}
        self._asked = 0
        self._newest: dict[int, int] = {}  # of the guesses that are being worked out, by object
        # The tokens of an agent's last head: its next one begins alike.
        self._starts: WeakKeyDictionary[Any, tuple[CutRules, tuple[str, list[int]]]] = WeakKeyDictionary()
        # Characters a commit: no more than the tokens of a chunk, so that small chunks can be filled.
        self._batch = min(DEFAULT_BATCH, policy.chunk_size or DEFAULT_BATCH)

    def __len__(self) -> int:
        return len(self._waiting)

    def get(self, key: Any) -> Expected | None:
        """What is kept warm for this object."""
        return self._waiting.get(id(key))

    async def expect(
        self, guess: Guess, scope: RunScope, *, still: Callable[[], bool], new: bool = False
    ) -> Expected | None:
        """Keep a guess warm; what it has in common with the one before stays as it is.

        Args:
            guess: the guess.
            scope: with whose end it ends.
            still: whether it is still wanted, once it has been worked out.
            new: only where nothing is expected of that agent yet.

        Returns:
            None where it was not wanted, or speculative beyond the budget.
        """
        if guess.side.engine.info is None or (not guess.certain and not self._may_speculate()):
            return None
        self._asked += 1
        mine, key = self._asked, id(guess.key)
        if not new:
            self._newest[key] = mine
        rules = await rules_of(guess.side.tokenizer)
        if not new:
            if self._newest.get(key) != mine:
                return None  # a newer guess has come while the tokenizer was read
            del self._newest[key]
        if not still() or scope.ended or (new and (key in self._waiting or key in self._newest)):
            return None
        forecast = guess.forecast()
        if not forecast.head:
            return None
        expected = self._waiting.get(id(guess.key))
        namespace = (guess.side.lora, guess.side.cache_salt)
        if expected is not None and (
            expected.downstream.session.state in ("generating", "closed")
            or expected.guess.side.engine is not guess.side.engine
            or expected.rules is not rules
            or _names(expected) != namespace
        ):
            self._drop(guess.key)
            expected = None
        if expected is None:
            prefiller = self._engines.prefiller(guess.side.engine)
            session = prefiller.open(
                lora=guess.side.lora,
                cache_salt=guess.side.cache_salt,
                agent=guess.name,
                workflow=scope.workflow,
            )
            of, start = self._starts.get(guess.key, (rules, ("", [])))
            start = start if of is rules else ("", [])
            downstream = Downstream(session, forecast, rules, batch=self._batch, start=start)
            expected = Expected(guess, forecast, downstream, rules, scope)
            self._waiting[id(guess.key)] = expected
        else:
            expected.unhook()
            expected.downstream.restart(forecast)
            expected.guess, expected.forecast, expected.scope = guess, forecast, scope
            expected.early.clear()
        self._starts[guess.key] = rules, expected.downstream.start
        expected.downstream.session.flush(always=True)
        if guess.known:
            for slot, source in enumerate(guess.sources):
                if source.feeds:
                    source.handoff.add(expected.downstream, slot)
        return expected

    def take(self, key: Any, call: ClientCall) -> Expected | None:
        """Its request has come; None where nothing is warm for it, or not for this engine and adapter."""
        expected = self._waiting.pop(id(key), None)
        if expected is None:
            return None
        expected.unhook()
        request = call.call.request
        same = (expected.guess.side.engine is call.client.engine) and _names(expected) == (
            request.lora,
            request.cache_salt,
        )
        if not same or expected.guess.key is not key:
            self.book(expected)
            expected.downstream.session.abandon()
            return None
        return expected

    def note_end(self, upstream: Upstream) -> None:
        """Before a source ends: how far its readers have got."""
        for expected in self._waiting.values():
            for slot, source in enumerate(expected.guess.sources):
                if source is upstream:
                    expected.note_end(slot)

    def retract(self, upstream: Upstream) -> None:
        """A source was no message: back to what comes before it."""
        for expected in list(self._waiting.values()):
            if upstream in expected.guess.sources:
                expected.unhook()
                reason = "the agent called a tool, or ended early"
                expected.forecast = PromptForecast(expected.forecast.head, reason=reason)
                expected.guess = _only_head(expected.guess)
                expected.downstream.restart(expected.forecast)

    def drop_if(self, key: Any, downstream: Downstream) -> None:
        """Close it where it still is the one that was meant."""
        expected = self.get(key)
        if expected is not None and expected.downstream is downstream:
            self._drop(key)

    def abandon(self, scope: RunScope | None) -> list[Expected]:
        """Close all that ends with this run, or everything, without waiting; returns what was closed."""
        gone = {k: e for k, e in self._waiting.items() if scope is None or e.scope is scope}
        for key, expected in gone.items():
            del self._waiting[key]
            expected.unhook()
            expected.downstream.session.abandon()
            self.book(expected)
        return list(gone.values())

    async def wait(self, closed: Sequence[Expected]) -> None:
        """Wait until nothing of these is in flight any more."""
        for expected in closed:
            await expected.downstream.close()

    async def close(self, scope: RunScope | None) -> None:
        """Close all that ends with this run, or everything, and wait for it."""
        await self.wait(self.abandon(scope))

    def _drop(self, key: Any) -> None:
        expected = self._waiting.pop(id(key))
        expected.unhook()
        expected.downstream.session.abandon()
        self.book(expected)

    def book(self, expected: Expected) -> None:
        """It has closed: add up what it came to."""
        figures = expected.downstream.figures
        self.computed += figures.computed
        self.wasted += figures.wasted

    def _may_speculate(self) -> bool:
        return self.wasted <= self._policy.grace + self._policy.waste * self.computed


def _names(expected: Expected) -> tuple[str | None, str | None]:
    session = expected.downstream.session
    return session.lora, session.cache_salt


def _only_head(guess: Guess) -> Guess:
    return replace(guess, known=False, sources=())


__all__ = ["Expectations"]
