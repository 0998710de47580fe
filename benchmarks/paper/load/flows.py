"""What arrives: chains of AutoGen agents, or the turns of agentic traces, with the overlap or without."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.teams import RoundRobinGroupChat

from benchmarks.handoff.conversation import tokens
from benchmarks.paper import clients as model_clients
from benchmarks.paper.load.agentic import Turn
from benchmarks.paper.load.arrivals import Arrival
from benchmarks.paper.word_model import Texts
from flashagents_autogen import FlashRoundRobinGroupChat
from flashagents_runtime import Delta, GenerateRequest
from flashagents_runtime.embedded import EmbeddedEngine
from flashagents_runtime.handoff import Prefiller, PrefillSession

AGENTS = 3
SYSTEM = 800  # tokens of each agent's system message, the same for all users


@dataclass
class Served:
    """One workflow: seconds, and tokens that its agents wrote."""

    seconds: float
    tokens: int


class Flows(Protocol):
    """A kind of workflow."""

    async def one(self, engine: EmbeddedEngine, overlap: bool, which: int) -> Served:
        """Run workflow number `which`."""
        ...

    async def close(self) -> None:
        """The end."""
        ...


class Chains:
    """Three AutoGen agents in a row, each with a system message; tasks and answers as long as a trace's."""

    def __init__(self, model: Path, texts: Texts, arrivals: list[Arrival], scale: int) -> None:
        self._model = model
        self._texts = texts
        self._arrivals = arrivals
        self._scale = scale
        self._systems = [texts.of(max(SYSTEM // scale, 4)) for _ in range(AGENTS)]

    async def one(self, engine: EmbeddedEngine, overlap: bool, which: int) -> Served:
        """One user's chain of agents."""
        arrival = self._arrivals[which]
        answer = max(arrival.answer // self._scale, 4)
        client = model_clients.ours(engine, self._model)(answer)
        agents: list[Any] = [
            AssistantAgent(f"agent_{i}", model_client=client, system_message=system, model_client_stream=True)
            for i, system in enumerate(self._systems)
        ]
        kind = FlashRoundRobinGroupChat if overlap else RoundRobinGroupChat
        team: Any = kind(agents, max_turns=AGENTS)
        began = time.perf_counter()
        await team.run(task=self._texts.of(max(arrival.task // self._scale, 4)))
        return Served(time.perf_counter() - began, AGENTS * answer)

    async def close(self) -> None:
        """Nothing to end."""


class Replay:
    """The turns of agentic traces, one after another, as requests of token ids.

    What an agent decodes is replaced, token by token, by what the trace has at its place in the next prompt:
    only its timing is the model's. With the overlap those tokens go to the next turn's session as they come.
    """

    def __init__(self, workflows: list[list[Turn]]) -> None:
        self._workflows = workflows
        self._prefillers: dict[int, Prefiller] = {}  # by engine

    async def one(self, engine: EmbeddedEngine, overlap: bool, which: int) -> Served:
        """One workflow; its waits for tools are part of it."""
        prefiller = self._prefillers.setdefault(id(engine), Prefiller(engine))
        turns = self._workflows[which]
        began, session = time.perf_counter(), None
        try:
            for turn, then in zip(turns, [*turns[1:], None], strict=True):
                await asyncio.sleep(turn.wait)
                request = GenerateRequest(input_ids=turn.prompt, sampling=tokens(turn.answer))
                stream = prefiller.generate(request) if session is None else session.generate(request)
                following = prefiller.open(agent=then.agent) if overlap and then is not None else None
                session = following
                await self._decode(stream, following, then)
        finally:
            if session is not None:
                await session.close()
        return Served(time.perf_counter() - began, sum(turn.answer for turn in turns))

    async def _decode(
        self, stream: AsyncGenerator[Delta, None], session: PrefillSession | None, then: Turn | None
    ) -> None:
        if session is not None and then is not None:
            session.rebase(then.prompt[: then.known])
            session.flush(always=True)  # as group chats do
        done = 0
        async with aclosing(stream):
            async for delta in stream:
                if session is not None and then is not None:
                    place = then.known + done
                    done = min(done + len(delta.token_ids), then.said)
                    session.extend(then.prompt[place : then.known + done])
        if session is not None:
            session.flush()

    async def close(self) -> None:
        """End what sessions are left."""
        for prefiller in self._prefillers.values():
            await prefiller.close()
