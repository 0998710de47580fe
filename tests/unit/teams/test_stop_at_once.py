"""A cancelled run ends at once: AutoGen 7100 and 7123, and what its README of limits said of Ctrl-C."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from autogen_agentchat.agents import SocietyOfMindAgent
from autogen_agentchat.base import Team
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.messages import TextMessage
from autogen_agentchat.teams import DiGraphBuilder, RoundRobinGroupChat
from autogen_core import CancellationToken, SingleThreadedAgentRuntime

from flashagents_autogen import (
    FlashGraphFlow,
    FlashMagenticOneGroupChat,
    FlashMapReduce,
    FlashRoundRobinGroupChat,
    FlashSelectorGroupChat,
    TeamFixes,
)
from flashagents_runtime import Reply, ScriptedEngine
from helpers.teams import Gate, Speaker, answered, assistants, conversation, cut_off

NEVER = Reply(text="abcdef", interval=60)


def graph_team(agents: list[Any], **options: Any) -> FlashGraphFlow:
    builder = DiGraphBuilder()
    builder.add_node(agents[0])
    for before, after in itertools.pairwise(agents):
        builder.add_node(after).add_edge(before, after)
    return FlashGraphFlow(builder.get_participants(), builder.build(), **options)


TEAMS: dict[str, Callable[[list[Any]], Team]] = {
    "round_robin": lambda agents: FlashRoundRobinGroupChat(agents, max_turns=4),
    "selector": lambda agents: FlashSelectorGroupChat(
        agents, agents[0]._model_client, selector_func=lambda thread: "ab"[len(thread) % 2 - 1]
    ),
    "graph": graph_team,
    "parallel_graph": lambda agents: graph_team(agents, parallel=True),
    "map_reduce": lambda agents: FlashMapReduce(agents[:-1], agents[-1]),
}


async def finish(task: asyncio.Task[Any]) -> None:
    """The task ends cancelled, and soon."""
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 5)


async def working(engine: ScriptedEngine) -> None:
    async with asyncio.timeout(5):
        while not answered(engine):
            await asyncio.sleep(0)


async def nothing_left(team: Team) -> None:
    """No task of the run is left, and the team may run again."""
    assert not team._is_running and team.current_run is None  # type: ignore[attr-defined]
    await asyncio.sleep(0)
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    assert others == []


@pytest.mark.parametrize("kind", TEAMS)
@pytest.mark.parametrize("how", ["token", "task", "thread"])
async def test_7100_a_speaking_agent_is_cut_off(kind: str, how: str) -> None:
    agents, engine = assistants("ab", NEVER)
    team = TEAMS[kind](agents)
    token = CancellationToken()
    task = asyncio.create_task(team.run(task="Go.", cancellation_token=token))
    await working(engine)
    if how == "token":
        token.cancel()
    elif how == "thread":
        thread = threading.Thread(target=token.cancel)
        thread.start()
        thread.join()
    else:
        task.cancel()
    await finish(task)
    assert cut_off(engine) == [answered(engine)[0].rid]
    await nothing_left(team)


@pytest.mark.parametrize("how", ["token", "task"])
async def test_7100_an_agent_that_ignores_the_token_is_cut_off(how: str) -> None:
    gate, token = Gate(), CancellationToken()
    deaf = Speaker("deaf", wait=gate)
    team = FlashRoundRobinGroupChat([deaf], max_turns=2)
    task = asyncio.create_task(team.run(task="Go.", cancellation_token=token))
    await gate.reached()
    token.cancel() if how == "token" else task.cancel()
    await finish(task)
    assert deaf.cut == 1
    await nothing_left(team)


async def test_7123_buffered_messages_are_not_given_out_after_the_cancellation() -> None:
    team = FlashRoundRobinGroupChat([Speaker("a"), Speaker("b")], max_turns=50)
    token = CancellationToken()
    seen = []
    with pytest.raises(asyncio.CancelledError):
        async for item in team.run_stream(task="Go.", cancellation_token=token):
            seen.append(item)
            for _ in range(200):  # the team runs ahead of its reader
                await asyncio.sleep(0)
            token.cancel()
    assert len(seen) == 1
    await nothing_left(team)


async def test_a_reader_who_leaves_stops_the_team() -> None:
    gate = Gate()
    slow = Speaker("slow", wait=gate)
    team = FlashRoundRobinGroupChat([Speaker("quick"), slow], max_turns=8)
    stream = team.run_stream(task="Go.")
    async for item in stream:
        if isinstance(item, TextMessage) and item.source == "quick":
            await gate.reached()
            break
    await asyncio.wait_for(stream.aclose(), 5)
    assert slow.cut == 1
    await nothing_left(team)


async def test_a_time_out_around_a_run_is_a_time_out() -> None:
    agents, engine = assistants("a", NEVER)
    team = FlashRoundRobinGroupChat(list(agents), max_turns=1)

    async def run_out(limit: asyncio.Timeout) -> None:
        await working(engine)
        limit.reschedule(asyncio.get_running_loop().time())

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(None) as limit:
            ending = asyncio.create_task(run_out(limit))
            await team.run(task="Go.")
    await ending
    assert len(cut_off(engine)) == 1
    await nothing_left(team)


@pytest.mark.parametrize("how", ["token", "task"])
async def test_a_selector_that_asks_its_model_is_cut_off(how: str) -> None:
    agents, engine = assistants("ab", NEVER)
    team = FlashSelectorGroupChat(list(agents), agents[0]._model_client)
    token = CancellationToken()
    task = asyncio.create_task(team.run(task="Go.", cancellation_token=token))
    await working(engine)
    token.cancel() if how == "token" else task.cancel()
    await finish(task)
    assert len(cut_off(engine)) == 1
    await nothing_left(team)


@pytest.mark.parametrize("replies", [0, 2])
async def test_magentic_one_is_cut_off_in_its_plan_and_in_its_ledger(replies: int) -> None:
    agents, engine = assistants("a", *["fact"] * replies, NEVER)
    team = FlashMagenticOneGroupChat(list(agents), agents[0]._model_client)
    task = asyncio.create_task(team.run(task="Go."))
    async with asyncio.timeout(5):
        while len(answered(engine)) <= replies:
            await asyncio.sleep(0)
    task.cancel()
    await finish(task)
    assert cut_off(engine) == [answered(engine)[-1].rid]
    await nothing_left(team)


@pytest.mark.parametrize("inner_class", [FlashRoundRobinGroupChat, RoundRobinGroupChat])
async def test_a_nested_team_is_cut_off(inner_class: Any) -> None:
    agents, engine = assistants("a", NEVER)
    inner = inner_class(list(agents), name="inner", max_turns=1)
    team = FlashRoundRobinGroupChat([inner, Speaker("b")], max_turns=2)
    token = CancellationToken()
    task = asyncio.create_task(team.run(task="Go.", cancellation_token=token))
    await working(engine)
    task.cancel()
    await finish(task)
    assert len(cut_off(engine)) == 1
    await nothing_left(team)


async def test_a_society_of_mind_is_cut_off() -> None:
    agents, engine = assistants("a", NEVER)
    inner = FlashRoundRobinGroupChat(list(agents), max_turns=1)
    society = SocietyOfMindAgent("society", inner, agents[0]._model_client)
    team = FlashRoundRobinGroupChat([society], max_turns=1)
    task = asyncio.create_task(team.run(task="Go."))
    await working(engine)
    task.cancel()
    await finish(task)
    await nothing_left(team)


async def test_a_runtime_of_the_callers_goes_on_living() -> None:
    runtime = SingleThreadedAgentRuntime()
    runtime.start()
    gate = Gate()
    waiting = Speaker("a", wait=gate)
    team = FlashRoundRobinGroupChat([waiting], max_turns=1, runtime=runtime)
    task = asyncio.create_task(team.run(task="Go."))
    await gate.reached()
    task.cancel()
    await finish(task)
    gate.event.set()
    assert await conversation(team, "Again.") == [
        *("user: Again.", "a: a says so", "stop: Maximum number of turns 1 reached.")
    ]
    await runtime.stop()


async def test_a_token_cancelled_beforehand_asks_nobody() -> None:
    a = Speaker("a")
    team = FlashRoundRobinGroupChat([a], max_turns=1)
    token = CancellationToken()
    token.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(team.run(task="Go.", cancellation_token=token), 5)
    assert a.told == []
    await nothing_left(team)


async def test_a_second_run_at_the_same_time_is_refused_and_disturbs_nothing() -> None:
    gate = Gate()
    team = FlashRoundRobinGroupChat([Speaker("a", wait=gate)], max_turns=1)
    first = asyncio.create_task(conversation(team, "Go."))
    await gate.reached()
    with pytest.raises(ValueError, match="already running"):
        await team.run(task="Too.")
    gate.event.set()
    assert (await first)[1] == "a: a says so"


async def test_an_agent_that_does_not_end_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("flashagents_autogen.teams._run.GRACE_SECONDS", 0.05)
    gate, end = Gate(), asyncio.Event()

    async def stubborn() -> None:
        try:
            await gate()
        except asyncio.CancelledError:
            await end.wait()
            raise

    team = FlashRoundRobinGroupChat([Speaker("stubborn", wait=stubborn)], max_turns=1)
    task = asyncio.create_task(team.run(task="Go."))
    await gate.reached()
    task.cancel()
    await finish(task)
    assert "still runs after 0.05 s: stubborn" in caplog.text
    with pytest.raises(ValueError, match="already running"):
        await team.run(task="Again.")
    end.set()
    async with asyncio.timeout(5):
        while team._is_running:
            await asyncio.sleep(0)


async def test_7100_opted_out_a_team_waits_for_its_agents_as_autogens_does() -> None:
    gate = Gate()
    deaf = Speaker("deaf", wait=gate)
    team = FlashRoundRobinGroupChat([deaf], max_turns=1, fixes=TeamFixes(stop_at_once=False))
    task = asyncio.create_task(team.run(task="Go."))
    await gate.reached()
    task.cancel()
    done, _ = await asyncio.wait({task}, timeout=0.2)
    assert not done
    gate.event.set()
    await finish(task)
    assert deaf.cut == 0


async def test_an_agent_that_is_cancelled_from_within_ends_the_run_with_an_error() -> None:
    """AutoGen's team waits for ever for such an agent."""

    async def give_up() -> None:
        raise asyncio.CancelledError("inner scope")

    team = FlashRoundRobinGroupChat([Speaker("a", wait=give_up)], max_turns=1)
    with pytest.raises(RuntimeError, match="agent a was cancelled from within"):
        await asyncio.wait_for(team.run(task="Go."), 5)
    await nothing_left(team)


async def test_the_stopped_team_logs_no_error(caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate()
    team = FlashRoundRobinGroupChat([Speaker("a", wait=gate)], termination_condition=MaxMessageTermination(9))
    task = asyncio.create_task(team.run(task="Go."))
    await gate.reached()
    task.cancel()
    await finish(task)
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


PROGRAM = """
import asyncio, sys
from flashagents_autogen import FlashAgentsChatCompletionClient, FlashRoundRobinGroupChat
from flashagents_runtime import Reply, ScriptedEngine
from autogen_agentchat.agents import AssistantAgent

async def main():
    client = FlashAgentsChatCompletionClient(engine=ScriptedEngine([Reply(text="abc", interval=600)]))
    team = FlashRoundRobinGroupChat([AssistantAgent("a", model_client=client, model_client_stream=True)])
    async for item in team.run_stream(task="Go."):
        print(type(item).__name__, flush=True)

asyncio.run(main())
"""


@pytest.mark.long
def test_ctrl_c_ends_a_program_at_once() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PROGRAM)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        # A shell that runs us in the background has SIGINT ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "TextMessage\n"
    assert process.stdout.readline() == "ModelClientStreamingChunkEvent\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)  # the agent would speak for 20 minutes
    assert process.returncode in (130, -signal.SIGINT)
    assert "KeyboardInterrupt" in errors and "Error processing" not in errors
