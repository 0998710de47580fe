"""Hand-off on the real engine and the real model: greedy answers are those with the overlap off.

Every case runs twice from an empty cache: off (ordinary requests one after another) and on (sessions,
forecasts, chunks while upstream decodes). The tokens of every agent must be equal, and the figures must
say that the work was done beforehand.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing

import pytest

from flashagents_runtime import GenerateRequest, SamplingParams
from flashagents_runtime.embedded import EmbeddedEngine
from flashagents_runtime.handoff import Handoff, warm_up
from flashagents_runtime.handoff.common_prefix import common_prefix
from helpers.handoff_team import CHUNK, GUIDE, Team, ask, empty, read
from helpers.idle import settle


@pytest.fixture
async def team(real_engine: EmbeddedEngine, model_path: str) -> AsyncIterator[Team]:
    team = Team(real_engine, model_path)
    yield team
    await team.prefiller.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_chain(team: Team) -> None:
    """Planner, writer, editor: each while the one before speaks."""
    a = await team.off("planner")
    b = await team.off("writer", a[0])
    c = await team.off("editor", b[0])
    await empty(team.engine)

    writer, editor = team.downstream("writer"), team.downstream("editor")
    await warm_up(writer.session, editor.session)
    a_on = await read(Handoff([(writer, 0)]).through(team.prefiller.generate(team.request("planner"))))
    await writer.session.settle()
    warm = writer.session.warm
    b_on = await read(Handoff([(editor, 0)]).through(writer.generate(team.request("writer", a_on[0]))))
    assert b_on[2].cached_tokens >= min(warm, b_on[2].prompt_tokens - 1) > b_on[2].prompt_tokens - CHUNK - 1
    c_on = await ask(editor, team.request("editor", b_on[0]), settled=False)  # at once, as in a team
    assert [x[1] for x in (a_on, b_on, c_on)] == [x[1] for x in (a, b, c)]
    assert writer.figures.chunks >= 2


async def test_fan_out(team: Team) -> None:
    roles = ("writer", "critic", "editor")
    a = await team.off("planner")
    off = [await team.off(role, a[0]) for role in roles]
    await empty(team.engine)

    targets = [team.downstream(role) for role in roles]
    a_on = await read(
        Handoff([(target, 0) for target in targets]).through(team.prefiller.generate(team.request("planner")))
    )
    on = await asyncio.gather(
        *(ask(target, team.request(role, a_on[0])) for target, role in zip(targets, roles, strict=True))
    )
    assert a_on[1] == a[1]
    assert [x[1] for x in on] == [x[1] for x in off]
    # The guide that all prompts begin with was computed once.
    head = len(team.rules.encode(GUIDE * 2))
    computed = sum(target.figures.computed for target in targets)
    assert computed < sum(answer[2].prompt_tokens for answer in on) - 1.5 * head


async def test_fan_in(team: Team) -> None:
    """Two branches at once; the second one's text waits in the forecast until the first has ended."""
    a, b = await team.off("writer", tokens=20), await team.off("critic", tokens=40)
    c = await team.off("editor", a[0], b[0])
    await empty(team.engine)

    editor = team.downstream("editor", slots=2)
    a_on, b_on = await asyncio.gather(
        read(Handoff([(editor, 0)]).through(team.prefiller.generate(team.request("writer", tokens=20)))),
        read(Handoff([(editor, 1)]).through(team.prefiller.generate(team.request("critic", tokens=40)))),
    )
    real = team.request("editor", a_on[0], b_on[0])
    assert editor.prompt_ids() == real.input_ids
    c_on = await ask(editor, real)
    assert [x[1] for x in (a_on, b_on, c_on)] == [x[1] for x in (a, b, c)]


async def test_a_wrong_forecast(team: Team) -> None:
    a = await team.off("planner")
    b = await team.off("critic", a[0])
    await empty(team.engine)

    target = team.downstream("writer")  # but the critic speaks next
    a_on = await read(Handoff([(target, 0)]).through(team.prefiller.generate(team.request("planner"))))
    b_on = await read(target.generate(team.request("critic", a_on[0])))
    assert [a_on[1], b_on[1]] == [a[1], b[1]]
    figures = target.figures
    assert figures.wasted >= len(team.rules.encode(a[0])) - 24
    assert figures.computed == figures.prewarmed + figures.wasted


async def test_a_new_forecast_while_upstream_speaks(team: Team) -> None:
    a = await team.off("planner")
    b = await team.off("critic", a[0])
    await empty(team.engine)

    target = team.downstream("writer")
    handoff = Handoff([(target, 0)])
    deltas, sent = [], 0
    async for delta in handoff.through(team.prefiller.generate(team.request("planner"))):
        deltas.append(delta)
        if len(deltas) == 3:
            target.reforecast(team.forecast("critic"))
        elif len(deltas) > 3:
            sent = max(sent, target.session.warm, len(target.session.in_flight or ()))
    real = team.request("critic", "".join(delta.text for delta in deltas))
    assert target.prompt_ids() == real.input_ids
    b_on = await ask(target, real)
    assert [i for delta in deltas for i in delta.token_ids] == a[1]
    assert b_on[1] == b[1]
    # More was sent while upstream spoke than the two guesses have in common.
    old = team.request("writer", a[0]).input_ids
    assert sent > common_prefix(old, real.input_ids)


@pytest.mark.parametrize("step", [0, 1, 4, 9])
async def test_upstream_is_cancelled(team: Team, step: int) -> None:
    """Whatever B had prefilled by then, its answer to the part is that of an ordinary request."""
    target = team.downstream("writer")
    said = ""
    upstream = team.prefiller.generate(team.request("planner", tokens=300))  # a late reader gets few deltas
    async with aclosing(Handoff([(target, 0)]).through(upstream)) as stream:
        for _ in range(step):
            said += (await anext(stream)).text
    assert target.partial is (step > 0)  # nobody has spoken where the stream was never begun
    real = team.request("writer", said)
    if step:
        assert target.prompt_ids() == real.input_ids
    on = await read(target.generate(real))
    assert on[2].prewarmed_tokens == target.figures.prewarmed
    await empty(team.engine)
    assert on[1] == (await team.off("writer", said))[1]


@pytest.mark.parametrize("pause", [0.0, 0.02, 0.2])
async def test_downstream_is_aborted(team: Team, pause: float) -> None:
    """At any moment of a chunk; the fixture checks that the engine is empty afterwards."""
    a = await team.off("planner", tokens=8)
    await empty(team.engine)
    target = team.downstream("writer")
    await asyncio.sleep(pause)
    await target.close()
    a_on = await read(
        Handoff([(target, 0)]).through(team.prefiller.generate(team.request("planner", tokens=8)))
    )
    assert a_on[1] == a[1]
    assert target.figures.wasted == target.figures.computed


async def test_what_was_prefilled_is_evicted(team: Team) -> None:
    a = await team.off("planner")
    b = await team.off("writer", a[0])
    await empty(team.engine)

    target = team.downstream("writer")
    a_on = await read(Handoff([(target, 0)]).through(team.prefiller.generate(team.request("planner"))))
    await target.session.settle()
    await empty(team.engine)
    b_on = await read(target.generate(team.request("writer", a_on[0])))
    assert [a_on[1], b_on[1]] == [a[1], b[1]]
    assert b_on[2].cached_tokens == b_on[2].prewarmed_tokens == 0
    assert target.figures.wasted == target.figures.computed > 0


@pytest.fixture(scope="module")
def small_engine(model_path: str) -> Iterator[EmbeddedEngine]:
    """An engine whose cache holds little more than one prompt."""
    engine = EmbeddedEngine(model_path, max_total_tokens=900)
    asyncio.run(engine.start())
    yield engine
    asyncio.run(engine.close())


async def test_under_memory_pressure(small_engine: EmbeddedEngine, model_path: str) -> None:
    """Others fill the cache all the while: chunks are evicted or wait, and answers stay the same."""
    team = Team(small_engine, model_path)
    a = await team.off("planner")
    b = await team.off("writer", a[0])
    await empty(team.engine)
    stop = asyncio.Event()

    async def others() -> None:
        n = 0
        while not stop.is_set():
            n += 1
            ids = team.rules.encode(f"{n} little birds sat on the wire and sang. " * 12)
            await read(
                team.engine.generate(
                    GenerateRequest(input_ids=ids, sampling=SamplingParams(max_new_tokens=2))
                )
            )

    crowd = asyncio.create_task(others())
    target = team.downstream("writer")
    a_on = await read(Handoff([(target, 0)]).through(team.prefiller.generate(team.request("planner"))))
    b_on = await read(target.generate(team.request("writer", a_on[0])))
    stop.set()
    await crowd
    assert [a_on[1], b_on[1]] == [a[1], b[1]]
    assert target.figures.computed == target.figures.prewarmed + target.figures.wasted
    await settle(team.engine)
