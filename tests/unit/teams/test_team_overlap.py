"""What the group-chat runtime foresees in the Flash teams that order what their agents hear."""

from __future__ import annotations

import asyncio
import gc
import itertools
from typing import Any
from weakref import ref

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.teams import DiGraphBuilder

from flashagents_autogen import (
    FlashAgentsChatCompletionClient,
    FlashGraphFlow,
    FlashMapReduce,
    FlashRoundRobinGroupChat,
)
from flashagents_autogen.groupchat import FlashGroupChatRuntime, GroupChatPolicy, default_runtime
from flashagents_runtime import GenerateRequest, Reply, ScriptedEngine
from helpers.teams import Gate, answered

TEXTS = {name: f"{name} says: " + "so it is, and more of it. " * 8 for name in ("a", "b", "c", "d", "r")}


class Crew:
    """Assistants whose answers end when the test lets them."""

    def __init__(self, names: str) -> None:
        self.runtime = FlashGroupChatRuntime(GroupChatPolicy(chunk_size=16, share=1.0))
        self.engine = ScriptedEngine([self.answer] * 40, context_length=1 << 16)
        self.client = FlashAgentsChatCompletionClient(engine=self.engine)
        self.agents: dict[str, Any] = {
            name: AssistantAgent(
                name, model_client=self.client, model_client_stream=True, system_message=f"You: {name}."
            )
            for name in names
        }
        self.gates = {name: Gate() for name in names}
        generate = self.engine.generate

        async def gated(request: GenerateRequest) -> Any:
            """All but the last delta, then the gate, then the last one."""
            name = self.name_of(request)
            if request.sampling.max_new_tokens == 0:
                async for delta in generate(request):
                    yield delta
                return
            held: Any = None
            async for delta in generate(request):
                if held is not None:
                    yield held
                held = delta
            await self.gates[name]()
            yield held

        self.engine.generate = gated  # type: ignore[method-assign]

    @staticmethod
    def name_of(request: GenerateRequest) -> str:
        return bytes(request.input_ids).decode().partition("You: ")[2][0]

    def answer(self, request: GenerateRequest) -> Reply:
        return Reply(text=TEXTS[self.name_of(request)])

    async def let(self, name: str) -> None:
        await self.gates[name].reached()
        for _ in range(500):
            await asyncio.sleep(0)
        self.gates[name].event.set()
        for _ in range(500):
            await asyncio.sleep(0)

    def turn(self, name: str) -> Any:
        return next(turn for turn in self.runtime.turns if turn.agent == name)


@pytest.mark.parametrize("order", list(itertools.permutations("abc")))
async def test_a_reducer_is_foreseen_whoever_is_done_first(order: tuple[str, ...]) -> None:
    crew = Crew("abcr")
    team = FlashMapReduce([crew.agents[name] for name in "abc"], crew.agents["r"], chat_runtime=crew.runtime)
    async with asyncio.timeout(60):
        run = asyncio.create_task(team.run(task="Go."))
        for name in order:
            await crew.let(name)
        await crew.let("r")
        await run
    turn = crew.turn("r")
    assert (turn.forecast, turn.right) == ("message", True)
    prompt = bytes(answered(crew.engine)[-1].input_ids).decode()
    assert [prompt.index(TEXTS[name]) for name in "abc"] == sorted(prompt.index(TEXTS[n]) for n in "abc")
    # Most of what was said is warm, also of those who were not first: the last chunk is not.
    assert turn.prewarmed > 0.8 * turn.prompt, turn
    await crew.runtime.close()


async def test_a_node_that_does_not_hear_a_branch_is_foreseen_without_it() -> None:
    """b and c speak at the same time; d follows b, and never hears c."""
    crew = Crew("abcdr")
    builder = DiGraphBuilder()
    for name in "abcdr":
        builder.add_node(crew.agents[name])
    for before, after in ("ab", "ac", "bd", "dr", "cr"):
        builder.add_edge(crew.agents[before], crew.agents[after])
    team = FlashGraphFlow(
        builder.get_participants(), builder.build(), parallel=True, chat_runtime=crew.runtime
    )
    async with asyncio.timeout(60):
        run = asyncio.create_task(team.run(task="Go."))
        for name in "abdcr":
            await crew.let(name)
        await run
    for name in "bcdr":
        turn = crew.turn(name)
        assert (turn.forecast, turn.right) == ("message", True), name
    await crew.runtime.close()


async def test_a_team_that_is_over_can_be_collected() -> None:
    """The runtime's figures of its turns outlive it, and hold neither its agents nor its conversation."""

    def build() -> FlashRoundRobinGroupChat:
        client = FlashAgentsChatCompletionClient(engine=ScriptedEngine(TEXTS.values()))
        agents: list[Any] = [
            AssistantAgent(name, model_client=client, model_client_stream=True) for name in ("a", "b")
        ]
        return FlashRoundRobinGroupChat(agents, max_turns=3)

    runtime = default_runtime()
    runtime.turns.clear()
    team = build()
    await team.run(task="Go.")
    gone = [ref(team), *(ref(agent) for agent in team._participants)]
    before = [turn.slots for turn in runtime.turns]
    del team
    gc.collect()
    assert [r() for r in gone] == [None] * 3
    assert [turn.slots for turn in runtime.turns] == before and any(before)
    runtime.turns.clear()
