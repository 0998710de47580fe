"""Teams on scripted engines, with and without the overlap."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import Any
from unittest.mock import patch

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.base import TaskResult
from autogen_agentchat.messages import BaseChatMessage

from flashagents_autogen import FlashAgentsChatCompletionClient, FlashGroupChatRuntime, GroupChatPolicy
from flashagents_runtime import ScriptedEngine
from flashagents_runtime.chat import ToolCall
from flashagents_runtime.scripted import Reply, ScriptItem

#: Small chunks at once, as scripted answers are short and no decode is disturbed.
EAGER = GroupChatPolicy(chunk_size=16, share=1.0)


def words(text: str) -> Reply:
    """An answer that comes word by word."""
    return Reply(text=[word + " " for word in text.split(" ")])


def call(name: str, text: str = "", *, thought: str = "", **args: Any) -> Reply:
    """An answer that calls a tool: the call is in the tokens, not in the text."""
    raw = f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(args)}}}\n</tool_call>'
    said = [word + " " for word in text.split()]
    pieces = [raw[i : i + 5] for i in range(0, len(raw), 5)]
    return Reply(
        text=[*said, *([""] * len(pieces))],
        token_ids=[*(list(w.encode()) for w in said), *(list(p.encode()) for p in pieces)],
        tool_calls=[ToolCall(name=name, arguments=json.dumps(args))],
        thought=thought,
    )


def client_on(*script: ScriptItem, context: int = 1 << 20, **args: Any) -> FlashAgentsChatCompletionClient:
    """A client on a scripted engine of its own (`client.engine`); texts come word by word."""
    items = [words(item) if isinstance(item, str) else item for item in script]
    return FlashAgentsChatCompletionClient(engine=ScriptedEngine(items, context_length=context), **args)


def assistant(name: str, client: Any, **args: Any) -> AssistantAgent:
    """An assistant with a system message long enough to be worth warming."""
    args.setdefault("system_message", f"You are {name}. Speak as {name} would, briefly and to the point.")
    return AssistantAgent(name, model_client=client, **args)


@asynccontextmanager
async def overlapping(
    team: Any = None, policy: GroupChatPolicy = EAGER, **args: Any
) -> AsyncIterator[FlashGroupChatRuntime]:
    """A runtime, with the team attached; afterwards nothing may be left of it."""
    before = asyncio.all_tasks()
    async with FlashGroupChatRuntime(policy, **args) as runtime:
        if team is not None:
            runtime.attach(team)
        yield runtime
        assert len(runtime.expectations) == 0
    assert asyncio.all_tasks() <= before


def shown(result: TaskResult) -> list[tuple[str, str, str]]:
    """What a run came to, without ids and times."""
    messages = [(type(m).__name__, m.source, m.to_text()) for m in result.messages]
    return [*messages, ("stop", "", str(result.stop_reason))]


def prompts(engine: ScriptedEngine) -> list[list[int]]:
    """The prompts of the real requests, in order."""
    return [r.input_ids for r in engine.requests if r.sampling.max_new_tokens != 0]


def chunks(engine: ScriptedEngine) -> int:
    """How many warm-up requests there were."""
    return sum(r.sampling.max_new_tokens == 0 for r in engine.requests)


def counted_ids() -> Any:
    """Tool calls are numbered instead of named at random."""
    numbers = count()
    return patch("flashagents_autogen._answer._new_id", lambda: f"call{next(numbers):05d}")


Team = Callable[[FlashAgentsChatCompletionClient], Any]


async def both(
    make: Team,
    script: Sequence[ScriptItem],
    task: str | Sequence[BaseChatMessage] = "Plan a trip to Rome for four people in May.",
    policy: GroupChatPolicy = EAGER,
    runs: int = 1,
) -> tuple[FlashGroupChatRuntime, Any]:
    """Run a team without and with the overlap: its messages and its prompts have to be the same."""
    plain = client_on(*script)
    team = make(plain)
    with counted_ids():
        stock = [shown(await team.run(task=task)) for _ in range(runs)]

    client = client_on(*script)
    team = make(client)
    async with overlapping(team, policy) as runtime:
        with counted_ids():
            flash = [shown(await team.run(task=task)) for _ in range(runs)]
    assert flash == stock
    assert prompts(client.engine) == prompts(plain.engine)  # type: ignore[arg-type]
    assert chunks(plain.engine) == 0  # type: ignore[arg-type]
    assert not [event for event in runtime.events if event.kind == "error"]
    return runtime, team


def check_covered(runtime: FlashGroupChatRuntime, chunk: int = 16, turns: int | None = None) -> None:
    """All forecasts were right; each upstream text but its last chunk was warm, and some of it early."""
    rate = runtime.hit_rate()
    assert rate.turns == rate.foreseen == rate.right > 0
    if turns is not None:
        assert rate.turns == turns
    for turn in runtime.turns:
        for slot in turn.slots:
            assert slot.end - slot.start > chunk
            assert slot.prewarmed >= slot.end - slot.start - chunk
            assert slot.issued_early > 0
