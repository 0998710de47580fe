"""AutoGen's own teams, mended in place."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from autogen_agentchat.teams import DiGraphBuilder, GraphFlow, RoundRobinGroupChat

from flashagents_autogen import FlashRoundRobinGroupChat, TeamFixes, install, uninstall
from flashagents_autogen.teams import mend
from flashagents_runtime import Reply
from helpers.teams import Gate, Speaker, answered, assistants, conversation, cut_off


async def cancelled(team: Any, gate: Gate) -> None:
    run = asyncio.create_task(team.run(task="Go."))
    await gate.reached()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(run, 5)


async def test_a_mended_team_ends_at_once_and_goes_on() -> None:
    gate = Gate()
    slow = Speaker("b", wait=gate)
    team = RoundRobinGroupChat([Speaker("a"), slow], max_turns=2)
    assert mend(team)
    await cancelled(team, gate)
    assert slow.cut == 1
    gate.event.set()
    assert await conversation(team) == [
        *("b: b says so", "a: a says so", "stop: Maximum number of turns 2 reached.")
    ]


async def test_a_mended_graph_is_no_other_graph() -> None:
    agents = [Speaker(name) for name in "abc"]
    builder = DiGraphBuilder()
    for agent in agents:
        builder.add_node(agent)
    for before, after in itertools.pairwise(agents):
        builder.add_edge(before, after)
    team = GraphFlow(builder.get_participants(), builder.build())
    assert mend(team)
    assert (await conversation(team, "Go."))[-1] == "stop: Digraph execution is complete"
    assert agents[2].told == [["user: Go.", "a: a says so", "b: b says so"]]


def test_a_mended_team_goes_by_its_name() -> None:
    agents, _ = assistants("ab")
    team = RoundRobinGroupChat(list(agents), max_turns=3)
    kind = repr(type(team))
    team._participants = []  # clients of a scripted engine cannot be dumped
    before = team.dump_component()
    assert mend(team) and mend(team)
    assert team.dump_component() == before
    assert repr(type(team)) == kind and isinstance(team, RoundRobinGroupChat)


def test_what_cannot_be_mended_is_left_alone() -> None:
    class Own(RoundRobinGroupChat):
        pass

    own = Own([Speaker("a")])
    assert not mend(own) and type(own) is Own


async def test_a_team_that_has_run_is_left_alone() -> None:
    team = RoundRobinGroupChat([Speaker("a")], max_turns=1)
    await team.run(task="Go.")
    assert not mend(team)
    assert (await conversation(team, "Go."))[1] == "a: a says so"


def test_a_flash_team_is_mended_already() -> None:
    team = FlashRoundRobinGroupChat([Speaker("a")], fixes=TeamFixes.none())
    assert mend(team) and team.fixes == TeamFixes.none()


@pytest.fixture
def mending() -> Iterator[None]:
    install(mend=True)
    yield
    uninstall()


@pytest.mark.usefixtures("mending")
async def test_install_mends_the_teams_of_an_application() -> None:
    agents, engine = assistants("ab", "one", Reply(text="abc", interval=60), "two", "three")
    team = RoundRobinGroupChat(list(agents), max_turns=2)
    run = asyncio.create_task(team.run(task="Go."))
    while len(answered(engine)) < 2:
        await asyncio.sleep(0)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(run, 5)
    assert cut_off(engine) == [answered(engine)[1].rid]
    assert (await conversation(team))[:2] == ["b: two", "a: three"]


@pytest.mark.usefixtures("mending")
async def test_nested_teams_are_mended_too() -> None:
    gate = Gate()
    inner = RoundRobinGroupChat([Speaker("deaf", wait=gate)], max_turns=1, name="inner")
    team = RoundRobinGroupChat([inner], max_turns=1)
    await cancelled(team, gate)
    gate.event.set()
    assert "deaf: deaf says so" in await conversation(team, "Again.")


async def test_without_it_install_leaves_teams_as_they_are() -> None:
    install()
    try:
        team = RoundRobinGroupChat([Speaker("a")], max_turns=1)
        await team.run(task="Go.")
        assert type(team) is RoundRobinGroupChat
    finally:
        uninstall()
