"""The paper's workflows as AutoGen teams; every answer has its length, every prompt too."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.base import TaskResult
from autogen_agentchat.messages import ModelClientStreamingChunkEvent
from autogen_agentchat.teams import DiGraphBuilder, GraphFlow, RoundRobinGroupChat
from autogen_core.models import CreateResult, SystemMessage, UserMessage

from benchmarks.paper.clients import ClientFactory
from benchmarks.paper.word_model import Texts
from flashagents_autogen import FlashMapReduce, FlashRoundRobinGroupChat

#: Upstream's clients, downstream's clients.
Clients = tuple[ClientFactory, ClientFactory]


@dataclass
class Times:
    """One workflow on one clock; seconds since it began.

    Attributes:
        first: of each agent's first token.
        last: of each agent's last one.
        end: of the workflow.
    """

    first: dict[str, float] = field(default_factory=dict)
    last: dict[str, float] = field(default_factory=dict)
    end: float = 0.0

    def saw(self, agent: str, at: float) -> None:
        """A piece of the agent's text has come."""
        self.first.setdefault(agent, at)
        self.last[agent] = at


@dataclass(frozen=True)
class Lengths:
    """Tokens, as the paper's workflows have them, divided by `scale`."""

    scale: int = 1

    def __call__(self, tokens: int) -> int:
        return max(tokens // self.scale, 4)


def _agent(name: str, make: ClientFactory, tokens: int, system: str) -> AssistantAgent:
    return AssistantAgent(name, model_client=make(tokens), system_message=system, model_client_stream=True)


async def _run(team: Any, task: str) -> Times:
    times, began = Times(), time.perf_counter()
    async for event in team.run_stream(task=task):
        if isinstance(event, ModelClientStreamingChunkEvent):
            times.saw(event.source, time.perf_counter() - began)
        elif isinstance(event, TaskResult):
            times.end = time.perf_counter() - began
    return times


class Chain:
    """The travel planner: planner, local guide, language guide, summary, all with one guide of 2,500 tokens.

    The planner is upstream's; the others are downstream's. Each writes 256 tokens.
    """

    agents = ("planner", "local_guide", "language_guide", "summary")
    modes = ("stock", "ours")

    def __init__(self, texts: Texts, length: Lengths) -> None:
        self._texts, self._length = texts, length
        self._guide = texts.of(length(2500))

    async def run(self, clients: Clients, mode: str) -> Times:
        """One conversation."""
        length = self._length
        makers = (clients[0], *itertools.repeat(clients[1], 3))
        agents: list[Any] = [
            _agent(name, make, length(256), self._guide + self._texts.of(length(60)))
            for name, make in zip(self.agents, makers, strict=False)
        ]
        kind = FlashRoundRobinGroupChat if mode == "ours" else RoundRobinGroupChat
        return await _run(kind(agents, max_turns=4), self._texts.of(length(40)))

    @classmethod
    def handoffs(cls, times: Times) -> list[float]:
        """From each agent's last token to the next one's first."""
        return [times.first[b] - times.last[a] for a, b in itertools.pairwise(cls.agents)]


class MapReduce:
    """Three reviewers of one paper of 3,000 tokens, and a meta-reviewer who reads the three reviews."""

    reviewers = ("novelty", "soundness", "clarity")
    modes = ("sequential", "graph", "ours")

    def __init__(self, texts: Texts, length: Lengths) -> None:
        self._texts, self._length = texts, length

    async def run(self, clients: Clients, mode: str) -> Times:
        """One paper: the reviewers one after another, by AutoGen's GraphFlow, or by `FlashMapReduce`."""
        length, texts = self._length, self._texts
        reviewers: list[Any] = [
            _agent(name, clients[0], length(256), texts.of(length(60))) for name in self.reviewers
        ]
        meta: Any = _agent("meta", clients[1], length(256), texts.of(length(60)))
        team: Any
        if mode == "sequential":
            team = RoundRobinGroupChat([*reviewers, meta], max_turns=4)
        elif mode == "graph":
            builder = DiGraphBuilder()
            for reviewer in reviewers:
                builder.add_node(reviewer)
            builder.add_node(meta)
            for reviewer in reviewers:
                builder.add_edge(reviewer, meta)
            team = GraphFlow([*reviewers, meta], builder.build())
        else:
            team = FlashMapReduce(reviewers, meta)
        return await _run(team, texts.of(length(3000)))

    @classmethod
    def handoffs(cls, times: Times) -> list[float]:
        """From the last review's last token to the meta-review's first."""
        return [times.first["meta"] - max(times.last[name] for name in cls.reviewers)]


class Slides:
    """An analyser writes an outline of 12 items; a generator writes each slide.

    A generator's prompt is 3,013 tokens that all share (instructions and the document) and 300 of its own, of
    which 25 are its item of the outline. The model's text is no JSON: an item is complete when its 25 tokens
    have come.
    """

    count = 12
    modes = ("after the outline", "with its item")

    def __init__(self, texts: Texts, length: Lengths) -> None:
        self._texts, self._length = texts, length

    async def run(self, clients: Clients, mode: str) -> Times:
        """One document."""
        length, texts = self._length, self._texts
        times, began = Times(), time.perf_counter()
        item = length(25)
        analyser = clients[0](item * self.count)
        generator = clients[1](length(100))
        shared = texts.of(length(3013))
        own = length(300) - item

        async def slide(number: int, outline: str) -> None:
            messages = [
                SystemMessage(content=shared),
                UserMessage(content=outline + texts.of(own), source="analyser"),
            ]
            async for piece in generator.create_stream(messages):
                if not isinstance(piece, CreateResult):
                    times.saw(f"slide {number}", time.perf_counter() - began)

        messages = [SystemMessage(content=texts.of(length(60))), UserMessage(content=shared, source="user")]
        async with asyncio.TaskGroup() as group:
            outlines: list[str] = []
            async for outline in self._items(analyser.create_stream(messages), item, times, began):
                outlines.append(outline)
                if mode == "with its item":
                    group.create_task(slide(len(outlines), outline))
            if mode == "after the outline":
                for number, outline in enumerate(outlines, 1):
                    group.create_task(slide(number, outline))
        times.end = time.perf_counter() - began
        return times

    async def _items(
        self, stream: AsyncIterator[Any], words: int, times: Times, began: float
    ) -> AsyncIterator[str]:
        text, given = "", 0
        async for piece in stream:
            if isinstance(piece, CreateResult):
                continue
            times.saw("analyser", time.perf_counter() - began)
            text += piece
            parts = text.split(" ")[1:]
            while given < self.count - 1 and len(parts) > (given + 1) * words:
                yield "".join(f" {word}" for word in parts[given * words : (given + 1) * words])
                given += 1
        parts = text.split(" ")[1:]
        while given < self.count:
            yield "".join(f" {word}" for word in parts[given * words : (given + 1) * words])
            given += 1

    @classmethod
    def handoffs(cls, times: Times) -> list[float]:
        """From the outline's last token to the last slide's first."""
        return [max(at for name, at in times.first.items() if name != "analyser") - times.last["analyser"]]


WORKFLOWS: dict[str, type[Chain] | type[MapReduce] | type[Slides]] = {
    "chain": Chain,
    "map_reduce": MapReduce,
    "slides": Slides,
}
