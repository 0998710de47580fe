"""Teams within teams, societies of mind, agents behind tools."""

from __future__ import annotations

from typing import Any

from autogen_agentchat.agents import SocietyOfMindAgent
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_agentchat.tools import AgentTool

from helpers.overlap import assistant, both, call

LONG = "look at the old town, then walk on along the river, and write down what you see. " * 2


def says(name: str) -> str:
    return f"{name} says: {LONG}"


async def test_a_team_within_a_team() -> None:
    def make(client: Any) -> RoundRobinGroupChat:
        inner = RoundRobinGroupChat(
            [assistant(name, client) for name in ("b", "c")], max_turns=2, name="inner"
        )
        return RoundRobinGroupChat([assistant("a", client), inner, assistant("d", client)], max_turns=3)

    runtime, _ = await both(make, [says(name) for name in "abcd"])
    turns = {turn.agent: turn for turn in runtime.turns}
    for name in "bcd":  # from outside in, inside, from inside out
        assert turns[name].right is True, name
        assert turns[name].slots[0].issued_early > 0


async def test_an_inner_team_that_ends_by_its_messages() -> None:
    def make(client: Any) -> RoundRobinGroupChat:
        inner = RoundRobinGroupChat(
            [assistant("b", client)], termination_condition=MaxMessageTermination(2), name="inner"
        )
        return RoundRobinGroupChat([inner, assistant("d", client)], max_turns=2)

    runtime, _ = await both(make, [says(name) for name in "bd"])
    assert runtime.turns[-1].agent == "d" and runtime.turns[-1].right is True


async def test_a_society_of_mind() -> None:
    def make(client: Any) -> RoundRobinGroupChat:
        inner = RoundRobinGroupChat([assistant(name, client) for name in ("b", "c")], max_turns=2)
        society = SocietyOfMindAgent("society", team=inner, model_client=client)
        return RoundRobinGroupChat([assistant("a", client), society, assistant("d", client)], max_turns=3)

    runtime, _ = await both(make, [says(name) for name in ("a", "b", "c", "society", "d")])
    turns = {turn.agent: turn for turn in runtime.turns}
    assert [turns[name].right for name in ("b", "c", "society", "d")] == [True] * 4
    assert turns["society"].slots[0].issued_early > 0


async def test_an_agent_behind_a_tool_speaks_into_its_owners_prompt() -> None:
    def make(client: Any) -> RoundRobinGroupChat:
        writer = assistant("writer", client, description="Writes.")
        tool = AgentTool(writer, return_value_as_last_message=True)
        owner = assistant("owner", client, tools=[tool], max_tool_iterations=3)
        return RoundRobinGroupChat([owner, assistant("reader", client)], max_turns=2)

    script = [call("writer", task="Write a poem."), says("writer"), says("owner"), says("reader")]
    runtime, _ = await both(make, script)
    turns = list(runtime.turns)
    assert [turn.agent for turn in turns] == ["owner", "writer", "owner", "reader"]
    assert turns[2].right is True and turns[2].slots[0].issued_early > 0
    assert turns[3].right is True


async def test_reflection_after_a_tool_that_is_an_agent() -> None:
    def make(client: Any) -> RoundRobinGroupChat:
        writer = assistant("writer", client, description="Writes.")
        owner = assistant("owner", client, tools=[AgentTool(writer)], reflect_on_tool_use=True)
        return RoundRobinGroupChat([owner, assistant("reader", client)], max_turns=2)

    script = [call("writer", task="Write a poem."), says("writer"), says("owner"), says("reader")]
    runtime, _ = await both(make, script)
    assert runtime.turns[2].right is True and runtime.turns[3].right is True
