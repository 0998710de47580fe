"""Any order of events in two sessions on one engine, against a model of what must hold."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from flashagents_runtime import FlashAgentsError, GenerateRequest, RequestRejectedError
from flashagents_runtime.handoff import Prefiller, PrefillSession
from helpers.gated_engine import GatedEngine, breathe

pytestmark = pytest.mark.long

T = TypeVar("T")
TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=6)
WHICH = st.integers(0, 1)


class Sessions(RuleBasedStateMachine):
    """Two sessions; chunks end, fail, or are overtaken in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.engine = GatedEngine([lambda request: f"{request.input_ids}"] * 100)
        self.prefiller = Prefiller(self.engine, chunk_size=3)
        self.sessions: list[PrefillSession] = []
        self.targets: list[list[int]] = []
        self.run(self.open())

    async def open(self) -> None:
        self.sessions = [self.prefiller.open() for _ in range(2)]
        self.targets = [[], []]

    def run(self, step: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(step)

    @rule(which=WHICH, ids=TOKENS)
    def extend(self, which: int, ids: list[int]) -> None:
        async def step() -> None:
            self.sessions[which].extend(ids)
            await breathe()

        self.targets[which] = self.targets[which] + ids
        self.run(step())

    @rule(which=WHICH, keep=st.integers(0, 20), ids=TOKENS)
    def rebase(self, which: int, keep: int, ids: list[int]) -> None:
        async def step() -> None:
            self.sessions[which].rebase(self.targets[which])
            await breathe()

        self.targets[which] = self.targets[which][:keep] + ids
        self.run(step())

    @rule(which=WHICH)
    def extend_and_rebase_at_once(self, which: int) -> None:
        async def step() -> None:
            self.sessions[which].extend([1, 1, 1])
            self.sessions[which].rebase([0])
            self.sessions[which].extend([1, 0, 1])

        self.targets[which] = [0, 1, 0, 1]
        self.run(step())

    @rule(which=WHICH)
    def flush(self, which: int) -> None:
        async def step() -> None:
            self.sessions[which].flush()
            await breathe()

        self.run(step())

    @rule()
    def chunks_end(self) -> None:
        self.run(self.engine.release())

    @rule()
    def chunks_fail(self) -> None:
        self.engine.error = RequestRejectedError("no")
        self.run(self.engine.release())
        self.engine.error = None

    @precondition(lambda self: not self.engine.waiting)
    @rule(which=WHICH)
    def the_cache_loses_all(self, which: int) -> None:
        self.run(self.engine.flush_cache())

    @rule(which=WHICH, keep=st.integers(0, 20), more=TOKENS, early=st.sampled_from([None, 0, 1]))
    def generate(self, which: int, keep: int, more: list[int], early: int | None) -> None:
        """The answer never depends on the session; the figures add up; a new session takes its place."""
        session = self.sessions[which]
        prompt = self.targets[which][:keep] + more

        async def step() -> None:
            text, usage = "", None
            stream = session.generate(GenerateRequest(input_ids=prompt))
            reading = asyncio.create_task(anext(stream))
            await breathe()
            await self.engine.release()  # the chunk that it may wait for
            if early == 0:
                reading.cancel()
                await asyncio.wait([reading])
            else:
                text += (await reading).text
                while early is None and (delta := await anext(stream, None)) is not None:
                    text += delta.text
                    usage = usage if delta.result is None else delta.result.usage
            await stream.aclose()
            figures = session.figures
            if early is None:
                assert text == f"{prompt}"
                assert usage is not None
                assert usage.prewarmed_tokens == figures.prewarmed <= usage.cached_tokens < len(prompt)
            assert figures.computed == figures.prewarmed + figures.wasted
            assert session.state == "closed"
            self.sessions[which] = self.prefiller.open()
            self.targets[which] = []

        self.run(step())

    @rule(which=WHICH)
    def close(self, which: int) -> None:
        async def step() -> None:
            await self.sessions[which].close()
            assert self.sessions[which].figures.wasted == self.sessions[which].figures.computed
            self.sessions[which] = self.prefiller.open()
            self.targets[which] = []

        self.run(step())

    @invariant()
    def at_most_one_chunk_each_and_only_of_the_prompt(self) -> None:
        by_session = [chunk.session_id for chunk in self.engine.waiting.values()]
        assert len(by_session) == len(set(by_session))
        for session, target in zip(self.sessions, self.targets, strict=True):
            assert session.target == target
            assert 0 <= session.warm <= len(target)
            if session.state == "stalled":
                assert isinstance(session.error, FlashAgentsError)
            elif session.state == "idle":
                assert len(target) - session.warm < 3 or session.in_flight is None

    @invariant()
    def what_is_warm_was_prefilled(self) -> None:
        for session in self.sessions:
            warm = session.target[: session.warm]
            assert not warm or any(r.input_ids[: len(warm)] == warm for r in self.engine.requests)

    def teardown(self) -> None:
        self.run(self.prefiller.close())
        assert self.run(self.engine.state()).running == 0
        assert not self.engine.waiting
        assert asyncio.all_tasks(self.loop) == set()
        self.loop.close()


TestSessions = Sessions.TestCase
TestSessions.settings = settings(
    max_examples=80,
    stateful_step_count=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
