"""Teams in other settings: several engines, adapters, runtimes of the user's own, states, cancellation."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from autogen_agentchat.teams import DiGraphBuilder, GraphFlow, RoundRobinGroupChat
from autogen_core import CancellationToken, SingleThreadedAgentRuntime

import flashagents_autogen
from flashagents_autogen import FlashAgentsChatCompletionClient, FlashGroupChatRuntime
from flashagents_runtime.scripted import Reply
from helpers.gated_engine import GatedEngine
from helpers.overlap import EAGER, assistant, chunks, client_on, overlapping, shown

LONG = "look at the old town, then walk on along the river, and write down what you see. " * 2


def texts(count: int) -> list[str]:
    return [f"{i}: {LONG}" for i in range(count)]


async def test_agents_on_two_engines() -> None:
    """The text goes over; each engine is warmed for its own agent."""
    one, two = client_on(*texts(2)), client_on(*texts(2))
    await two.start()  # an engine that is not up is not started for a guess
    team = RoundRobinGroupChat([assistant("a", one), assistant("b", two)], max_turns=4)
    async with overlapping(team) as runtime:
        await team.run(task="Plan a trip.")
    assert [turn.right for turn in runtime.turns] == [None, True, True, True]
    for client, name in ((one, "a"), (two, "b")):
        warmed = [r for r in client.engine.requests if r.sampling.max_new_tokens == 0]  # type: ignore[attr-defined]
        assert warmed and all(f"You are {name}." in bytes(r.input_ids).decode() for r in warmed)


async def test_adapters_and_tenants_are_warmed_apart() -> None:
    client = client_on(*texts(4))
    engine = client.engine
    b = FlashAgentsChatCompletionClient(engine=engine, lora="writer", cache_salt="tenant")
    team = RoundRobinGroupChat([assistant("a", client), assistant("b", b)], max_turns=4)
    async with overlapping(team) as runtime:
        await team.run(task="Plan a trip.")
    assert [turn.right for turn in runtime.turns] == [None, True, True, True]
    for request in engine.requests:  # type: ignore[attr-defined]
        is_b = "You are b." in bytes(request.input_ids).decode()
        assert (request.lora, request.cache_salt) == (("writer", "tenant") if is_b else (None, None))


async def test_a_client_that_is_exchanged_while_its_agent_waits() -> None:
    client, other = client_on(*texts(2)), client_on(*texts(2))
    a, b = assistant("a", client), assistant("b", client)
    team = RoundRobinGroupChat([a, b], max_turns=2)
    async with overlapping(team) as runtime:
        async for message in team.run_stream(task="Plan a trip."):
            if getattr(message, "source", "") == "a":
                b._model_client = other
    assert len(runtime.turns) == 2
    assert chunks(client.engine) > 0  # type: ignore[arg-type]


async def test_an_agent_runtime_of_the_users_own() -> None:
    client = client_on(*texts(2))
    agents = SingleThreadedAgentRuntime()
    agents.start()
    team = RoundRobinGroupChat([assistant("a", client), assistant("b", client)], max_turns=2, runtime=agents)
    async with overlapping() as runtime:
        runtime.attach(team)
        await team.run(task="Plan a trip.")
        await agents.stop()
    assert runtime.turns[-1].right is True


async def test_states_and_configurations_are_autogens() -> None:
    client = client_on(*texts(4))
    agents = [assistant("a", client), assistant("b", client)]
    team = RoundRobinGroupChat(agents, max_turns=2)
    async with overlapping(team) as runtime:
        first = shown(await team.run(task="Plan a trip."))
        state = await team.save_state()
        await team.reset()
        await team.load_state(state)
        again = await team.run(task="Go on.")
        assert len(again.messages) == 3 and len(first) == 4
    assert runtime.turns[-1].right is True


def fan(client: Any) -> GraphFlow:
    a, b, c, d = (assistant(name, client) for name in "abcd")
    builder = DiGraphBuilder()
    builder.add_node(a).add_node(b).add_node(c).add_node(d)
    builder.add_edge(a, b).add_edge(a, c).add_edge(b, d).add_edge(c, d)
    return GraphFlow([a, b, c, d], builder.build())  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(12))
async def test_cancelled_at_any_time_nothing_is_left(seed: int) -> None:
    chance = random.Random(seed)
    script = [Reply(text=[w + " " for w in text.split()], interval=0.0002) for text in texts(6)]
    engine = GatedEngine(script, open=chance.random() < 0.7)
    client = FlashAgentsChatCompletionClient(engine=engine)
    team: Any = (
        fan(client)
        if seed % 2
        else RoundRobinGroupChat([assistant("a", client), assistant("b", client)], max_turns=4)
    )
    token = CancellationToken()
    async with overlapping(team) as runtime:
        run = asyncio.create_task(team.run(task="Plan a trip.", cancellation_token=token))
        await asyncio.sleep(chance.uniform(0, 0.06))
        if chance.random() < 0.5:
            token.cancel()
        else:
            run.cancel()
            token.cancel()  # AutoGen's run waits for its agents otherwise
        await asyncio.wait([run])
        assert len(runtime.expectations) == 0
    assert not engine.waiting and not engine._running


def test_one_runtime_in_several_event_loops() -> None:
    """What was expected in a loop that is gone is no longer, and disturbs nobody."""
    client = client_on(*texts(4))
    a, b = assistant("a", client), assistant("b", client)
    runtime = FlashGroupChatRuntime(EAGER)
    runtime.link(a, b)
    try:
        for _ in range(2):
            asyncio.run(a.run(task="Plan a trip."))
            assert asyncio.run(b.run(task="Plan a trip.")).messages[-1].to_text()
        asyncio.run(runtime.close())
    finally:
        runtime.stop()
    assert len(runtime.expectations) == 0


async def test_teams_in_two_threads_with_one_runtime() -> None:
    runtime = flashagents_autogen.install(FlashGroupChatRuntime(EAGER))

    def work() -> int:
        async def run() -> int:
            client = client_on(*texts(4))
            team = RoundRobinGroupChat([assistant("a", client), assistant("b", client)], max_turns=4)
            return len((await team.run(task="Plan a trip.")).messages)

        return asyncio.run(run())

    try:
        counts = await asyncio.gather(*(asyncio.to_thread(work) for _ in range(4)))
    finally:
        flashagents_autogen.uninstall()
        await runtime.close()
    assert counts == [5] * 4
    assert runtime.hit_rate().right == 12
