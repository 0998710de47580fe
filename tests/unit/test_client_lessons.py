"""What AutoGen's own clients got wrong and what users asked for, point by point, on both kinds of engine.

The table in docs/client-tests.md says which test stands for which point.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import threading
from pathlib import Path
from typing import Any, Literal

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.messages import StructuredMessage
from autogen_core import CancellationToken, ComponentLoader, FunctionCall
from autogen_core.models import (
    ChatCompletionClient,
    CreateResult,
    FunctionExecutionResult,
    FunctionExecutionResultMessage,
)
from opentelemetry import trace
from pydantic import BaseModel

from flashagents_autogen import FlashRequestUsage
from flashagents_runtime import EngineDiedError, Reply, ToolCall, ToolCallError
from flashagents_runtime.chat_template import JinjaTemplate
from helpers import chat_templates
from helpers.clients import assistant, collect, prompt, system, user
from helpers.engine_kinds import Rig
from helpers.spans import Span, recorded

GALLERY = Path(__file__).parents[2] / "examples" / "autogen_studio" / "gallery.json"
TOOLS: Any = [{"name": "add", "description": "Add.", "parameters": {"type": "object", "properties": {}}}]
CALL = ToolCall(name="add", arguments='{"a": 1}')
SLOW = Reply(text="abcdef", interval=30)


class Bytes(JinjaTemplate):
    """A real chat template whose tokens are bytes."""

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Any, *, skip_special_tokens: bool = True) -> str:
        return bytes(ids).decode(errors="replace")


def templated(name: str) -> Bytes:
    return Bytes(chat_templates.SOURCES[name], chat_templates.SPECIAL)


async def until(condition: Any) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


# ---- bugs not to copy


@pytest.mark.parametrize("thought", ["think hard", "knight", "<think", "t", "hit thin kin"])
async def test_a_thought_keeps_its_letters(rig: Rig, thought: str) -> None:
    client = await rig.client(*[Reply(text="knights think.", thought=thought)] * 2)
    result = await client.create([user()])
    chunks, streamed = await collect(client, [user()])
    for got in (result, streamed):
        assert (got.thought, got.content) == (thought, "knights think.")
    assert "".join(chunks) == "knights think."


async def test_usage_is_reported_in_streams(rig: Rig) -> None:
    client = await rig.client("abc", "defg")
    await collect(client, [user()])
    _, result = await collect(client, [user()])
    n = len(rig.scripted.requests[0].input_ids)
    assert isinstance(result.usage, FlashRequestUsage)
    assert (result.usage.prompt_tokens, result.usage.completion_tokens) == (n, 4)
    assert result.usage.cached_tokens == n - 1
    assert client.total_usage() == client.actual_usage() == FlashRequestUsage(2 * n, 7)


async def test_logprobs_of_a_stream_are_complete(rig: Rig) -> None:
    client = await rig.client(Reply(text="abc", logprob=-0.25), logprobs=True)
    _, result = await collect(client, [user()])
    assert [(p.token, p.logprob) for p in result.logprobs or []] == [("a", -0.25), ("b", -0.25), ("c", -0.25)]


async def test_messages_are_left_as_they_are(rig: Rig) -> None:
    client = await rig.client("a", "b")
    messages = [system("S"), user("U", "planner"), assistant("A "), system("Late"), user("V")]
    before = [m.model_dump_json() for m in messages]
    await client.create(messages)
    await collect(client, messages)
    assert [m.model_dump_json() for m in messages] == before


async def test_parallel_calls_have_ids_of_their_own(rig: Rig) -> None:
    client = await rig.client(*[Reply(tool_calls=[CALL] * 3)] * 2)
    first = await client.create([user()], tools=TOOLS)
    _, second = await collect(client, [user()], tools=TOOLS)
    ids = [call.id for call in (*first.content, *second.content)]  # type: ignore[union-attr]
    assert len(set(ids)) == 6


async def test_length_is_length(rig: Rig) -> None:
    client = await rig.client("Too long.", "Too long.", max_tokens=3)
    assert (await client.create([user()])).finish_reason == "length"
    assert (await collect(client, [user()]))[1].finish_reason == "length"


async def test_a_single_chunk_keeps_its_text(rig: Rig) -> None:
    client = await rig.client(Reply(text=["All at once."]))
    chunks, result = await collect(client, [user()])
    assert chunks == ["All at once."] and result.content == "All at once."


@pytest.mark.parametrize("stream", [False, True])
async def test_cancelling_stops_the_engines_work(rig: Rig, stream: bool) -> None:
    client = await rig.client(SLOW)
    token = CancellationToken()
    call = (collect if stream else type(client).create)(client, [user()], cancellation_token=token)
    task = asyncio.ensure_future(call)
    await until(lambda: rig.scripted.requests)
    token.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 10)
    await until(lambda: rig.scripted.aborted)
    assert set(rig.scripted.aborted) == {rig.scripted.requests[0].rid}
    state = await client.engine.state()
    assert (state.running, state.kv_used) == (0, 0)


async def test_remaining_tokens_of_a_model_that_nobody_knows(rig: Rig) -> None:
    client = await rig.client()
    assert client.remaining_tokens([user()]) == 8192 - client.count_tokens([user()]) > 0


async def test_counting_asks_nobody(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    client = await rig.client()

    def refuse(*args: object) -> None:
        raise AssertionError("a connection for counting tokens")

    with monkeypatch.context() as patched:
        patched.setattr(socket.socket, "connect", refuse)
        patched.delitem(sys.modules, "tiktoken", raising=False)  # SGLang, where it is imported, imports it
        assert client.count_tokens([user("Hello.")], tools=TOOLS) > 0
        assert "tiktoken" not in sys.modules


# ---- cancellation


async def test_one_callback_a_request_and_none_is_left(rig: Rig) -> None:
    client = await rig.client("abcdefgh", "abc")
    token = CancellationToken()
    async for _ in client.create_stream([user()], cancellation_token=token):
        assert len(token._callbacks) <= 1
    await client.create([user()], cancellation_token=token)
    assert token._callbacks == []


async def test_cancelling_from_another_thread(rig: Rig) -> None:
    client = await rig.client(SLOW, "fine")
    token = CancellationToken()
    task = asyncio.ensure_future(client.create([user()], cancellation_token=token))
    await until(lambda: rig.scripted.requests)
    thread = threading.Thread(target=token.cancel)
    thread.start()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 10)
    thread.join()
    assert (await client.create([user()])).content == "fine", "the client goes on"


async def test_leaving_a_stream_stops_the_engines_work(rig: Rig) -> None:
    client = await rig.client(SLOW)
    stream = client.create_stream([user()])
    assert await anext(stream) == "a"
    await stream.aclose()
    await until(lambda: rig.scripted.aborted)


async def test_an_engine_that_dies_fails_its_calls_at_once(rig: Rig) -> None:
    client = await rig.client(Reply(text=["ab", "cd"], interval=0.01, error=EngineDiedError("gone")))
    if rig.kind == "remote":
        rig.fake.break_after = 1
    chunks: list[object] = []
    with pytest.raises(EngineDiedError):
        async for item in client.create_stream([user()]):
            chunks.append(item)
    assert not any(isinstance(item, CreateResult) for item in chunks)


# ---- what users ask for


async def test_user_turns_in_a_row_where_roles_must_alternate(rig: Rig) -> None:
    client = await rig.client("ok", tokenizer=templated("alternating"))
    await client.create([user("Plan.", "user"), user("Rome.", "planner"), user("Trastevere.", "local")])
    said = prompt(rig.scripted)
    assert said.count("[INST]") == 1
    assert said.index("Plan.") < said.index("planner") < said.index("Rome.") < said.index("local")


@pytest.mark.parametrize("name", chat_templates.NAMES)
async def test_the_source_is_in_the_text_whatever_the_template_does(rig: Rig, name: str) -> None:
    client = await rig.client("ok", tokenizer=templated(name))
    await client.create([user("Plan."), user("Rome.", "planner")])
    said = prompt(rig.scripted)
    assert 0 <= said.index("planner") < said.index("Rome.")


@pytest.mark.parametrize("name", chat_templates.NAMES)
async def test_a_late_or_split_system_message(rig: Rig, name: str) -> None:
    client = await rig.client("ok", tokenizer=templated(name))
    await client.create([system("One."), user("Two."), system("Three."), assistant("Four."), system("Five.")])
    said = prompt(rig.scripted)
    assert [said.count(word) for word in ("One.", "Two.", "Three.", "Four.", "Five.")] == [1] * 5


@pytest.mark.parametrize("stream", [False, True])
async def test_one_exact_think_span(rig: Rig, stream: bool) -> None:
    """The thought goes to `thought`, and back into the prompt in one span, however often it is repeated."""
    client = await rig.client(
        Reply(text="4", thought="2 and 2", tool_calls=[CALL]), "Done.", tokenizer=templated("qwen3")
    )
    call = collect(client, [user()], tools=TOOLS) if stream else client.create([user()], tools=TOOLS)
    got = await call
    first = got[1] if isinstance(got, tuple) else got
    assert first.thought == "<think>\n2 and 2\n</think>\n\n4"
    message = assistant(first.content)  # type: ignore[arg-type]
    message.thought = first.thought
    [made] = first.content
    assert isinstance(made, FunctionCall)
    result = FunctionExecutionResult(content="1", name="add", call_id=made.id, is_error=False)
    await client.create([user(), message, FunctionExecutionResultMessage(content=[result])], tools=TOOLS)
    said = prompt(rig.scripted)
    assert said.count("2 and 2") == 1 and said.count("<think>\n2 and 2\n</think>") == 1


@pytest.mark.parametrize("reason", ["length", "stop"])
async def test_a_truncated_call_is_a_clear_error(rig: Rig, reason: Literal["length", "stop"]) -> None:
    broken = Reply(finish_reason=reason, broken_call='<tool_call>\n{"name": "ad')
    client = await rig.client(broken, broken)
    for call in (client.create([user()], tools=TOOLS), collect(client, [user()], tools=TOOLS)):
        with pytest.raises(ToolCallError) as error:
            await call
        assert '{"name": "ad' in str(error.value)


async def test_a_call_that_comes_in_a_single_chunk(rig: Rig) -> None:
    client = await rig.client(Reply(text=["Let me see."], tool_calls=[CALL]))
    _, result = await collect(client, [user()], tools=TOOLS)
    [call] = result.content
    assert isinstance(call, FunctionCall) and json.loads(call.arguments) == {"a": 1}
    assert result.thought == "Let me see."


class Entry(BaseModel):
    reason: str
    answer: bool


class Ledger(BaseModel):
    is_request_satisfied: Entry
    next_speaker: Entry | None = None
    attempts: list[int] = []


async def test_a_ledger_is_held_by_its_grammar(rig: Rig) -> None:
    said = '{"is_request_satisfied":{"reason":"r","answer":true},"next_speaker":null,"attempts":[]}'
    client = await rig.client(said, said)
    result = await client.create([user()], json_output=Ledger)
    schema = json.loads(rig.scripted.requests[0].sampling.json_schema or "")
    assert schema["required"] == ["is_request_satisfied", "next_speaker", "attempts"]
    assert schema["$defs"]["Entry"]["required"] == ["reason", "answer"]
    assert Ledger.model_validate_json(str(result.content)).model_dump_json() == said
    agent = AssistantAgent("ledger", client, output_content_type=Ledger)
    final = (await agent.run(task="Go.")).messages[-1]
    assert isinstance(final, StructuredMessage) and final.to_model_text() == said


async def test_an_agent_streams_uses_a_tool_and_reflects(rig: Rig) -> None:
    async def add(a: int) -> int:
        """Add."""
        return a + 2

    client = await rig.client(Reply(thought="Easy.", tool_calls=[CALL]), "It is 3.")
    agent = AssistantAgent("solver", client, tools=[add], reflect_on_tool_use=True, model_client_stream=True)
    result = await agent.run(task="1 + 2?")
    assert result.messages[-1].content == "It is 3."  # type: ignore[union-attr]
    assert "\n3\n" in prompt(rig.scripted)


async def test_a_span_says_what_was_cached_and_prewarmed(rig: Rig, spans: list[Span]) -> None:
    client = await rig.client("Hello!", "Hello!")
    await client.create([user("secret")])
    await collect(client, [user("secret")])
    first, second = spans
    assert first.name == second.name == "chat scripted" and first.ended == second.ended == 1
    assert second.attributes["gen_ai.usage.cache_read.input_tokens"] > 0
    assert second.attributes["flashagents.usage.prewarmed_tokens"] == 0
    assert "secret" not in str(first.attributes) + str(second.attributes)


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> list[Span]:
    monkeypatch.delenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", raising=False)
    return recorded(monkeypatch, trace)


def test_the_studio_gallery_holds_clients_of_both_kinds() -> None:
    models = json.loads(GALLERY.read_text())["components"]["models"]
    clients = [ComponentLoader.load_component(model, ChatCompletionClient) for model in models]
    configs = [client.dump_component().config for client in clients]
    assert any(config.get("engine_url") for config in configs)
    assert any(not config.get("engine_url") for config in configs)


async def test_many_calls_at_once_are_kept_apart(rig: Rig) -> None:
    def echo(request: Any) -> str:
        return bytes(request.input_ids).decode().split("q")[1].split("<")[0]

    client = await rig.client(*[echo] * 20)
    results = await asyncio.gather(*(client.create([user(f"q{i}")]) for i in range(20)))
    assert [r.content for r in results] == [str(i) for i in range(20)]
