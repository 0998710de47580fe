"""The client on a server: what test_client_*.py asserts of it, over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from aiohttp.test_utils import TestServer
from autogen_agentchat.agents import AssistantAgent
from autogen_core import CancellationToken
from autogen_core.models import RequestUsage
from pydantic import BaseModel

from flashagents_autogen import FlashAgentsChatCompletionClient
from flashagents_runtime import (
    EngineClosedError,
    EngineDiedError,
    EngineStartError,
    Reply,
    ScriptedEngine,
)
from flashagents_runtime.chat_tokenizer import ByteChatTokenizer
from flashagents_runtime.scripted import ScriptItem
from helpers.clients import collect, prompt, system, user
from helpers.sglang_server import FakeSGLang
from helpers.tiny_tokenizer import tiny_tokenizer

Make = Callable[..., "Setup"]


class Setup:
    def __init__(self, fake: FakeSGLang, client: FlashAgentsChatCompletionClient) -> None:
        self.fake, self.client = fake, client

    @property
    def engine(self) -> ScriptedEngine:
        return self.fake.engine


@pytest.fixture
async def make() -> AsyncIterator[Callable[..., object]]:
    servers: list[TestServer] = []
    clients: list[FlashAgentsChatCompletionClient] = []

    async def build(*script: ScriptItem, **args: object) -> Setup:
        fake = FakeSGLang(ScriptedEngine(script))
        servers.append(await fake.serve())
        client = FlashAgentsChatCompletionClient(
            engine_url=str(servers[-1].make_url("")),
            tokenizer=ByteChatTokenizer(),
            **args,  # type: ignore[arg-type]
        )
        clients.append(client)
        return Setup(fake, client)

    yield build
    for client in clients:
        await client.close()
    for server in servers:
        await server.close()


async def test_create_and_stream(make: Make) -> None:
    s = await make("Hello!", "Hello!", "Bye.")
    result = await s.client.create([system("Be kind."), user("Go.", "planner")])
    chunks, streamed = await collect(s.client, [system("Be kind."), user("Go.", "planner")])
    assert result.content == streamed.content == "".join(chunks) == "Hello!"
    assert len(chunks) == 6 and result.finish_reason == "stop"
    assert "planner said:\nGo." in prompt(s.engine)
    n = len(s.engine.requests[0].input_ids)
    assert s.client.total_usage() == RequestUsage(2 * n, 12)
    assert streamed.usage.cached_tokens == n - 1  # type: ignore[attr-defined]
    assert s.client.remaining_tokens([]) == 8192


async def test_length_and_logprobs(make: Make) -> None:
    s = await make("Too long.", max_tokens=3, logprobs=True)
    _, result = await collect(s.client, [user()])
    assert (result.content, result.finish_reason) == ("Too", "length")
    assert [p.token for p in result.logprobs or []] == ["T", "o", "o"]


@pytest.mark.parametrize("stream", [False, True])
async def test_cancelling_aborts_on_the_server(make: Make, stream: bool) -> None:
    s = await make(Reply(text="abc", interval=30))
    token = CancellationToken()
    call = (collect if stream else type(s.client).create)(s.client, [user()], cancellation_token=token)
    task = asyncio.ensure_future(call)
    async with asyncio.timeout(5):
        while not s.engine.requests:
            await asyncio.sleep(0.005)
    token.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 5)
    assert s.fake.aborts == [s.engine.requests[0].rid]
    assert token._callbacks == []


async def test_cancelling_before_the_response_begins(make: Make) -> None:
    s = await make("abc")
    s.fake.silent = asyncio.Event()
    token = CancellationToken()
    task = asyncio.ensure_future(s.client.create([user()], cancellation_token=token))
    async with asyncio.timeout(5):
        while not s.fake.bodies:
            await asyncio.sleep(0.005)
    token.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 5)
    assert s.fake.aborts == [s.fake.bodies[0]["rid"]]
    s.fake.silent.set()


async def test_cancelling_in_mid_stream(make: Make) -> None:
    s = await make(Reply(text="abc", interval=30))
    token = CancellationToken()
    stream = s.client.create_stream([user()], cancellation_token=token)
    await anext(stream)
    asyncio.get_running_loop().call_later(0.01, token.cancel)
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(anext(stream), 5)
    assert s.fake.aborts == [s.engine.requests[0].rid]


async def test_a_connection_that_breaks(make: Make) -> None:
    s = await make("abcdef", "fine")
    s.fake.break_after = 2
    with pytest.raises(EngineDiedError):
        await s.client.create([user()])
    s.fake.break_after = None
    assert (await s.client.create([user()])).content == "fine"


async def test_tools_json_and_thoughts(make: Make) -> None:
    class Answer(BaseModel):
        ok: bool

    call = '<tool_call>{"name": "look", "arguments": {}}</tool_call>'
    s = await make(f"I look. {call}", '{"ok":true}', "<think>Hm.</think>\n\nYes.")
    result = await s.client.create([user()], tools=[{"name": "look"}])
    assert result.finish_reason == "function_calls" and result.thought == "I look."
    answer = await s.client.create([user()], json_output=Answer)
    assert answer.content == '{"ok":true}'
    schema = json.loads(s.fake.bodies[-1]["sampling_params"]["json_schema"])
    assert schema["required"] == ["ok"]
    s.client.engine._reasoning_parser = "qwen3"  # type: ignore[attr-defined]
    thinking = await s.client.create([user()])
    assert (thinking.content, thinking.thought) == ("Yes.", "Hm.")


async def test_an_agent(make: Make) -> None:
    s = await make("Hello!")
    agent = AssistantAgent("writer", s.client, model_client_stream=True)
    result = await agent.run(task="Greet.")
    assert result.messages[-1].content == "Hello!"  # type: ignore[union-attr]


async def test_closing_leaves_the_server_alone(make: Make) -> None:
    s = await make("a")
    await s.client.start()
    await s.client.close()
    with pytest.raises(EngineClosedError):
        await s.client.create([user()])
    assert s.engine._dead is None


@contextlib.contextmanager
def served_in_a_thread(fake: FakeSGLang) -> Iterator[str]:
    """The server's URL; its loop is not the test's, as a server is another process."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    server = asyncio.run_coroutine_threadsafe(fake.serve(), loop).result(5)
    try:
        yield str(server.make_url("")).rstrip("/")
    finally:
        asyncio.run_coroutine_threadsafe(server.close(), loop).result(5)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(5)
        loop.close()


async def test_the_server_is_asked_for_its_model_where_autogen_wants_to_know_it_first(
    tmp_path: Path,
) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama", "max_position_embeddings": 512}')
    tiny_tokenizer().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "{{ messages[0].content }}"}')
    fake = FakeSGLang(ScriptedEngine(["Hello!"], model=str(tmp_path)))
    with served_in_a_thread(fake) as url:
        client = FlashAgentsChatCompletionClient(engine_url=url)
        assert client.model_info["vision"] is False  # not started, and within a running loop
        assert (await client.create([user()])).content == "Hello!"
        await client.close()


def test_a_server_that_is_not_there_is_named_before_the_first_call() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(EngineStartError, match="cannot be reached"):
            _ = FlashAgentsChatCompletionClient(engine_url=url).model_info


def test_config() -> None:
    client = FlashAgentsChatCompletionClient(engine_url="http://127.0.0.1:9", api_key="s3cret", temperature=0)
    dumped = client.dump_component()
    assert dumped.config["engine_url"] == "http://127.0.0.1:9"
    assert "s3cret" not in dumped.model_dump_json() + repr(dumped)
    loaded = FlashAgentsChatCompletionClient.load_component(dumped)
    assert loaded._api_key == "s3cret"  # a copy in memory keeps it
    with pytest.raises(ValueError, match="api_key was masked"):
        FlashAgentsChatCompletionClient.load_component(json.loads(dumped.model_dump_json()))
    with pytest.raises(ValueError, match="one of the three"):
        FlashAgentsChatCompletionClient(engine_url="http://127.0.0.1:9", engine_args={"tp_size": 2})
