"""AutoGen's log events: one a call, complete, and JSON."""

from __future__ import annotations

import json

import pytest
from autogen_core.logging import LLMCallEvent, LLMStreamEndEvent, LLMStreamStartEvent

from flashagents_runtime import EngineDiedError, Reply
from helpers.clients import assistant, collect, scripted, system, user


async def test_create(events: list[object]) -> None:
    client, _ = scripted("Hello!", "Again.")
    messages = [system("S"), user("U", "planner"), assistant("A"), user("V")]
    result = await client.create(messages)
    [event] = events
    assert isinstance(event, LLMCallEvent)
    said = json.loads(str(event))
    assert said["messages"][1] == {"role": "user", "content": "U", "name": "planner"}
    assert said["response"]["content"] == "Hello!"
    assert (event.prompt_tokens, event.completion_tokens) == (result.usage.prompt_tokens, 6)
    await client.create(messages)
    assert json.loads(str(events[1]))["cached_tokens"] == result.usage.prompt_tokens - 1


async def test_create_stream(events: list[object]) -> None:
    client, _ = scripted("Hello!")
    await collect(client, [user()])
    start, end = events
    assert isinstance(start, LLMStreamStartEvent) and isinstance(end, LLMStreamEndEvent)
    assert json.loads(str(start))["messages"][0]["content"] == "Hi."
    assert json.loads(str(end))["response"]["content"] == "Hello!"
    assert end.completion_tokens == 6


async def test_a_failed_call_is_not_reported_as_done(events: list[object]) -> None:
    client, _ = scripted(*[Reply(text="ab", error=EngineDiedError("gone"))] * 2)
    with pytest.raises(EngineDiedError):
        await client.create([user()])
    with pytest.raises(EngineDiedError):
        await collect(client, [user()])
    assert [type(e) for e in events] == [LLMStreamStartEvent]


async def test_nothing_is_made_where_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flashagents_autogen._events.LLMCallEvent", None)
    client, _ = scripted("a")
    assert (await client.create([user()])).content == "a"
