"""Cancelled at any await, nothing is left behind and the next call works."""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from autogen_core import CancellationToken

from flashagents_autogen import FlashAgentsChatCompletionClient
from flashagents_runtime import GenerateRequest, Reply, SamplingParams, ScriptedEngine
from flashagents_runtime.chat_tokenizer import ByteChatTokenizer
from flashagents_runtime.embedded import EmbeddedEngine
from flashagents_runtime.handoff import (
    CutRules,
    Downstream,
    Handoff,
    Prefiller,
    forecast_prompt,
    warm_up,
)
from flashagents_runtime.remote import RemoteEngine
from helpers import stub_host
from helpers.cancel_points import Who, cancel_everywhere, descriptors
from helpers.clients import user
from helpers.sglang_server import FakeSGLang
from helpers.stub_hosts import stub_hosts

Work = Coroutine[Any, Any, Any]
Check = Callable[[bool], Awaitable[None]]
WHO: list[Who] = ["caller", "any task", "caller, twice"]

THOUGHT = Reply(text=["Hel", "lo", "!"], thought="Hm.", interval=0.0)


async def assert_nothing_runs(engine: ScriptedEngine) -> None:
    async with asyncio.timeout(5):
        while (await engine.state()).running:
            await asyncio.sleep(0.001)
    state = await engine.state()
    assert (state.kv_used, state.running) == (0, 0)
    rids = [request.rid for request in engine.requests]
    assert len(set(engine.aborted)) == len(engine.aborted) <= len(rids), "aborted twice"


# ---- the client on a scripted engine


@pytest.mark.parametrize("who", WHO)
@pytest.mark.parametrize("how", ["create", "stream", "stream, closed by its reader"])
async def test_client(who: Who, how: str) -> None:
    def make() -> tuple[Work, Check]:
        engine = ScriptedEngine([THOUGHT, "again"])
        client = FlashAgentsChatCompletionClient(engine=engine)
        token = CancellationToken()

        async def work() -> None:
            if how == "create":
                result: Any = await client.create([user()], cancellation_token=token)
            elif how == "stream":
                async for item in client.create_stream([user()], cancellation_token=token):
                    await asyncio.sleep(0)
                    result = item
            else:
                async with aclosing(client.create_stream([user()], cancellation_token=token)) as stream:
                    async for item in stream:
                        await asyncio.sleep(0)
                        result = item
            assert (result.content, result.thought) == ("Hello!", "Hm.")

        async def check(whole: bool) -> None:
            await assert_nothing_runs(engine)
            assert token._callbacks == []
            assert not whole or engine.aborted == []
            if not engine.requests:
                next(engine._script)
            usage, requests = client.usage, len(engine.requests)
            again = await client.create([user()])
            assert again.content == "again" and len(engine.requests) == requests + 1
            # What was begun is counted, what never reached the engine is not.
            assert client.usage.prompt_tokens == usage.prompt_tokens + again.usage.prompt_tokens
            assert client.usage.completion_tokens == usage.completion_tokens + 5

        return work(), check

    assert await cancel_everywhere(make, who) >= 4


# ---- prefill sessions and hand-off


def prompt(engine: ScriptedEngine) -> str:
    return bytes(engine.requests[-1].input_ids).decode()


async def assert_prefiller_is_empty(prefiller: Prefiller) -> None:
    assert not prefiller._sessions, "a session was left open"
    assert not prefiller.budget.decoding
    assert prefiller._timer is None


@pytest.mark.parametrize("who", WHO)
async def test_prefill_session(who: Who) -> None:
    ids = list(range(30))

    def make() -> tuple[Work, Check]:
        engine = ScriptedEngine(["answer", "again"])
        prefiller = Prefiller(engine, chunk_size=4)
        sessions = []

        async def work() -> None:
            session = prefiller.open(cache_salt="s")
            sessions.append(session)
            try:
                session.extend(ids[:10])
                await asyncio.sleep(0)
                session.rebase(ids[:20])
                session.flush()
                await session.settle()
                session.extend(ids[20:])
                text = ""
                request = GenerateRequest(input_ids=ids)
                async with aclosing(session.generate(request)) as stream:
                    async for delta in stream:
                        text += delta.text
                assert text == "answer"
            finally:
                if session.state not in ("generating", "closed"):  # those `generate` closes itself
                    session.abandon()

        async def check(whole: bool) -> None:
            await assert_prefiller_is_empty(prefiller)
            await prefiller.close()
            await assert_nothing_runs(engine)
            for session in sessions:
                figures = session.figures
                assert session.state == "closed" and not session._leaving
                assert figures.computed == figures.prewarmed + figures.wasted
            if not whole and not any(r.sampling.max_new_tokens != 0 for r in engine.requests):
                next(engine._script)
            deltas = [d async for d in prefiller.generate(GenerateRequest(input_ids=ids, cache_salt="s"))]
            assert "".join(d.text for d in deltas) == "again"

        return work(), check

    assert await cancel_everywhere(make, who) >= 5


@pytest.mark.parametrize("who", WHO)
async def test_warm_up_of_several_sessions(who: Who) -> None:
    def make() -> tuple[Work, Check]:
        engine = ScriptedEngine()
        prefiller = Prefiller(engine, chunk_size=4)

        async def work() -> None:
            sessions = [prefiller.open() for _ in range(3)]
            for i, session in enumerate(sessions):
                session.rebase([*range(100), i])
            await warm_up(*sessions)
            assert all(session.warm == 101 for session in sessions) or who == "any task"

        async def check(whole: bool) -> None:
            await prefiller.close()
            await assert_nothing_runs(engine)
            await assert_prefiller_is_empty(prefiller)

        return work(), check

    assert await cancel_everywhere(make, who) >= 2


@pytest.mark.parametrize("who", WHO)
@pytest.mark.parametrize("policy", ["finish", "abort"])
async def test_handoff(who: Who, policy: Any) -> None:
    """A speaks into B's prompt and B answers: cancelled anywhere, in either, both are gone."""
    rules = CutRules(ByteChatTokenizer())

    def make() -> tuple[Work, Check]:
        engine = ScriptedEngine([Reply(text=["Paris ", "is ", "old."] * 4), "B speaks", "again"])
        prefiller = Prefiller(engine, chunk_size=4)
        ends: list[Any] = []

        async def work() -> None:
            forecast = forecast_prompt(lambda texts: f"A says: {texts[0]} What do you say?")
            session = prefiller.open()
            b = Downstream(session, forecast, rules, on_failure=policy, on_end=ends.append)
            try:
                handoff = Handoff([(b, 0)])
                request = GenerateRequest(input_ids=list(b"A?"))
                async with aclosing(handoff.through(engine.generate(request))) as stream:
                    async for _ in stream:
                        await asyncio.sleep(0)
                text = ""
                async with aclosing(b.generate(GenerateRequest(input_ids=b.prompt_ids()))) as stream:
                    async for delta in stream:
                        text += delta.text
                assert text == "B speaks"
                assert prompt(engine) == "A says: " + "Paris is old." * 4 + " What do you say?"
            finally:
                await b.close()

        async def check(whole: bool) -> None:
            await assert_nothing_runs(engine)
            await assert_prefiller_is_empty(prefiller)
            assert len(ends) <= 1

        return work(), check

    assert await cancel_everywhere(make, who) >= 10


# ---- over HTTP


@pytest.fixture
def server() -> Iterator[tuple[FakeSGLang, str]]:
    """A server in a thread of its own: its tasks are not ours."""
    fake = FakeSGLang(ScriptedEngine(itertools.repeat(Reply(text="Hello!", interval=0.002, delay=0.002))))
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    http = asyncio.run_coroutine_threadsafe(fake.serve(), loop).result(10)
    yield fake, str(http.make_url(""))
    asyncio.run_coroutine_threadsafe(http.close(), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()


@pytest.mark.parametrize("who", ["caller", "caller, twice"])
@pytest.mark.parametrize("through", ["engine", "client", "client with parsers"])
async def test_remote(server: tuple[FakeSGLang, str], who: Who, through: str) -> None:
    fake, url = server
    if through == "client with parsers":
        fake.parsers = {"tool_call_parser": "hermes", "reasoning_parser": "qwen3"}
    before = 0
    tool: Any = {"name": "look", "parameters": {"type": "object", "properties": {}}}

    def make() -> tuple[Work, Check]:
        engine = RemoteEngine(url, read_timeout=5)
        client = FlashAgentsChatCompletionClient(engine=engine, tokenizer=ByteChatTokenizer())
        served = len(fake.engine.requests)

        async def speak() -> str:
            if through == "engine":
                async with aclosing(engine.generate(GenerateRequest(input_ids=[1, 2]))) as stream:
                    return "".join([delta.text async for delta in stream])
            tools = [tool] if through == "client with parsers" else []
            return str((await client.create([user()], tools=tools)).content)

        async def work() -> None:
            assert await speak() == "Hello!"

        async def check(whole: bool) -> None:
            nonlocal before
            assert not engine._leaving
            asked = [request.rid for request in fake.engine.requests[served:]]
            assert whole or set(asked) <= set(fake.aborts), "the server was not told to stop"
            await assert_nothing_runs(fake.engine)
            assert not engine._aborting
            assert await speak() == "Hello!"
            await engine.close()
            await assert_nothing_runs(fake.engine)
            before = before or descriptors()
            async with asyncio.timeout(5):  # the server's ends of the connections
                while descriptors() > before:
                    await asyncio.sleep(0.001)

        return work(), check

    assert await cancel_everywhere(make, who) >= 3


# ---- an engine's own process


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    site = [p for p in sys.path if p.endswith("site-packages")]
    monkeypatch.setenv("PYTHONPATH", ":".join([*site, str(Path(stub_host.__file__).parents[2] / "runtime")]))
    with stub_hosts(monkeypatch, [sys.executable, "-S", "-P", stub_host.__file__]) as folder:
        yield folder


@pytest.mark.parametrize("who", ["caller", "caller, twice"])
async def test_embedded(stub: Path, who: Who) -> None:
    """From the start of the host to its end."""
    before = 0

    def make() -> tuple[Work, Check]:
        engine = EmbeddedEngine("ok")
        request = GenerateRequest(input_ids=[1], sampling=SamplingParams(max_new_tokens=3))

        async def work() -> None:
            async with engine:
                async with aclosing(engine.generate(request)) as stream:
                    assert "".join([delta.text async for delta in stream]) == "t0 t1 t2 "
                await engine.state()

        async def check(whole: bool) -> None:
            nonlocal before
            await engine.close()
            host = engine._host
            assert host is None or (host._streams == {} and host._calls == {})
            async with asyncio.timeout(5):
                while engine._starting is not None:
                    await asyncio.sleep(0.001)
            assert engine._listeners == []
            assert os.listdir(stub) == []
            before = before or descriptors()
            assert descriptors() <= before

        return work(), check

    assert await cancel_everywhere(make, who) >= 4


@pytest.mark.parametrize("who", ["caller", "caller, twice"])
async def test_an_embedded_engines_request_is_aborted(stub: Path, who: Who) -> None:
    """Requests that would go on for long: each that was begun is aborted, at whatever point it was left."""
    engine = EmbeddedEngine("slow")
    await engine.start()
    host = engine._host
    assert host is not None
    begun = 0

    def make() -> tuple[Work, Check]:
        request = GenerateRequest(input_ids=[1], sampling=SamplingParams(max_new_tokens=400))

        async def work() -> None:
            nonlocal begun
            begun += 1
            async with aclosing(engine.generate(request)) as stream:
                for _ in range(3):
                    await anext(stream)

        async def check(whole: bool) -> None:
            async with asyncio.timeout(5):
                while host._streams:
                    await asyncio.sleep(0.001)
            state = await engine.state()  # the stub counts aborts there; it answers when it is idle
            assert state.kv_used == begun

        return work(), check

    assert await cancel_everywhere(make, who) >= 3
    await engine.close()
