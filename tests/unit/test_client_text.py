"""The ChatCompletionClient contract for text."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest
from autogen_core import FunctionCall
from autogen_core.models import (
    AssistantMessage,
    CreateResult,
    FunctionExecutionResult,
    FunctionExecutionResultMessage,
    RequestUsage,
)

from flashagents_autogen import FlashAgentsChatCompletionClient, FlashRequestUsage
from flashagents_runtime import (
    ContextLengthError,
    EngineClosedError,
    EngineDiedError,
    EngineStartError,
    Progress,
    Reply,
    RequestRejectedError,
    ScriptedEngine,
)
from helpers.clients import assistant, collect, prompt, scripted, system, user


async def test_create() -> None:
    client, engine = scripted("Hello!")
    result = await client.create([system("Be kind."), user("Hi."), assistant("Yes?"), user("Go.", "planner")])
    assert (result.content, result.finish_reason, result.cached) == ("Hello!", "stop", False)
    assert (result.thought, result.logprobs) == (None, None)
    assert result.usage == RequestUsage(prompt_tokens=len(engine.requests[0].input_ids), completion_tokens=6)
    assert prompt(engine) == (
        "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi.<|im_end|>\n"
        "<|im_start|>assistant\nYes?<|im_end|>\n<|im_start|>user\nplanner said:\nGo.<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


async def test_a_stream_is_chunks_and_then_one_result() -> None:
    client, _ = scripted(Reply(text=["Hel", "", "lo", "!"]))
    chunks, result = await collect(client, [user()])
    assert chunks == ["Hel", "lo", "!"]
    assert result.content == "Hello!"
    assert result.usage.completion_tokens == 6 and result.usage.prompt_tokens > 0


async def test_a_stream_of_one_chunk_keeps_its_text() -> None:
    client, _ = scripted(Reply(text=["All at once."]))
    assert (await collect(client, [user()]))[1].content == "All at once."


async def test_an_empty_answer_is_an_answer() -> None:
    client, _ = scripted("", "")
    assert (await client.create([user()])).content == ""
    chunks, result = await collect(client, [user()])
    assert (chunks, result.content) == ([], "")


@pytest.mark.parametrize(
    ("reply", "args", "reason"),
    [
        (Reply(text="Done."), {}, "stop"),
        (Reply(text="Too long."), {"max_tokens": 3}, "length"),
        (Reply(text="Cut", finish_reason="length"), {}, "length"),
        (Reply(text="Gone", finish_reason="abort"), {}, "unknown"),
    ],
)
async def test_finish_reason(reply: Reply, args: dict[str, int], reason: str) -> None:
    client, _ = scripted(reply, reply, **args)
    assert (await client.create([user()])).finish_reason == reason
    assert (await collect(client, [user()]))[1].finish_reason == reason


async def test_usage_counts_the_cache_and_adds_up() -> None:
    client, engine = scripted("abc", "defg")
    await client.create([user()])
    _, result = await collect(client, [user()])
    n = len(engine.requests[0].input_ids)
    assert isinstance(result.usage, FlashRequestUsage)
    assert result.usage.cached_tokens == n - 1  # all but the last token of a repeated prompt
    assert client.total_usage() == client.actual_usage() == RequestUsage(2 * n, 7)
    assert client.usage.cached_tokens == n - 1


async def test_usage_of_a_request_that_was_left_counts_what_was_spent() -> None:
    client, engine = scripted("abcdef")
    stream = client.create_stream([user()])
    await anext(stream)
    await stream.aclose()
    assert client.total_usage() == RequestUsage(len(engine.requests[0].input_ids), 1)


async def test_usage_of_a_request_that_was_refused_is_nothing() -> None:
    client, engine = scripted()
    engine.context_length = 64
    with pytest.raises(ContextLengthError):
        await client.create([user("hello " * 99)])
    with pytest.raises(ContextLengthError):
        await collect(client, [user("hello " * 99)])
    assert client.total_usage() == RequestUsage(0, 0)


def test_usage_is_autogens() -> None:
    ours = FlashRequestUsage(3, 2, cached_tokens=1)
    assert ours == RequestUsage(3, 2) and RequestUsage(3, 2) == ours
    assert ours != RequestUsage(3, 1) and ours != (3, 2)
    result = CreateResult(finish_reason="stop", content="", usage=ours, cached=False)
    assert result.model_dump()["usage"]["prompt_tokens"] == 3


@pytest.mark.parametrize("stream", [False, True])
async def test_logprobs_are_complete(stream: bool) -> None:
    client, _ = scripted(Reply(text="abc", logprob=-0.25), logprobs=True, top_logprobs=2)
    result = (await collect(client, [user()]))[1] if stream else await client.create([user()])
    assert result.logprobs is not None
    assert [(p.token, p.logprob, p.bytes) for p in result.logprobs] == [
        ("a", -0.25, [97]), ("b", -0.25, [98]), ("c", -0.25, [99]),
    ]  # fmt: skip


async def test_the_callers_messages_are_not_changed() -> None:
    client, _ = scripted("a", "b")
    messages = [system("S"), user("U", "planner"), assistant("A"), system("Late"), user("V")]
    before = [m.model_dump_json() for m in messages]
    await client.create(messages)
    await collect(client, messages)
    assert [m.model_dump_json() for m in messages] == before


async def test_calls_at_once_are_answered_apart() -> None:
    client, _ = scripted(*[lambda r: bytes(r.input_ids).decode().split("q")[1].split("<")[0]] * 20)
    results = await asyncio.gather(*(client.create([user(f"q{i}")]) for i in range(20)))
    assert [r.content for r in results] == [str(i) for i in range(20)]


async def test_start_reports_progress_and_is_idempotent() -> None:
    client, _ = scripted()
    seen: list[Progress] = []
    info = await client.start(seen.append)
    assert seen and info.kind == "scripted"
    assert await client.start() is info


async def test_an_engine_that_does_not_start_says_why() -> None:
    client = FlashAgentsChatCompletionClient(engine=ScriptedEngine(start_error=EngineStartError("no room")))
    for _ in range(2):
        with pytest.raises(EngineStartError, match="no room"):
            await client.create([user()])


@pytest.mark.parametrize("stream", [False, True])
async def test_a_dying_engine_ends_every_waiting_call(stream: bool) -> None:
    client, engine = scripted(*[Reply(text="abc", delay=60)] * 3)
    calls = [collect(client, [user()]) if stream else client.create([user()]) for _ in range(3)]
    tasks = [asyncio.ensure_future(call) for call in calls]
    while len(engine.requests) < 3:
        await asyncio.sleep(0)
    engine.die("the scheduler was killed", ["last words"])
    for result in await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 5):
        assert isinstance(result, EngineDiedError)
        assert "last words" in str(result)


async def test_a_death_in_the_middle_of_a_stream() -> None:
    client, _ = scripted(Reply(text="ab", error=EngineDiedError("gone")))
    chunks: list[object] = []
    with pytest.raises(EngineDiedError):
        async for item in client.create_stream([user()]):
            chunks.append(item)
    assert chunks == ["a"]


async def test_a_refused_request_leaves_the_client_well() -> None:
    client, _ = scripted("fine")
    with pytest.raises(ContextLengthError):
        await client.create([user("x" * 9000)])
    assert (await client.create([user()])).content == "fine"
    with pytest.raises(RequestRejectedError, match="script"):
        await client.create([user()])


async def test_a_closed_client_takes_no_calls_and_leaves_a_given_engine_alone() -> None:
    client, engine = scripted("a", "b")
    other = FlashAgentsChatCompletionClient(engine=engine)
    await client.close()
    await client.close()
    with pytest.raises(EngineClosedError, match="client was closed"):
        await client.create([user()])
    with pytest.raises(EngineClosedError):
        await client.start()
    assert (await other.create([user()])).content == "a"


async def test_a_client_is_garbage_when_nobody_holds_it() -> None:
    client, _ = scripted("a")
    await client.create([user()])
    gone = weakref.ref(client)
    del client
    gc.collect()
    assert gone() is None


def test_two_event_loops_may_use_one_client() -> None:
    client, _ = scripted("a", "b")
    assert asyncio.run(client.create([user()])).content == "a"
    assert asyncio.run(client.create([user()])).content == "b"


async def test_empty_messages() -> None:
    client, engine = scripted("a", "b")
    silent = AssistantMessage(content="", thought="", source="writer")
    assert (await client.create([user(), silent, user("")])).content == "a"
    call = FunctionCall("call00001", "{}", "noop")
    result = FunctionExecutionResult(content="", name="noop", call_id="call00001", is_error=False)
    history = [
        user("Call noop."),
        AssistantMessage(content=[call], thought="", source="writer"),
        FunctionExecutionResultMessage(content=[result]),
    ]
    assert (await client.create(history)).content == "b"
    assert "noop" in prompt(engine)


async def test_an_assistant_that_spoke_last() -> None:
    client, engine = scripted("a")
    await client.create([user("foo"), user("bar"), assistant("foobar ")])
    assert "foobar" in prompt(engine) and prompt(engine).endswith("<|im_start|>assistant\n")
