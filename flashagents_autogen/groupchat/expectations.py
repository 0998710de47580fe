"""What is kept warm: one session for each agent or manager that may be asked next."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

from flashagents_runtime.chat import ChatTokenizer
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
        key = id(guess.key)
        self._asked += 1
        mine = self._asked
        if not new:
            self._newest[key] = mine
        try:
            rules = await rules_of(guess.side.tokenizer)
            if not new and self._newest.get(key) != mine:
                return None  # a newer guess has come while the tokenizer was read
        finally:
            if self._newest.get(key) == mine:
                del self._newest[key]
        if not still() or scope.ended or (new and (key in self._waiting or key in self._newest)):
            return None
        forecast = guess.forecast()
        if not forecast.head:
            return None
        expected = self._waiting.get(key)
        if expected is not None and not self._serves(expected, guess, rules):
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
            loop = asyncio.get_running_loop()
            expected = self._waiting[key] = Expected(guess, forecast, downstream, rules, scope, loop)
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
        if (
            expected.guess.side.engine is not call.client.engine
            or _namespace(expected) != (request.lora, request.cache_salt)
            or expected.loop is not asyncio.get_running_loop()
        ):
            self._discard(expected)
            return None
        return expected

    def tokens_of(self, tokenizer: ChatTokenizer, prompt: str) -> list[int] | None:
        """The tokens of a prompt that is sent now, where they were made while its upstream agents spoke."""
        loop = asyncio.get_running_loop()
        for expected in self._waiting.values():
            if expected.guess.side.tokenizer is tokenizer and expected.loop is loop:
                found = expected.downstream.tokens_of(prompt)
                if found is not None:
                    return found
        return None

    def note_end(self, upstream: Upstream) -> None:
        """Before a source ends: how far its readers have got."""
        for expected in list(self._waiting.values()):
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
        gone = [(k, e) for k, e in list(self._waiting.items()) if scope is None or e.scope is scope]
        for key, expected in gone:
            del self._waiting[key]
            self._discard(expected)
        return [expected for _, expected in gone]

    async def wait(self, closed: Sequence[Expected]) -> None:
        """Wait until nothing of these is in flight any more."""
        for expected in closed:
            if expected.loop is asyncio.get_running_loop():
                await expected.downstream.close()

    async def close(self, scope: RunScope | None) -> None:
        """Close all that ends with this run, or everything, and wait for it."""
        await self.wait(self.abandon(scope))

    def _drop(self, key: Any) -> None:
        self._discard(self._waiting.pop(id(key)))

    def _discard(self, expected: Expected) -> None:
        expected.unhook()
        if expected.loop is asyncio.get_running_loop():  # else its requests have gone with their loop
            expected.downstream.session.abandon()
        self.book(expected)

    def _serves(self, expected: Expected, guess: Guess, rules: CutRules) -> bool:
        """Whether a session can go on with a new guess."""
        return (
            expected.downstream.session.state not in ("generating", "closed")
            and expected.guess.side.engine is guess.side.engine
            and expected.rules is rules
            and _namespace(expected) == (guess.side.lora, guess.side.cache_salt)
            and expected.loop is asyncio.get_running_loop()
        )

    def book(self, expected: Expected) -> None:
        """It has closed: add up what it came to."""
        figures = expected.downstream.figures
        self.computed += figures.computed
        self.wasted += figures.wasted

    def _may_speculate(self) -> bool:
        return self.wasted <= self._policy.grace + self._policy.waste * self.computed


def _namespace(expected: Expected) -> tuple[str | None, str | None]:
    session = expected.downstream.session
    return session.lora, session.cache_salt


def _only_head(guess: Guess) -> Guess:
    return replace(guess, known=False, sources=())


__all__ = ["Expectations"]
