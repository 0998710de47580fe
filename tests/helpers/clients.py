"""Clients on a scripted engine, and what they return."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autogen_core.models import AssistantMessage, CreateResult, LLMMessage, SystemMessage, UserMessage

from flashagents_autogen import FlashAgentsChatCompletionClient
from flashagents_runtime import ScriptedEngine
from flashagents_runtime.scripted import ScriptItem


def scripted(*script: ScriptItem, **args: Any) -> tuple[FlashAgentsChatCompletionClient, ScriptedEngine]:
    """A client, and the scripted engine behind it."""
    engine = ScriptedEngine(script)
    return FlashAgentsChatCompletionClient(engine=engine, **args), engine


async def collect(
    client: FlashAgentsChatCompletionClient, messages: Sequence[LLMMessage], **args: Any
) -> tuple[list[str], CreateResult]:
    """The text chunks of a stream and its result, which must come last and once."""
    items = [item async for item in client.create_stream(messages, **args)]
    *chunks, result = items
    assert isinstance(result, CreateResult)
    assert all(isinstance(chunk, str) and chunk for chunk in chunks)
    return [str(chunk) for chunk in chunks], result


def user(text: str = "Hi.", source: str = "user") -> UserMessage:
    """A user's message."""
    return UserMessage(content=text, source=source)


def assistant(text: str, source: str = "writer") -> AssistantMessage:
    """An assistant's message."""
    return AssistantMessage(content=text, source=source)


def system(text: str) -> SystemMessage:
    """A system message."""
    return SystemMessage(content=text)


def prompt(engine: ScriptedEngine, i: int = -1) -> str:
    """The prompt of a request to a scripted engine (its tokens are bytes)."""
    return bytes(engine.requests[i].input_ids).decode()
