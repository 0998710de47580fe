"""An engine over two ranks: the plug-in is on in both, they decide alike, and answers are those of one rank.

A rank whose scheduler decides otherwise than the first one ends the engine (`scheduling.ranks`); integrity of
both caches is checked whenever they are idle.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from flashagents_runtime import EngineDiedError, GenerateRequest, SamplingParams
from flashagents_runtime.embedded import EmbeddedEngine
from flashagents_runtime.handoff import Handoff, Prefiller
from helpers.handoff_team import CHUNK, Team, ask, empty, read
from helpers.idle import settle

ON = {"intra_turn", "exact_penalties", "soft_pins", "warmup_budget"}
POOL = 2048


@pytest.fixture(scope="module")
def two_ranks(model_path: str) -> Iterator[EmbeddedEngine]:
    """A pool that is soon full, and a budget: so that there is something to decide."""
    engine = EmbeddedEngine(model_path, tp_size=2, max_total_tokens=POOL)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("FLASHAGENTS_CHECK", "1")
        environment.setenv("FLASHAGENTS_WARMUP_SHARE", "0.5")
        asyncio.run(engine.start())
    yield engine
    asyncio.run(engine.close())


@pytest.fixture
async def team(two_ranks: EmbeddedEngine, model_path: str) -> AsyncIterator[Team]:
    await empty(two_ranks)
    team = Team(two_ranks, model_path)
    yield team
    await team.prefiller.close()
    await settle(two_ranks)


async def features(engine: EmbeddedEngine) -> dict[str, dict[str, object]]:
    found: dict[str, dict[str, object]] = (await engine.internal_state())["flashagents"]["features"]
    return found


async def test_the_whole_plug_in_is_on(two_ranks: EmbeddedEngine) -> None:
    assert {name for name, state in (await features(two_ranks)).items() if state["active"]} == ON


async def test_a_hand_off_is_exact_and_as_one_rank_answers(
    team: Team, real_engine: EmbeddedEngine, model_path: str
) -> None:
    one = Team(real_engine, model_path)
    roles = ("writer", "critic", "editor")
    a = await one.off("planner")
    off = [await one.off(role, a[0]) for role in roles]
    await one.prefiller.close()

    targets = [team.downstream(role) for role in roles]
    handoff = Handoff([(target, 0) for target in targets])
    a_on = await read(handoff.through(team.prefiller.generate(team.request("planner"))))
    requests = [team.request(role, a_on[0]) for role in roles]
    on = await asyncio.gather(*(ask(t, request) for t, request in zip(targets, requests, strict=True)))
    assert [a_on[1], *(x[1] for x in on)] == [a[1], *(x[1] for x in off)]
    budget = (await features(team.engine))["warmup_budget"]
    assert budget["share"] == 0.5 and budget["chunks"]


async def test_sessions_on_a_full_pool_beside_decodes(team: Team) -> None:
    """Chunks are held, cut, evicted and cancelled beside requests that fill the pool; nothing is left."""
    prefiller = Prefiller(team.engine, chunk_size=CHUNK, share=1.0)
    words = team.rules.encode("Seven trains a day leave for the south, and two of them are late. " * 40)
    sessions = [prefiller.open() for _ in range(6)]

    async def request(first: int, length: int, tokens: int) -> list[int]:
        sampling = SamplingParams(temperature=0.0, max_new_tokens=tokens, ignore_eos=True)
        prompt = [first, *words[:length]]
        return (await read(team.engine.generate(GenerateRequest(input_ids=prompt, sampling=sampling))))[1]

    alone = await request(500, 400, 24)
    decodes = [asyncio.create_task(request(600 + n, 200, 60)) for n in range(3)]
    for part in range(4):
        for n, session in enumerate(sessions):
            session.extend([700 + n, *words[:60]] if not part else words[60 * part : 60 * (part + 1)])
        await asyncio.sleep(0.2)
    assert await request(500, 400, 24) == alone
    await asyncio.gather(*decodes)
    for session in sessions:
        await session.settle()
    await prefiller.close()
    await settle(team.engine)
    assert (await features(team.engine))["warmup_budget"]["beside_decodes"]


CONTRARY = """
from flashagents_runtime.scheduling.ranks import LeadersClock

follow, lead = LeadersClock.follow, LeadersClock.lead


def leads(self, messages):
    self.first = True
    return lead(self, messages)


def follows(self, received):
    if not hasattr(self, "first") and self._step == 40:
        self.decide("otherwise")
    return follow(self, received)


LeadersClock.lead, LeadersClock.follow = leads, follows
"""


async def test_a_rank_that_decides_otherwise_ends_the_engine(
    model_path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of the engine's processes begins with the file above, which acts in the second rank."""
    (tmp_path / "sitecustomize.py").write_text(CONTRARY)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    engine = EmbeddedEngine(model_path, tp_size=2, max_total_tokens=POOL)
    sampling = SamplingParams(max_new_tokens=200, ignore_eos=True)
    request = GenerateRequest(input_ids=list(range(10, 60)), sampling=sampling, session_id="timed")
    try:
        await engine.start()
        with pytest.raises(EngineDiedError, match="have decided differently"):
            async with asyncio.timeout(120):
                await read(engine.generate(request))
    finally:
        await engine.close()
