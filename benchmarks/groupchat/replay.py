"""Conversations replayed through AutoGen's teams on a scripted engine, without and with the overlap.

A conversation is a task and what was said in turn. Each kind of team plays it in its own way: the same
texts, the speakers of the conversation where the kind of team can choose them, else its own order.
"""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from autogen_agentchat.agents import AssistantAgent, SocietyOfMindAgent
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.teams import (
    DiGraphBuilder,
    GraphFlow,
    MagenticOneGroupChat,
    RoundRobinGroupChat,
    SelectorGroupChat,
    Swarm,
)
from autogen_agentchat.tools import AgentTool
from autogen_core.model_context import (
    BufferedChatCompletionContext,
    HeadAndTailChatCompletionContext,
    UnboundedChatCompletionContext,
)

from flashagents_autogen import (
    FlashAgentsChatCompletionClient,
    FlashGroupChatRuntime,
    FlashMapReduce,
    GroupChatPolicy,
)
from flashagents_autogen.groupchat.turns import Turn
from flashagents_runtime import GenerateRequest, ScriptedEngine
from flashagents_runtime.chat import ToolCall
from flashagents_runtime.handoff.common_prefix import common_prefix
from flashagents_runtime.scripted import Reply

LONGEST = 1200  # characters of a text
PIECE = 48  # characters of a delta
POLICY = GroupChatPolicy(chunk_size=64, share=1.0)
CONTEXTS: tuple[Callable[[], Any], ...] = (
    UnboundedChatCompletionContext,
    lambda: BufferedChatCompletionContext(3),
    lambda: HeadAndTailChatCompletionContext(1, 2),
)
Client = FlashAgentsChatCompletionClient
Script = list[Any]


@dataclass(frozen=True)
class Conversation:
    """A task, and who said what."""

    name: str
    task: str
    turns: Sequence[tuple[str, str]]

    @property
    def speakers(self) -> list[str]:
        """Their names, in the order of their first words; two at least."""
        names = list(dict.fromkeys(name for name, _ in self.turns))
        return names if len(names) > 1 else [*names, "Listener"]


def load(path: Path) -> list[Conversation]:
    """One a line: `{"id", "question", "history": [{"name" or "role", "content"}]}`."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        raw = json.loads(line)
        turns = [
            (re.sub(r"\W", "_", entry.get("name") or entry["role"])[:40], entry["content"][:LONGEST])
            for entry in raw["history"]
            if entry["content"].strip()
        ]
        found.append(Conversation(str(raw["id"]), raw["question"], turns))
    return found


def made_up(count: int, seed: int = 0) -> list[Conversation]:
    """Conversations that nobody had: any words, lines, marks and scripts, short and long."""
    rng = random.Random(seed)
    words = "Rome train walk 12.5 «old» é 中文 <b> | ``` - * { } ' ... ok"
    pieces = [*words.split(), "\n\n", "\t", "\\", '"']
    names = ["Planner", "Data_Expert", "critic_2", "Terminal", "web"]

    def text() -> str:
        return " ".join(rng.choice(pieces) for _ in range(rng.choice((1, 8, 60, 150)))).strip() or "ok"

    out = []
    for i in range(count):
        speakers = rng.sample(names, rng.randint(2, 4))
        turns = [(rng.choice(speakers), text()) for _ in range(rng.randint(3, 8))]
        out.append(Conversation(f"made-up-{i}", text(), turns))
    return out


def say(text: str) -> Reply:
    """An answer in pieces."""
    return Reply(text=[text[i : i + PIECE] for i in range(0, len(text), PIECE)])


def hand_off(text: str, target: str) -> Reply:
    """A text, and a call that hands off."""
    return calls(f"transfer_to_{target}".lower(), text)


def calls(name: str, text: str = "", **arguments: str) -> Reply:
    """A text, and a call of a tool, which is in the tokens alone."""
    written = json.dumps(arguments)
    raw = f'<tool_call>{{"name": "{name}", "arguments": {written}}}</tool_call>'
    said = [text[i : i + PIECE] for i in range(0, len(text), PIECE)]
    hidden = [raw[i : i + 6] for i in range(0, len(raw), 6)]
    return Reply(
        text=[*said, *[""] * len(hidden)],
        token_ids=[list(piece.encode()) for piece in (*said, *hidden)],
        tool_calls=[ToolCall(name=name, arguments=written)],
    )


def ledger(speaker: str, instruction: str, done: bool = False) -> Reply:
    """MagenticOne's progress ledger."""
    fields: dict[str, Any] = {
        "is_request_satisfied": done,
        "is_in_loop": False,
        "is_progress_being_made": True,
        "next_speaker": speaker,
        "instruction_or_question": instruction,
    }
    return say(json.dumps({key: {"reason": "so", "answer": value} for key, value in fields.items()}))


def agent(name: str, client: Client, kind: int = 0, **args: Any) -> AssistantAgent:
    """An agent of the conversation, with one of the model contexts that can be foreseen."""
    system = f"You are {name}. Work with the others on the task, step by step, and keep to the facts."
    context = CONTEXTS[kind % len(CONTEXTS)]()
    return AssistantAgent(name, model_client=client, system_message=system, model_context=context, **args)


class QuickEngine(ScriptedEngine):
    """A scripted engine that compares prompts by slices: these have tens of thousands of tokens."""

    def _cached(self, request: GenerateRequest) -> int:
        ids, longest = request.input_ids, 0
        for seen in itertools.chain.from_iterable(self._seen.values()):
            if seen[: longest + 1] == ids[: longest + 1]:
                longest = common_prefix(seen, ids)
        return min(longest, max(len(ids) - 1, 0))


@dataclass(frozen=True)
class Play:
    """A conversation as one kind of team plays it.

    `ordered`: False where agents speak at the same time and who is done first is a matter of time.
    """

    make: Callable[[Client], Any]
    script: Script
    task: str
    ordered: bool = True

    def shown(self, messages: Sequence[Any], stop: str | None) -> list[tuple[str, str, str]]:
        """What was said, in an order that two runs have in common."""
        found = [(type(m).__name__, m.source, m.to_text()) for m in messages]
        return [*(found if self.ordered else sorted(found)), ("stop", "", str(stop))]


def round_robin(c: Conversation, kind: int) -> Play:
    """The speakers in turn."""
    n = len(c.turns)

    def make(client: Client) -> Any:
        return RoundRobinGroupChat([agent(name, client, kind) for name in c.speakers], max_turns=n)

    return Play(make, [say(text) for _, text in c.turns], c.task)


def selector(c: Conversation, kind: int) -> Play:
    """The model selects the speaker of the conversation."""

    def make(client: Client) -> Any:
        agents = [agent(name, client, kind) for name in c.speakers]
        return SelectorGroupChat(
            agents, model_client=client, allow_repeated_speaker=True, max_turns=len(c.turns)
        )

    return Play(make, [say(part) for name, text in c.turns for part in (name, text)], c.task)


def swarm(c: Conversation, kind: int) -> Play:
    """Each hands off to whoever speaks next in the conversation."""
    turns = [turn for i, turn in enumerate(c.turns) if i == 0 or turn[0] != c.turns[i - 1][0]]

    def make(client: Client) -> Any:
        names = [turns[0][0], *(name for name in c.speakers if name != turns[0][0])]
        agents = [agent(name, client, handoffs=[o for o in names if o != name]) for name in names]
        return Swarm(agents, termination_condition=MaxMessageTermination(1 + len(turns)))

    script = [hand_off(text, turns[i + 1][0]) for i, (_, text) in enumerate(turns[:-1])]
    return Play(make, [*script, say(turns[-1][1])], c.task)


def _graph(c: Conversation, kind: int, edges: Sequence[tuple[int, int]], count: int) -> Play:
    """Nodes n0, n1, ... with the texts of the conversation; each says its own, in whatever order."""
    texts = [c.turns[i % len(c.turns)][1] for i in range(count)]

    def make(client: Client) -> Any:
        nodes = [agent(f"n{i}", client, kind) for i in range(count)]
        builder = DiGraphBuilder()
        for node in nodes:
            builder.add_node(node)
        for a, b in edges:
            builder.add_edge(nodes[a], nodes[b])
        return GraphFlow(nodes, builder.build())  # type: ignore[arg-type]

    return Play(make, [_by_number(texts)] * count, c.task)


def _by_number(texts: Sequence[str]) -> Callable[[GenerateRequest], Reply]:
    def answer(request: GenerateRequest) -> Reply:
        prompt = bytes(request.input_ids).decode()
        number = int(re.search(r"You are n(\d+)\.", prompt).group(1))  # type: ignore[union-attr]
        return say(texts[number])

    return answer


def graph_chain(c: Conversation, kind: int) -> Play:
    """A node for each turn, one after the other."""
    n = len(c.turns)
    return _graph(c, kind, [(i, i + 1) for i in range(n - 1)], n)


def graph_fan(c: Conversation, kind: int) -> Play:
    """The first speaks to three at once, a fourth hears them all."""
    return _graph(c, kind, [(0, 1), (0, 2), (0, 3), (1, 4), (2, 4), (3, 4)], 5)


def magentic_one(c: Conversation, kind: int) -> Play:
    """The orchestrator tells each speaker of the conversation what the one before has said."""

    def make(client: Client) -> Any:
        return MagenticOneGroupChat(
            [agent(name, client, kind) for name in c.speakers], model_client=client, max_turns=None
        )

    script: Script = [say("GIVEN OR VERIFIED FACTS: " + c.task), say("- Ask the experts.")]
    for name, text in c.turns:
        script += [ledger(name, text[:400]), say(text)]
    return Play(make, [*script, ledger(c.speakers[0], "", done=True), say("Final answer.")], c.task)


def nested(c: Conversation, kind: int) -> Play:
    """A team of two as the second member of three."""
    texts = [c.turns[i % len(c.turns)][1] for i in range(4)]

    def make(client: Client) -> Any:
        inner = RoundRobinGroupChat(
            [agent("b", client, kind), agent("c", client, kind)], name="inner", max_turns=2
        )
        return RoundRobinGroupChat(
            [agent("a", client, kind), inner, agent("d", client, kind)], name="outer", max_turns=3
        )

    return Play(make, [say(text) for text in texts], c.task)


def society(c: Conversation, kind: int) -> Play:
    """A society of two as the second member of three."""
    texts = [c.turns[i % len(c.turns)][1] for i in range(5)]

    def make(client: Client) -> Any:
        inner = RoundRobinGroupChat(
            [agent("b", client, kind), agent("c", client, kind)], name="inner", max_turns=2
        )
        mind = SocietyOfMindAgent("mind", team=inner, model_client=client)
        return RoundRobinGroupChat(
            [agent("a", client, kind), mind, agent("d", client, kind)], name="outer", max_turns=3
        )

    return Play(make, [say(text) for text in texts], c.task)


def agent_tool(c: Conversation, kind: int) -> Play:
    """The first of two has a writer behind a tool."""
    texts = [c.turns[i % len(c.turns)][1] for i in range(4)]

    def make(client: Client) -> Any:
        tool = AgentTool(agent("writer", client, kind), return_value_as_last_message=True)
        owner = agent("owner", client, kind, tools=[tool], max_tool_iterations=3)
        return RoundRobinGroupChat([owner, agent("reader", client, kind)], max_turns=2)

    return Play(make, [calls("writer", task=texts[0]), *(say(text) for text in texts[1:])], c.task)


def map_reduce(c: Conversation, kind: int) -> Play:
    """The first three texts at once, then a fourth that hears them in order."""
    texts = [c.turns[i % len(c.turns)][1] for i in range(4)]

    def make(client: Client) -> Any:
        nodes = [agent(f"n{i}", client, kind) for i in range(4)]
        return FlashMapReduce(nodes[:3], nodes[3], overlap=False)  # until it is attached

    return Play(make, [_by_number(texts)] * 4, c.task, ordered=False)


KINDS: dict[str, Callable[[Conversation, int], Play]] = {
    "RoundRobin": round_robin,
    "Selector": selector,
    "Swarm": swarm,
    "GraphFlow chain": graph_chain,
    "GraphFlow fan-out and fan-in": graph_fan,
    "MagenticOne": magentic_one,
    "nested": nested,
    "SocietyOfMind": society,
    "AgentTool": agent_tool,
    "FlashMapReduce": map_reduce,
}


@dataclass(frozen=True)
class Outcome:
    """What a run came to: its messages, and the prompts of all real requests."""

    messages: list[tuple[str, str, str]]
    prompts: list[list[int]]


async def run(play: Play, runtime: FlashGroupChatRuntime | None) -> Outcome:
    """Play it once, on an engine of its own."""
    engine = QuickEngine(play.script, context_length=1 << 22)
    client = Client(engine=engine)
    team = play.make(client)
    if runtime is not None:
        runtime.attach(team)
    numbers = itertools.count()
    with patch("flashagents_autogen._answer._new_id", lambda: f"call{next(numbers):05d}"):
        result = await team.run(task=play.task)
    messages = play.shown(result.messages, result.stop_reason)
    prompts = [r.input_ids for r in engine.requests if r.sampling.max_new_tokens != 0]
    return Outcome(messages, prompts)


def readers(name: str, turns: Sequence[Turn]) -> list[Turn]:
    """The turns without those of mappers, who come after others but do not hear them."""
    return [turn for turn in turns if name != "FlashMapReduce" or turn.agent == "n3"]


def plays(name: str, conversations: Sequence[Conversation]) -> Iterator[tuple[Conversation, Play]]:
    """Each conversation as this kind of team plays it; model contexts take turns."""
    for i, conversation in enumerate(conversations):
        yield conversation, KINDS[name](conversation, i)
