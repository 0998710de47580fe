"""What agents may have: memory, tools, reflection, structured messages; and agents called by hand."""

from __future__ import annotations

from typing import Any

from autogen_agentchat.messages import StructuredMessage
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core.memory import ListMemory, MemoryContent
from pydantic import BaseModel

import flashagents_autogen
from flashagents_runtime.scripted import Reply
from helpers.overlap import EAGER, assistant, both, call, client_on, overlapping

LONG = "look at the old town, then walk on along the river, and write down what you see. " * 2


def says(name: str) -> str:
    return f"{name} says: {LONG}"


def pair(client: Any, first: dict[str, Any] | None = None, **second: Any) -> RoundRobinGroupChat:
    agents = [assistant("a", client, **(first or {})), assistant("b", client, **second)]
    return RoundRobinGroupChat(agents, max_turns=2)


def lookup(city: str) -> str:
    """Look a city up."""
    return f"{city} is nice."


async def remembering(*facts: str) -> ListMemory:
    memory = ListMemory()
    for fact in facts:
        await memory.add(MemoryContent(content=fact, mime_type="text/plain"))
    return memory


async def test_a_list_of_memories_is_foreseen() -> None:
    memory = await remembering("Likes trains.", "Hates planes.")
    runtime, _ = await both(lambda c: pair(c, memory=[memory]), [says("a"), says("b")])
    assert runtime.turns[-1].right is True
    assert runtime.turns[-1].slots[0].issued_early > 0


class Searching(ListMemory):
    """A memory that looks for what was said."""


async def test_with_other_memories_the_guess_ends_after_the_text() -> None:
    memory = Searching()
    await memory.add(MemoryContent(content="Likes trains.", mime_type="text/plain"))
    runtime, _ = await both(lambda c: pair(c, memory=[memory]), [says("a"), says("b")])
    turn = runtime.turns[-1]
    assert turn.right is True and turn.slots[0].prewarmed > 100


async def test_tools_of_the_next_agent_are_part_of_its_prompt() -> None:
    runtime, _ = await both(lambda c: pair(c, tools=[lookup]), [says("a"), says("b")])
    assert runtime.turns[-1].right is True


async def test_a_tool_call_instead_of_an_answer() -> None:
    """What a says before the call is no message: b reads the tool's result."""
    runtime, _ = await both(
        lambda c: pair(c, {"tools": [lookup]}), [call("lookup", LONG, city="Rome"), says("b")]
    )
    turn = runtime.turns[-1]
    assert turn.forecast == "head" and turn.prewarmed > 60


async def test_reflection_and_iterations() -> None:
    for args in ({"reflect_on_tool_use": True}, {"max_tool_iterations": 4}):
        first = {"tools": [lookup], **args}
        script = [call("lookup", city="Rome"), says("a"), says("b")]
        runtime, _ = await both(lambda c, first=first: pair(c, first), script)  # type: ignore[misc]
        assert runtime.turns[-1].right is True
        assert runtime.turns[-1].slots[0].issued_early > 0


class Answer(BaseModel):
    city: str
    days: int


async def test_a_structured_message_is_not_streamed() -> None:
    def make(client: Any) -> RoundRobinGroupChat:
        agents = [assistant("a", client, output_content_type=Answer), assistant("b", client)]
        return RoundRobinGroupChat(agents, max_turns=2, custom_message_types=[StructuredMessage[Answer]])

    runtime, _ = await both(make, [Reply(text='{"city": "Rome",  "days": 3}'), says("b")])
    turn = runtime.turns[-1]
    assert turn.forecast == "head" and turn.prewarmed > 60


async def test_reasoning_is_not_part_of_the_message() -> None:
    thinking = Reply(text=["\n\n", *(w + " " for w in says("a").split())], thought="Let me think.")
    runtime, _ = await both(pair, [thinking, says("b")])
    assert runtime.turns[-1].right is True


async def test_agents_linked_by_hand() -> None:
    client = client_on(says("a"), says("b"))
    a, b = assistant("a", client), assistant("b", client)
    async with overlapping() as runtime:
        runtime.link(a, b)
        first = await a.run(task="Plan a trip.")
        await b.run(task=first.messages[-1].to_text())
    turn = runtime.turns[-1]
    assert turn.agent == "b" and turn.right is True and turn.slots[0].issued_early > 0


async def test_agents_called_by_hand_are_learnt() -> None:
    client = client_on(*[says(name) + f" in round {i}" for i in range(2) for name in "ab"])
    a, b = assistant("a", client), assistant("b", client)
    runtime = flashagents_autogen.install(flashagents_autogen.FlashGroupChatRuntime(EAGER))
    try:
        for _ in range(2):
            first = await a.run(task="Plan a trip.")
            await b.run(task=f"Improve this plan:\n\n{first.messages[-1].to_text()}\n\nBe brief.")
            await a.on_reset(None)  # type: ignore[arg-type]
            await b.on_reset(None)  # type: ignore[arg-type]
    finally:
        flashagents_autogen.uninstall()
        await runtime.close()
    turns = [turn for turn in runtime.turns if turn.agent == "b"]
    assert [turn.right for turn in turns] == [None, True]
    assert turns[1].slots[0].issued_early > 0
