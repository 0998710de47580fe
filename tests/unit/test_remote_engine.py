"""RemoteEngine against a server that speaks SGLang's HTTP API; nothing hangs, whatever it does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from flashagents_autogen import FlashAgentsChatCompletionClient
from flashagents_runtime import (
    AnswerFormat,
    ContextLengthError,
    Delta,
    Engine,
    EngineClosedError,
    EngineDiedError,
    EngineError,
    EngineStartError,
    GenerateRequest,
    Reply,
    RequestRejectedError,
    SamplingParams,
    ScriptedEngine,
    ToolDefinition,
)
from flashagents_runtime.chat_tokenizer import ByteChatTokenizer
from flashagents_runtime.remote import RemoteEngine
from helpers.sglang_server import FakeSGLang


class Pair:
    """A server and an engine on it."""

    def __init__(self, fake: FakeSGLang, server: TestServer, engine: RemoteEngine) -> None:
        self.fake, self.server, self.engine = fake, server, engine


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    fake = FakeSGLang(ScriptedEngine(["Hello, wörld!"] * 9))
    server = await fake.serve()
    engine = RemoteEngine(str(server.make_url("")), read_timeout=5)
    yield Pair(fake, server, engine)
    await engine.close()
    await server.close()


def ask(**fields: Any) -> GenerateRequest:
    return GenerateRequest(input_ids=[1, 2, 3], **fields)


async def read(engine: RemoteEngine, request: GenerateRequest | None = None) -> list[Delta]:
    return [delta async for delta in engine.generate(request or ask())]


def text(deltas: list[Delta]) -> str:
    return "".join(delta.text for delta in deltas)


async def test_it_is_an_engine_and_says_what_it_is(pair: Pair) -> None:
    assert isinstance(pair.engine, Engine)
    assert pair.engine.info is None
    info = await pair.engine.start()
    assert (info.kind, info.model, info.context_length) == ("remote", "scripted", 8192)
    assert info.features == ["prefill_only"] and info.versions["sglang"] == "0.5.18"


async def test_a_server_with_the_plug_in_says_so(pair: Pair) -> None:
    kv = {"kv_total": 9, "kv_used": 1, "kv_cached": 2, "kv_free": 6, "running": 0, "waiting": 0}
    features = {"intra_turn": {"active": True}, "pins": {"active": False}}
    pair.fake.plugin = {"version": "1", "features": features, "kv": kv}
    info = await pair.engine.start()
    assert info.features == ["prefill_only", "intra_turn"] and info.versions["plugin"] == "1"
    assert (await pair.engine.state()).kv_cached == 2


@pytest.mark.parametrize("incremental", [True, False])
@pytest.mark.parametrize("split", [None, 1, 7])
async def test_streams_are_the_same_however_the_server_sends_them(
    pair: Pair, incremental: bool, split: int | None
) -> None:
    pair.fake.incremental, pair.fake.split = incremental, split
    deltas = await read(pair.engine, ask(logprobs=True))
    assert text(deltas) == "Hello, wörld!"
    assert [d.text for d in deltas] == list("Hello, wörld!")
    assert [i for d in deltas for i in d.token_ids] == list("Hello, wörld!".encode())
    assert all(len(d.logprobs or []) == len(d.token_ids) for d in deltas)
    result = deltas[-1].result
    assert result is not None and all(d.result is None for d in deltas[:-1])
    assert (result.finish_reason, result.usage.prompt_tokens, result.usage.completion_tokens) == (
        "stop",
        3,
        14,
    )


async def test_the_request_is_sglangs_own(pair: Pair) -> None:
    await read(pair.engine, ask(lora="planner", session_id="s", sampling=SamplingParams(max_new_tokens=4)))
    [body] = pair.fake.bodies
    assert body["lora_path"] == "planner" and body["session_id"] == "s" and body["stream"] is True
    assert body["sampling_params"] == {"max_new_tokens": 4}
    assert "format" not in body


async def test_the_key_is_sent_and_a_wrong_one_is_an_error(pair: Pair) -> None:
    pair.fake.api_key = "s3cret"
    with pytest.raises(EngineError, match="API key"):
        await pair.engine.start()
    keyed = RemoteEngine(pair.engine._server.url, api_key="s3cret")
    assert text(await read(keyed)) == "Hello, wörld!"
    assert "s3cret" not in repr(keyed)
    await keyed.close()


async def test_refusals(pair: Pair) -> None:
    with pytest.raises(ContextLengthError):
        await read(pair.engine, GenerateRequest(input_ids=[1] * 9000))
    pair.fake.failures = [400]
    with pytest.raises(RequestRejectedError, match="not now"):
        await read(pair.engine)
    pair.fake.failures = [500]
    with pytest.raises(EngineError, match="500"):
        await read(pair.engine)
    pair.fake.engine.script = []
    pair.fake.engine.__post_init__()
    with pytest.raises(RequestRejectedError, match="script"):
        await read(pair.engine)


async def test_an_overloaded_server_is_asked_again(pair: Pair) -> None:
    pair.fake.failures = [503, 503]
    assert text(await read(pair.engine)) == "Hello, wörld!"
    assert len(pair.fake.bodies) == 3
    pair.fake.failures = [503] * 3
    with pytest.raises(EngineError, match="503"):
        await read(pair.engine)


async def test_a_connection_that_breaks_in_an_answer(pair: Pair) -> None:
    pair.fake.break_after = 3
    got: list[Delta] = []
    with pytest.raises(EngineDiedError):
        async for delta in pair.engine.generate(ask()):
            got.append(delta)
    assert text(got).startswith("H") and len(pair.fake.bodies) == 1  # not tried again: it had begun


async def test_a_server_that_goes_away_and_comes_back(pair: Pair) -> None:
    await pair.engine.start()
    await pair.server.close()
    with pytest.raises(EngineDiedError, match="cannot be reached"):
        await read(pair.engine)
    again = FakeSGLang(ScriptedEngine(["Back."]))
    app_server = await again.serve()
    pair.engine._server.url = str(app_server.make_url("")).rstrip("/")  # the same address in real life
    assert text(await read(pair.engine)) == "Back."
    await app_server.close()


async def test_no_server_at_all() -> None:
    engine = RemoteEngine("http://127.0.0.1:9", connect_timeout=1)
    with pytest.raises(EngineStartError, match="cannot be reached"):
        await engine.start()
    await engine.close()
    with pytest.raises(ValueError, match="no URL"):
        RemoteEngine("localhost:30000")


async def test_a_server_that_comes_back_as_another_one_is_asked_what_it_is(pair: Pair) -> None:
    """Its increments were read as such; whole texts after a restart must not be."""
    assert text(await read(pair.engine)) == "Hello, wörld!"
    port = pair.server.port
    await pair.server.close()
    for _ in range(2):
        with pytest.raises(EngineDiedError, match="cannot be reached"):
            await read(pair.engine)
    again = FakeSGLang(ScriptedEngine(["Back again."], context_length=99))
    again.incremental = False
    server = await again.serve(port=port)
    assert text(await read(pair.engine)) == "Back again."
    assert pair.engine.info is not None and pair.engine.info.context_length == 99
    await server.close()


@pytest.mark.parametrize("how", ["no server", "another server", "wrong key", "cancelled", "silent"])
async def test_a_start_that_fails_leaves_nothing_open(pair: Pair, how: str) -> None:
    """Nobody closes an engine, or a client, that has never come up."""
    pair.fake.api_key = "key" if how == "wrong key" else None
    url = str(pair.server.make_url("/nothing" if how == "another server" else ""))
    writers: list[asyncio.StreamWriter] = []
    silent = await asyncio.start_server(lambda r, w: writers.append(w), "127.0.0.1", 0)
    if how in ("cancelled", "silent"):
        url = f"http://127.0.0.1:{silent.sockets[0].getsockname()[1]}"
    engine = RemoteEngine("http://127.0.0.1:9" if how == "no server" else url, read_timeout=0.1)
    client = FlashAgentsChatCompletionClient(engine=engine, tokenizer=ByteChatTokenizer())
    starts = [asyncio.ensure_future(start) for start in (engine.start(), client.start(), engine.start())]
    if how == "cancelled":
        async with asyncio.timeout(10):
            while len(sessions := list(engine._server._sessions.values())) < 1:
                await asyncio.sleep(0)
        for start in starts:
            start.cancel()
    for result in await asyncio.gather(*starts, return_exceptions=True):
        assert isinstance(result, asyncio.CancelledError if how == "cancelled" else EngineStartError)
    assert not engine._server._sessions
    if how == "cancelled":
        assert all(session.closed for session in sessions)
    for writer in writers:
        writer.close()
    silent.close()
    await silent.wait_closed()


async def test_a_start_that_fails_leaves_the_connection_to_one_that_goes_on(pair: Pair) -> None:
    """Two ask at once, and one of them is cancelled."""
    first, second = (asyncio.ensure_future(pair.engine.start()) for _ in range(2))
    async with asyncio.timeout(10):
        while not pair.engine._server._sessions:
            await asyncio.sleep(0)
    first.cancel()
    assert (await second).kind == "remote"
    assert text(await read(pair.engine)) == "Hello, wörld!"


@pytest.mark.parametrize("body", ["<html>", '{"hello": 1}', "[]"])
async def test_a_server_of_another_kind(body: str) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(text=body, content_type="application/json")

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    server = TestServer(app)
    await server.start_server()
    engine = RemoteEngine(str(server.make_url("")))
    with pytest.raises(EngineError, match="SGLang server"):
        await engine.start()
    await engine.close()
    await server.close()


async def test_a_silent_server_is_given_up() -> None:
    fake = FakeSGLang(ScriptedEngine([Reply(text="ab", delay=30)]))
    server = await fake.serve()
    engine = RemoteEngine(str(server.make_url("")), read_timeout=0.2)
    with pytest.raises(EngineDiedError):
        await asyncio.wait_for(read(engine), 5)
    await engine.close()
    await server.close()


@pytest.mark.parametrize("how", ["close", "cancel"])
async def test_leaving_aborts_on_the_server(pair: Pair, how: str) -> None:
    pair.fake.engine = ScriptedEngine([Reply(text="abc", interval=20)])
    request = ask()
    stream = pair.engine.generate(request)
    await anext(stream)
    if how == "close":
        await stream.aclose()
    else:

        async def rest() -> None:
            async for _ in stream:
                pass

        task = asyncio.ensure_future(rest())
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert pair.fake.aborts == [request.rid]
    async with asyncio.timeout(5):
        while (await pair.engine.state()).running:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("waits", ["for the answer to begin", "for more of it"])
async def test_closing_ends_who_reads_and_aborts_on_the_server(pair: Pair, waits: str) -> None:
    """aiohttp leaves whoever reads from a session that is closed waiting for ever."""
    pair.fake.engine = ScriptedEngine([Reply(text="abc", interval=600)])
    await pair.engine.start()
    if waits == "for the answer to begin":
        pair.fake.silent = asyncio.Event()
    request = ask()
    reading = asyncio.ensure_future(read(pair.engine, request))
    async with asyncio.timeout(10):
        while not (pair.fake.bodies if pair.fake.silent else pair.fake.engine._running):
            await asyncio.sleep(0.005)
    await pair.engine.close()
    with pytest.raises(EngineClosedError):
        await asyncio.wait_for(reading, 10)
    assert pair.fake.aborts == [request.rid]
    assert not pair.engine._asking and not pair.engine._server._waits
    if pair.fake.silent:
        pair.fake.silent.set()


async def test_abort_by_id_ends_the_stream(pair: Pair) -> None:
    pair.fake.engine = ScriptedEngine([Reply(text="abc", interval=20)])
    request = ask()
    stream = pair.engine.generate(request)
    await anext(stream)
    await pair.engine.abort(request.rid)
    last = await asyncio.wait_for(anext(stream), 5)
    assert last.result is not None and last.result.finish_reason == "abort"


async def test_only_servers_with_pins_hear_of_closed_sessions(pair: Pair) -> None:
    await pair.engine.close_session("a")
    assert pair.fake.engine.closed_sessions == []
    other = RemoteEngine(pair.engine._server.url)
    pair.fake.plugin = {"version": "1", "features": {"soft_pins": {"active": True}}, "kv": {}}
    await other.close_session("a")
    assert pair.fake.engine.closed_sessions == ["a"]
    await other.close()


async def test_flush_and_close(pair: Pair) -> None:
    assert await pair.engine.flush_cache()
    await pair.engine.close()
    await pair.engine.close()
    with pytest.raises(EngineClosedError):
        await read(pair.engine)


TOOL = ToolDefinition(name="add", parameters={"type": "object", "properties": {"a": {"type": "integer"}}})


async def formatted(pair: Pair, answer: str, **fmt: Any) -> tuple[str, str, Any]:
    pair.fake.engine = ScriptedEngine([answer])
    deltas = await read(pair.engine, ask(format=AnswerFormat(**fmt)))
    return "".join(d.thought for d in deltas), text(deltas), deltas[-1].result


async def test_calls_by_the_servers_parser(pair: Pair) -> None:
    call = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
    _, beside, result = await formatted(pair, f"Let me. {call}", tools=[TOOL])
    assert beside == "Let me. " and [c.arguments for c in result.tool_calls] == ['{"a": 1}']
    assert pair.fake.bodies[-1]["sampling_params"]["skip_special_tokens"] is False
    _, plain, result = await formatted(pair, "No need.", tools=[TOOL])
    assert (plain, result.tool_calls, result.broken_call) == ("No need.", [], None)


async def test_required_calls_are_enforced_by_a_schema(pair: Pair) -> None:
    answer = '[{"name": "add", "parameters": {"a": 1}}]'
    _, rest, result = await formatted(pair, answer, tools=[TOOL], call_required=True)
    assert rest == "" and [c.arguments for c in result.tool_calls] == ['{"a": 1}']
    assert '"minItems": 1' in pair.fake.bodies[-1]["sampling_params"]["json_schema"]
    for broken in (answer[:20], '[{"name": "nope", "parameters": {}}]'):
        _, _, result = await formatted(pair, broken, tools=[TOOL], call_required=True)
        assert (result.tool_calls, result.broken_call) == ([], broken)


async def test_thoughts_by_the_servers_parser(pair: Pair) -> None:
    pair.fake.parsers["reasoning_parser"] = "qwen3"
    thought, rest, _ = await formatted(pair, "<think>Hm.</think>Yes.")
    assert (thought, rest) == ("Hm.", "Yes.")


async def test_a_slow_reader_holds_the_server_back(pair: Pair) -> None:
    """What the reader has not taken stays in the server: no buffer here grows without end."""
    pair.fake.engine = ScriptedEngine([Reply(text=["x" * 65536] * 400)], context_length=1 << 30)
    stream = pair.engine.generate(ask())
    await anext(stream)
    await asyncio.sleep(0.3)
    [running] = pair.fake.engine._used.values()
    assert running < 200 * 65536
    await stream.aclose()


def test_two_event_loops() -> None:
    """A session for each loop: the engine outlives the loop that it was first used in."""
    engine: RemoteEngine | None = None

    async def once() -> str:
        nonlocal engine
        fake = FakeSGLang(ScriptedEngine(["Hi."]))
        server = await fake.serve()
        url = str(server.make_url("")).rstrip("/")
        if engine is None:
            engine = RemoteEngine(url)
        engine._server.url = url
        answer = text(await read(engine))
        for session in list(engine._server._sessions.values()):
            await session.close()
        await server.close()
        return answer

    assert [asyncio.run(once()), asyncio.run(once())] == ["Hi.", "Hi."]
