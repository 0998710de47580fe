"""Agents and teams on a scripted engine, and agents without any engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any

from autogen_agentchat.agents import AssistantAgent, BaseChatAgent
from autogen_agentchat.base import Response, TaskResult, Team
from autogen_agentchat.messages import BaseAgentEvent, BaseChatMessage, TextMessage
from autogen_core import CancellationToken

from flashagents_autogen import FlashAgentsChatCompletionClient
from flashagents_runtime import GenerateRequest, ScriptedEngine
from flashagents_runtime.scripted import ScriptItem


def assistants(names: Sequence[str], *script: ScriptItem) -> tuple[list[AssistantAgent], ScriptedEngine]:
    """Streaming AssistantAgents with one client, and the scripted engine behind it."""
    engine = ScriptedEngine(script)
    client = FlashAgentsChatCompletionClient(engine=engine)
    agents = [
        AssistantAgent(name, model_client=client, model_client_stream=True, system_message=f"You: {name}.")
        for name in names
    ]
    return agents, engine


def answered(engine: ScriptedEngine) -> list[GenerateRequest]:
    """The agents' own requests: without those that warm the cache."""
    return [request for request in engine.requests if request.sampling.max_new_tokens != 0]


def cut_off(engine: ScriptedEngine) -> list[str]:
    """Ids of the agents' own requests that were aborted."""
    return [request.rid for request in answered(engine) if request.rid in engine.aborted]


class Speaker(BaseChatAgent):
    """Says what it is told to say; remembers what it was told, and whether it was cut off."""

    def __init__(
        self, name: str, *says: str, wait: Callable[[], Awaitable[Any]] | None = None, repeat: bool = True
    ) -> None:
        super().__init__(name, f"{name} speaks")
        self._says = list(says) or [f"{name} says so"]
        self._wait = wait
        self._repeat = repeat
        self.told: list[list[str]] = []
        self.cut = 0

    @property
    def produced_message_types(self) -> Sequence[type[BaseChatMessage]]:
        return (TextMessage,)

    async def on_messages(
        self, messages: Sequence[BaseChatMessage], cancellation_token: CancellationToken
    ) -> Response:
        self.told.append([f"{m.source}: {m.to_model_text()}" for m in messages])
        try:
            if self._wait is not None:
                await self._wait()
        except asyncio.CancelledError:
            self.cut += 1
            raise
        text = self._says[0] if len(self._says) == 1 and self._repeat else self._says.pop(0)
        return Response(chat_message=TextMessage(content=text, source=self.name))

    async def on_reset(self, cancellation_token: CancellationToken) -> None:
        self.told.clear()


class Gate:
    """Something to wait for, opened by the test; knows how many wait."""

    def __init__(self) -> None:
        self.event = asyncio.Event()
        self.waiting = 0

    async def __call__(self) -> None:
        self.waiting += 1
        try:
            await self.event.wait()
        finally:
            self.waiting -= 1

    async def reached(self, n: int = 1) -> None:
        """Wait until n are waiting."""
        async with asyncio.timeout(10):
            while self.waiting < n:
                await asyncio.sleep(0)


async def texts(stream: AsyncGenerator[BaseAgentEvent | BaseChatMessage | TaskResult, None]) -> list[str]:
    """'source: text' of every chat message, and the stop reason last."""
    found: list[str] = []
    async for item in stream:
        if isinstance(item, TaskResult):
            found.append(f"stop: {item.stop_reason}")
        elif isinstance(item, BaseChatMessage):
            found.append(f"{item.source}: {item.to_model_text()}")
    return found


async def conversation(team: Team, task: str | None = None) -> list[str]:
    """`texts` of a run, which must end within ten seconds."""
    async with asyncio.timeout(10):
        return await texts(team.run_stream(task=task))
