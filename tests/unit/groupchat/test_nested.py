"""Teams within teams, societies of mind, agents behind tools."""

from __future__ import annotations

import json
from typing import Any

import pytest
from autogen_agentchat.agents import SocietyOfMindAgent
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_agentchat.tools import AgentTool, TeamTool

from flashagents_autogen.groupchat.watch import TaskWatch
from flashagents_runtime.chat_tokenizer import ByteChatTokenizer
from helpers.overlap import assistant, both, call

LONG = "look at the old town, then walk on along the river, and write down what you see. " * 2


TASK = f'Write "a poem",\nthen é中 \\ more: {LONG}'


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

    script = [call("writer", task=TASK), says("writer"), says("owner"), says("reader")]
    runtime, _ = await both(make, script)
    turns = list(runtime.turns)
    assert [turn.agent for turn in turns] == ["owner", "writer", "owner", "reader"]
    assert turns[1].right is True and turns[1].slots[0].issued_early > 0  # the task that the call gives
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


async def test_a_team_behind_a_tool_is_told_its_task() -> None:
    def make(client: Any) -> RoundRobinGroupChat:
        inner = RoundRobinGroupChat([assistant(name, client) for name in ("b", "c")], max_turns=2)
        tool = TeamTool(inner, "inner", "Works.", return_value_as_last_message=True)
        owner = assistant("owner", client, tools=[tool], max_tool_iterations=3)
        return RoundRobinGroupChat([owner, assistant("reader", client)], max_turns=2)

    script = [call("inner", task=TASK), *[says(name) for name in ("b", "c", "owner", "reader")]]
    runtime, _ = await both(make, script)
    turns = {turn.agent: turn for turn in list(runtime.turns)[1:]}
    for name in ("b", "c"):
        assert turns[name].right is True and turns[name].slots[0].issued_early > 0
    assert turns["reader"].right is True


async def test_a_second_task_goes_on_from_the_first() -> None:
    def make(client: Any) -> RoundRobinGroupChat:
        tool = AgentTool(assistant("writer", client, description="Writes."))
        owner = assistant("owner", client, tools=[tool], max_tool_iterations=4)
        return RoundRobinGroupChat([owner], max_turns=1)

    calls = [call("writer", task=TASK), call("writer", task=TASK + "2")]
    script = [calls[0], says("one"), calls[1], says("two"), says("owner")]
    runtime, _ = await both(make, script)
    assert [turn.right for turn in runtime.turns if turn.agent == "writer"] == [True, True]


async def test_the_heads_of_all_who_can_be_reached_are_warm_at_the_start() -> None:
    """In teams within teams and behind tools; the one who speaks first is left out."""

    def make(client: Any) -> RoundRobinGroupChat:
        tool = AgentTool(assistant("writer", client, description="Writes."))
        b = assistant("b", client, tools=[tool])
        inner = RoundRobinGroupChat([b, assistant("c", client)], max_turns=2, name="inner")
        hidden = RoundRobinGroupChat([assistant("e", client)], max_turns=1)
        society = SocietyOfMindAgent("society", team=hidden, model_client=client)
        agents = [assistant("a", client), inner, society, assistant("d", client)]
        return RoundRobinGroupChat(agents, max_turns=1)

    runtime, _ = await both(make, [says("a")])
    warmed = [event for event in runtime.events if event.kind == "forecast"]
    assert {event.agent for event in warmed} == {"b", "c", "d", "e", "writer"}
    assert all(event.data["head_chars"] > 40 for event in warmed)


@pytest.mark.parametrize("step", [1, 2, 3, 50])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_a_task_is_read_in_any_pieces(step: int, ascii_only: bool) -> None:
    arguments = json.dumps({"task": TASK}, ensure_ascii=ascii_only)
    raw = f'<tool_call>\n{{"name": "writer", "arguments": {arguments}}}\n</tool_call>'.encode()
    watch = TaskWatch(ByteChatTokenizer(), ["write", "writer"])
    said = "".join(watch.feed(list(raw[i : i + step]), "") for i in range(0, len(raw), step))
    assert (said, watch.name, watch.done) == (TASK, "writer", True)


def test_talk_of_a_tool_is_no_task() -> None:
    watch = TaskWatch(ByteChatTokenizer(), ["writer"])
    talk = '{"name": "writer", "arguments": {"task": "x"}}'
    assert watch.feed(list(talk.encode()), talk) == "" and watch.name is None
    for other in (
        '{"name": "other", "arguments": {"task": "x"}}',
        '{"name": "writer", "arguments": {"a": "b"}}',
    ):
        assert watch.feed(list(other.encode()), "") == "" and watch.name is None
