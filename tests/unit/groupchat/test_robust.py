"""Whatever agents, engines and users do: the team goes on as it would have."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from autogen_agentchat.agents import AssistantAgent, BaseChatAgent
from autogen_agentchat.base import Response
from autogen_agentchat.messages import BaseChatMessage, TextMessage
from autogen_agentchat.teams import RoundRobinGroupChat, SelectorGroupChat
from autogen_core import CancellationToken
from autogen_core.model_context import UnboundedChatCompletionContext
from autogen_core.models import ChatCompletionClient, CreateResult, RequestUsage, UserMessage
from autogen_core.tools import StaticWorkbench

from flashagents_autogen import FlashAgentsChatCompletionClient
from flashagents_runtime import EngineError
from flashagents_runtime.scripted import Reply
from helpers.gated_engine import GatedEngine
from helpers.overlap import EAGER, assistant, both, chunks, client_on, overlapping, shown, words

LONG = "look at the old town, then walk on along the river, and write down what you see. " * 2


def pair(client: Any, turns: int = 2) -> RoundRobinGroupChat:
    return RoundRobinGroupChat([assistant("a", client), assistant("b", client)], max_turns=turns)


class Hostile(AssistantAgent):
    """Everything that a forecast reads raises."""

    def __getattribute__(self, item: str) -> Any:
        armed = object.__getattribute__(self, "__dict__").get("armed")
        ours = "flashagents_autogen" in sys._getframe(1).f_code.co_filename
        if item in ("_workbench", "_memory") and armed and ours:
            raise RuntimeError(f"do not touch {item}")
        return super().__getattribute__(item)


async def test_a_forecast_that_raises_is_logged_once_and_the_team_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    client = client_on(*[f"{i} {LONG}" for i in range(6)])
    hostile = Hostile("b", model_client=client, system_message="You are b.")
    hostile.armed = True  # type: ignore[attr-defined]
    team = RoundRobinGroupChat([assistant("a", client), hostile], max_turns=6)
    with caplog.at_level(logging.WARNING, logger="flashagents_autogen"):
        async with overlapping(team) as runtime:
            result = await team.run(task="Plan a trip.")
    assert len(result.messages) == 7
    assert len([r for r in caplog.records if r.name.startswith("flashagents")]) <= 2
    assert [e for e in runtime.events if e.kind == "error"]


async def test_an_agent_that_raises_in_init_never_was() -> None:
    class Broken(AssistantAgent):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            raise RuntimeError("no")

    client = client_on(LONG, LONG)
    async with overlapping() as runtime:
        with pytest.raises(RuntimeError, match="no"):
            Broken("x", client)
        team = pair(client)
        runtime.attach(team)
        assert len((await team.run(task="Go.")).messages) == 3


async def test_a_huge_context() -> None:
    def make(client: Any) -> RoundRobinGroupChat:
        old = [UserMessage(content="word " * 200, source="user") for _ in range(300)]
        context = UnboundedChatCompletionContext(initial_messages=old)  # type: ignore[arg-type]
        return RoundRobinGroupChat(
            [assistant("a", client), assistant("b", client, model_context=context)], max_turns=2
        )

    runtime, _ = await both(make, [LONG, LONG])
    assert runtime.turns[-1].right is True


async def test_a_prompt_that_is_longer_than_the_context_fails_as_ever() -> None:
    client = client_on(LONG, LONG, context=300)
    team = pair(client)
    async with overlapping(team):
        with pytest.raises(RuntimeError, match="context"):
            await team.run(task="x" * 200)


async def test_names_in_any_script() -> None:
    def make(client: Any) -> RoundRobinGroupChat:
        return RoundRobinGroupChat([assistant("Ärztin", client), assistant("日本", client)], max_turns=4)

    runtime, _ = await both(make, [LONG, LONG, LONG, LONG])
    assert [turn.right for turn in runtime.turns][-3:] == [True] * 3


async def test_agents_added_while_the_team_runs() -> None:
    client = client_on(*[f"{i} {LONG}" for i in range(4)])
    team = pair(client, turns=4)
    async with overlapping(team):
        seen = 0
        async for _ in team.run_stream(task="Plan a trip."):
            seen += 1
            if seen == 2:
                team._participants.append(assistant("late", client))
    assert seen == 6


class Echo(BaseChatAgent):
    """An agent of the user's own: it says what its model says, or something else."""

    def __init__(self, name: str, client: Any, honest: bool) -> None:
        super().__init__(name, "Echo.")
        self._model_client = client
        self._honest = honest
        self._heard: list[Any] = []

    @property
    def produced_message_types(self) -> Sequence[type[BaseChatMessage]]:
        return (TextMessage,)

    async def on_messages(self, messages: Sequence[BaseChatMessage], token: CancellationToken) -> Response:
        self._heard += [message.to_model_message() for message in messages]
        result = await self._model_client.create(self._heard)
        text = result.content if self._honest else result.content.upper()
        return Response(chat_message=TextMessage(content=text, source=self.name))

    async def on_reset(self, token: CancellationToken) -> None:
        self._heard.clear()


@pytest.mark.parametrize("honest", [True, False])
async def test_agents_of_the_users_own_are_streamed_once_they_were_seen_to_say_it(honest: bool) -> None:
    def make(client: Any) -> RoundRobinGroupChat:
        return RoundRobinGroupChat([Echo("echo", client, honest), assistant("b", client)], max_turns=6)

    slow = [Reply(text=[w + " " for w in f"{i} {LONG}".split()], delay=0.1) for i in range(6)]
    runtime, _ = await both(make, slow)
    after = [turn for turn in runtime.turns if turn.agent == "b"]
    assert after[0].forecast == "head"
    assert [turn.right for turn in after[1:]] == ([True, True] if honest else [None, None])


class Asked(StaticWorkbench):
    """A workbench that may be a server."""


async def test_a_workbench_that_has_to_be_asked_is_not() -> None:
    def make(client: Any) -> RoundRobinGroupChat:
        b = assistant("b", client, workbench=Asked([]))
        return RoundRobinGroupChat([assistant("a", client), b], max_turns=2)

    runtime, _ = await both(make, [LONG, LONG])
    assert runtime.turns[-1].forecast == "none"


class Foreign(ChatCompletionClient):
    """A client that is none of ours."""

    async def create(self, messages: Any, **args: Any) -> CreateResult:
        usage = RequestUsage(prompt_tokens=1, completion_tokens=1)
        return CreateResult(finish_reason="stop", content=LONG, usage=usage, cached=False)

    def create_stream(self, messages: Any, **args: Any) -> Any:
        raise NotImplementedError

    async def close(self) -> None:
        pass

    def actual_usage(self) -> RequestUsage:
        return RequestUsage(prompt_tokens=0, completion_tokens=0)

    total_usage = actual_usage

    def count_tokens(self, messages: Any, **args: Any) -> int:
        return 0

    remaining_tokens = count_tokens

    @property
    def capabilities(self) -> Any:
        return self.model_info

    @property
    def model_info(self) -> Any:
        return {"vision": False, "function_calling": False, "json_output": False, "family": "unknown"}


async def test_another_client_speaks_upstream() -> None:
    client, other = client_on(LONG), Foreign()
    team = RoundRobinGroupChat([assistant("a", other), assistant("b", client)], max_turns=2)
    async with overlapping(team):
        assert len((await team.run(task="Go.")).messages) == 3


async def test_warm_ups_that_fail_change_nothing() -> None:
    def client() -> FlashAgentsChatCompletionClient:
        engine = GatedEngine([words(f"{i} {LONG}") for i in range(4)], open=True)
        engine.error = EngineError("no memory")
        return FlashAgentsChatCompletionClient(engine=engine)

    team = pair(client(), turns=4)
    async with overlapping(team):
        result = await team.run(task="Plan a trip.")
    assert len(result.messages) == 5


async def test_a_cancelled_team_leaves_nothing_open() -> None:
    engine = GatedEngine([Reply(text=[w + " " for w in (LONG * 20).split()], interval=0.001)])
    client = FlashAgentsChatCompletionClient(engine=engine)
    team = pair(client)
    token = CancellationToken()
    async with overlapping(team) as runtime:
        run = asyncio.create_task(team.run(task="Plan a trip.", cancellation_token=token))
        while not engine.waiting:
            await asyncio.sleep(0.005)
        assert len(runtime.expectations) > 0
        token.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        assert len(runtime.expectations) == 0
    assert not engine.waiting and not engine._running


async def test_a_reader_who_leaves_the_stream_leaves_nothing_open() -> None:
    client = client_on(*[f"{i} {LONG}" for i in range(4)])
    team = pair(client, turns=4)
    async with overlapping(team) as runtime:
        stream: AsyncGenerator[Any, None] = team.run_stream(task="Plan a trip.")
        async for message in stream:
            if isinstance(message, TextMessage) and message.source == "a":
                break
        await stream.aclose()
        assert len(runtime.expectations) == 0


async def test_two_teams_at_once_with_one_runtime() -> None:
    async with overlapping() as runtime:
        teams = []
        for i in range(3):
            client = client_on(*[f"{i}{k} {LONG}" for k in range(4)])
            teams.append(pair(client, turns=4))
            runtime.attach(teams[-1])
        results = await asyncio.gather(*(team.run(task="Plan a trip.") for team in teams))
    assert all(len(shown(result)) == 6 for result in results)
    assert runtime.hit_rate().right == 9


async def test_the_policy_may_switch_everything_off() -> None:
    client = client_on(LONG, LONG)
    team = pair(client)
    async with overlapping(team, replace(EAGER, heads=False, stream=False)):
        await team.run(task="Go.")
    assert chunks(client.engine) == 0  # type: ignore[arg-type]


async def test_a_selector_team_of_hostile_descriptions() -> None:
    def make(client: Any) -> SelectorGroupChat:
        agents = [assistant(n, client, description="{roles} {x} \n\t %s ️") for n in ("planner", "local", "x")]
        return SelectorGroupChat(agents, model_client=client, max_turns=2)

    await both(make, ["planner", LONG, "local", LONG])


async def test_an_event_handler_that_raises() -> None:
    def broken(event: Any) -> None:
        raise RuntimeError("no")

    client = client_on(LONG, LONG)
    team = pair(client)
    async with overlapping(team, on_event=broken):
        assert len((await team.run(task="Go.")).messages) == 3
