"""Further ways to break it, one by one: none may hang, lose an answer, or end in an error without words."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import gc
import itertools
import os
import pickle
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.teams import RoundRobinGroupChat

import flashagents_autogen
from flashagents_autogen import (
    FlashAgentsChatCompletionClient,
    FlashGroupChatRuntime,
    FlashRoundRobinGroupChat,
)
from flashagents_runtime import (
    Delta,
    EngineClosedError,
    EngineDiedError,
    EngineError,
    EngineStartError,
    GenerateRequest,
    GenerateResult,
    ModelError,
    RequestRejectedError,
    SamplingParams,
    ScriptedEngine,
    Usage,
)
from flashagents_runtime.chat_tokenizer import ByteChatTokenizer
from flashagents_runtime.embedded import EmbeddedEngine, acquire_engine, host_process, io_thread
from flashagents_runtime.handoff.warmup_budget import WarmupBudget
from flashagents_runtime.model_cache import build_once
from flashagents_runtime.remote import RemoteEngine
from flashagents_runtime.scheduling.pass_budget import PassBudget
from flashagents_runtime.trace import Trace
from helpers.cancel_points import descriptors
from helpers.clients import collect, scripted, user
from helpers.hostile_server import MODEL, HostileServer, answer
from helpers.notebooks import tiny_model
from helpers.overlap import EAGER, assistant, client_on, overlapping, shown
from helpers.sglang_server import FakeSGLang
from helpers.soak import load
from helpers.stub_hosts import stub_hosts

soak = load()


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Stub hosts in place of real ones; nothing of theirs may be left."""
    with stub_hosts(monkeypatch) as folder:
        yield folder


def ask(n: int = 3, **fields: Any) -> GenerateRequest:
    return GenerateRequest(input_ids=[1, 2, 3], sampling=SamplingParams(max_new_tokens=n), **fields)


async def text_of(engine: Any, request: GenerateRequest | None = None) -> str:
    return "".join([delta.text async for delta in engine.generate(request or ask())])


# ---- a server that sends a byte at a time


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
DRIPPING: dict[str, tuple[str, Callable[[], Iterator[bytes]]]] = {
    "the head of an answer": ("/generate", lambda: itertools.chain([b"HTTP/1.1 200 OK\r\nX: "], drops(b"x"))),
    "what it is": ("/model_info", lambda: itertools.chain(answer(MODEL)[:1], drops(b" "))),
    "an event": ("/generate", lambda: itertools.chain([HEAD, b"data: "], drops(b" "))),
    "comments": ("/generate", lambda: itertools.chain([HEAD], drops(b": still there\n\n"))),
    "an error": ("/generate", lambda: itertools.chain([HEAD.replace(b"200 OK", b"500 No")], drops(b"!"))),
}


def drops(data: bytes) -> Iterator[bytes]:
    return itertools.repeat(data)


@pytest.mark.parametrize("what", DRIPPING)
async def test_a_server_that_drips_is_as_good_as_silent(what: str) -> None:
    """Something comes before each read's time is over, and nothing is ever whole."""
    path, drip = DRIPPING[what]
    server = HostileServer({path: drip})
    server.pause = 0.01
    async with server.serve() as url:
        engine = RemoteEngine(url, read_timeout=0.3)
        with pytest.raises(
            EngineStartError if path == "/model_info" else EngineDiedError, match=r"."
        ) as told:
            await asyncio.wait_for(text_of(engine), 60)
        assert url in str(told.value)
        await engine.close()


# ---- engines that break their own protocol


def end(reason: Any = "stop", n: int = 1) -> GenerateResult:
    return GenerateResult(finish_reason=reason, usage=Usage(prompt_tokens=n, completion_tokens=n))


class Talks(ScriptedEngine):
    """Sends what it was given, whatever that means."""

    said: tuple[Delta, ...] = ()
    came = left = 0

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        self.came += 1
        try:
            for delta in itertools.chain(self.said, itertools.repeat(Delta("on and on", [9]))):
                yield delta
                await asyncio.sleep(0)
        finally:
            self.left += 1


@pytest.mark.parametrize("followed", [False, True], ids=["alone", "in a team"])
async def test_what_comes_after_a_result_is_not_part_of_the_answer(followed: bool) -> None:
    engine = Talks()
    engine.said = (
        Delta("a", [1]),
        Delta("b", [2], end()),
        Delta("late", [3]),
        Delta("", [], end("length", 9)),
    )
    client = FlashAgentsChatCompletionClient(engine=engine, tokenizer=ByteChatTokenizer())
    if followed:
        team = RoundRobinGroupChat([assistant("a", client), assistant("b", client)], max_turns=2)
        async with overlapping(team):
            said = shown(await asyncio.wait_for(team.run(task="Go."), 30))
        assert [text for _, source, text in said if source in "ab"][:2] == ["ab", "ab"]
    else:
        result = await asyncio.wait_for(client.create([user()]), 10)
        assert (result.content, result.finish_reason, result.usage.completion_tokens) == ("ab", "stop", 1)
        chunks, result = await asyncio.wait_for(collect(client, [user()]), 10)
        assert chunks == ["a", "b"] and result.content == "ab"
    assert engine.left == engine.came >= 2


async def test_an_answer_without_a_result_is_an_error() -> None:
    class Silent(ScriptedEngine):
        async def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
            yield Delta("half of it", [1])

    client = FlashAgentsChatCompletionClient(engine=Silent(), tokenizer=ByteChatTokenizer())
    with pytest.raises(EngineError, match="without a result"):
        await client.create([user()])


# ---- what no frame can hold

UNSENDABLE: dict[str, Callable[[], GenerateRequest]] = {
    "half a surrogate pair": lambda: ask(lora="\ud800"),
    "a stop text of one": lambda: GenerateRequest(input_ids=[1], sampling=SamplingParams(stop=["\udfff"])),
    "a number of 70 bits": lambda: GenerateRequest(
        input_ids=[1], sampling=SamplingParams(sampling_seed=2**70)
    ),
    "a token of 70 bits": lambda: GenerateRequest(input_ids=[2**70]),
}


@pytest.mark.parametrize("what", UNSENDABLE)
async def test_what_cannot_be_sent_is_refused_and_not_waited_for(stub: Path, what: str) -> None:
    engine = EmbeddedEngine("ok")
    for _ in range(2):
        with pytest.raises(RequestRejectedError, match="cannot be sent"):
            await asyncio.wait_for(text_of(engine, UNSENDABLE[what]()), 60)
    assert engine._host is not None and engine._host._streams == {}
    assert await text_of(engine) == "t0 t1 t2 "
    await engine.close()


async def test_neither_is_a_call_or_an_engine_argument(stub: Path) -> None:
    engine = EmbeddedEngine("ok")
    with pytest.raises(ValueError, match="cannot be sent"):
        await asyncio.wait_for(engine.unload_lora("\ud800"), 60)
    assert engine._host is not None and engine._host._calls == {}
    await engine.close()
    before = descriptors()
    engine = EmbeddedEngine("ok", random_seed=2**70)
    with pytest.raises(EngineStartError, match="cannot be sent"):
        await asyncio.wait_for(engine.start(), 60)
    await engine.close()
    assert descriptors() <= before


# ---- copies of a followed team


def pair(cls: Any, client: Any) -> Any:
    agents = [AssistantAgent(name, client, system_message=f"You are {name}.") for name in ("a", "b")]
    return cls(agents, max_turns=2)


@pytest.mark.parametrize("cls", [RoundRobinGroupChat, FlashRoundRobinGroupChat])
@pytest.mark.parametrize("how", [copy.deepcopy, lambda team: pickle.loads(pickle.dumps(team))])
@pytest.mark.parametrize("followed", ["no", "attached", "installed"])
async def test_a_copy_of_a_team_is_a_team_of_its_own(cls: Any, how: Any, followed: str) -> None:
    """As AutoGen's own can be copied, so can a followed one; the copy runs its own agents."""
    engine = ScriptedEngine(itertools.repeat("a word or two"))
    server = await FakeSGLang(engine).serve()
    client = FlashAgentsChatCompletionClient(engine_url=str(server.make_url("")))
    team = pair(cls, client)
    async with FlashGroupChatRuntime(EAGER) as runtime:
        if followed == "attached":
            runtime.attach(team)
        elif followed == "installed":
            flashagents_autogen.install()
        try:
            other = how(team)
            for each in (other, team):
                for agent in each._participants:
                    # The server's model is none that has a tokenizer.
                    source = agent._model_client._source
                    source._tokenizer = ByteChatTokenizer()
            result = await other.run(task="Go.")
            assert [m.source for m in result.messages] == ["user", "a", "b"]
            assert other._participants[0] is not team._participants[0]
            assert other._initialized and not team._initialized, "the original ran in place of its copy"
            if followed == "attached":
                assert not runtime.turns, "a copy is followed by nobody until it is attached"
            assert len((await team.run(task="Go.")).messages) == 3
        finally:
            if followed == "installed":
                flashagents_autogen.uninstall()
    for each in (team, other):
        await each._participants[0]._model_client.close()
        await each._participants[1]._model_client.close()
    await server.close()


# ---- two runtimes, one client


async def test_two_runtimes_on_one_client_and_one_of_them_ends_first() -> None:
    script = [f"{i} and something about the river and its banks" for i in range(8)]
    alone = [
        shown(await RoundRobinGroupChat(agents(client_on(*part)), max_turns=4).run(task="Go."))
        for part in (script[:4], script[4:])
    ]
    client = client_on(*script)
    async with overlapping() as first:
        async with FlashGroupChatRuntime(EAGER) as second:
            teams = [RoundRobinGroupChat(agents(client), max_turns=4) for _ in range(2)]
            first.attach(teams[0])
            second.attach(teams[1])
            assert shown(await teams[0].run(task="Go.")) == alone[0]
        # Its runtime has gone; the team goes on without.
        assert shown(await teams[1].run(task="Go.")) == alone[1]
        assert len(first.turns) == 4 and len(second.turns) == 0


def agents(client: Any) -> list[Any]:
    return [assistant("a", client), assistant("b", client)]


# ---- a fork in the application


FORK = """
import asyncio, os, sys
from flashagents_runtime import EngineError, GenerateRequest, SamplingParams
from flashagents_runtime.remote import RemoteEngine

engine = RemoteEngine(sys.argv[1])

async def ask():
    sampling = SamplingParams(max_new_tokens=40)
    stream = engine.generate(GenerateRequest(input_ids=[1, 2, 3], sampling=sampling))
    return "".join([delta.text async for delta in stream])

said = asyncio.run(ask())
child = os.fork()
again = asyncio.run(ask())
asyncio.run(engine.close())
if child == 0:
    sys.exit(0 if again == said == "Hello!" else 1)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(said, again, status)
"""


@pytest.mark.long
async def test_a_fork_between_two_calls() -> None:
    """Parent and child speak to the server on connections of their own."""
    server = await FakeSGLang(ScriptedEngine(itertools.repeat("Hello!"))).serve()
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-W", "error", "-c", FORK, str(server.make_url(""))],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == "Hello! Hello! 0\n", done.stderr
    await server.close()


# ---- clocks that go back


@pytest.mark.parametrize("seed", range(4))
def test_a_clock_that_was_set_back_starves_no_warm_ups(seed: int) -> None:
    """A budget may be held, and never for longer than it would be from now on."""
    import random

    rng = random.Random(seed)
    now = [1000.0]
    passes = PassBudget(0.05, lambda: now[0])
    client = WarmupBudget(lambda: now[0])
    with client.decode():
        for _ in range(50):
            now[0] += rng.choice([0.01, 1.0, -3600.0, 3600.0, -1e9])
            passes.pass_time(True)
            passes.pay(rng.random() * 0.1)
            client.charge(rng.random() * 0.1)
            now[0] += 0.001
        now[0] = 5.0
        passes.pass_time(True)
        for _ in range(200):  # 50 passes of 0.1 s at most, at a share of 5%, cost 105 s
            now[0] += 1.0
            passes.pass_time(True)
        assert passes.may_start(True, 0.05)
        assert client.delay() <= 105


# ---- closing from several threads at once


# A loop that ends in the same moment leaves its socket to Python.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("kind", ["embedded", "lease", "remote", "client"])
def test_closing_from_several_threads(
    tmp_path: Path, stub: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads, each with a loop of its own, close what another one is reading from."""
    monkeypatch.setattr(EmbeddedEngine, "_resolve_model", lambda self: "slow")
    fake = FakeSGLang(ScriptedEngine(itertools.repeat("Hello!" * 100)))
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    server = asyncio.run_coroutine_threadsafe(fake.serve(), loop).result(10)
    url = str(server.make_url(""))
    engine: Any = {
        "embedded": lambda: EmbeddedEngine("slow"),
        "lease": lambda: acquire_engine("slow"),
        "remote": lambda: RemoteEngine(url),
        "client": lambda: FlashAgentsChatCompletionClient(
            tiny_model(tmp_path), tokenizer=ByteChatTokenizer()
        ),
    }[kind]()
    begun = threading.Event()

    async def read() -> None:
        stream = (
            engine.create_stream([user()], extra_create_args={"max_tokens": 300})
            if kind == "client"
            else engine.generate(ask(300))
        )
        async for _ in stream:
            begun.set()

    def closing() -> None:
        begun.wait(60)
        asyncio.run(engine.close())

    with ThreadPoolExecutor(4) as pool:
        reader = pool.submit(lambda: asyncio.run(read()))
        for closed in [pool.submit(closing) for _ in range(3)]:
            closed.result(60)
        with contextlib.suppress(EngineError):  # it may have been done before
            reader.result(60)
    asyncio.run(engine.close())
    with pytest.raises(EngineClosedError):
        asyncio.run(read())
    asyncio.run_coroutine_threadsafe(server.close(), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
    gc.collect()


@pytest.mark.parametrize("kind", ["scripted", "embedded", "remote"])
def test_one_client_in_many_threads(stub: Path, kind: str) -> None:
    """Twelve threads, each with one loop after another: every answer and every count is there."""
    fake = FakeSGLang(ScriptedEngine(itertools.repeat("t0 t1 t2 ")))
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    server = asyncio.run_coroutine_threadsafe(fake.serve(), loop).result(10)
    engine: Any = {
        "scripted": lambda: ScriptedEngine(itertools.repeat("t0 t1 t2 ")),
        "embedded": lambda: EmbeddedEngine("ok"),
        "remote": lambda: RemoteEngine(str(server.make_url(""))),
    }[kind]()
    client = FlashAgentsChatCompletionClient(engine=engine, tokenizer=ByteChatTokenizer())

    def calls() -> set[str]:
        async def once() -> str:
            text = str((await client.create([user()])).content)
            if kind == "remote":
                await engine._server.leave_loop()  # sockets of closed loops would be warned of
            return text

        return {asyncio.run(once()) for _ in range(4)}

    with ThreadPoolExecutor(12) as pool:
        said = [each.result(60) for each in [pool.submit(calls) for _ in range(12)]]
    assert said == [{"t0 t1 t2 "}] * 12
    each_call = {"scripted": 9, "remote": 9, "embedded": 3}[kind]
    assert client.usage.completion_tokens == 48 * each_call
    asyncio.run(engine.close())
    asyncio.run_coroutine_threadsafe(server.close(), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


# ---- asyncio's debug mode, which finds calls from the wrong thread and coroutines that nobody awaited


@pytest.mark.long
@pytest.mark.parametrize("kind", ["scripted", "embedded", "remote"])
def test_a_loop_in_debug_mode_finds_nothing(stub: Path, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        loop = asyncio.get_running_loop()
        loop.slow_callback_duration = 1e9
        server = await FakeSGLang(ScriptedEngine(soak.Forever())).serve()
        if kind == "scripted":
            run = soak.Soak(ScriptedEngine(soak.Forever()), ByteChatTokenizer(), True, 4, workflows=24)
            await run.round(1)
        else:
            engine: Any = (
                EmbeddedEngine("slow") if kind == "embedded" else RemoteEngine(str(server.make_url("")))
            )
            client = FlashAgentsChatCompletionClient(
                engine=engine, tokenizer=ByteChatTokenizer(), max_tokens=30
            )
            assert (await client.create([user()])).content
            stream = client.create_stream([user()])
            await anext(stream)
            await stream.aclose()
            team = RoundRobinGroupChat(agents(client), max_turns=3)
            async with overlapping(team):
                await team.run(task="Go.")
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await client.create([user()])
            await engine.close()
        await server.close()
        gc.collect()

    asyncio.run(work(), debug=True)
    gc.collect()
    found = [r.getMessage() for r in caplog.records if r.name == "asyncio" and r.levelname != "DEBUG"]
    assert found == []


# ---- disks and folders


def test_a_disk_that_fills_up_takes_no_earlier_trace_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, _ = scripted("one", "two")
    with Trace("first") as first:
        asyncio.run(client.create([user()]))
    target = tmp_path / "run.jsonl"
    first.save(target)
    before = target.read_bytes()
    with Trace("second") as second:
        asyncio.run(client.create([user()]))
    write = Path.write_bytes

    def half(path: Path, content: bytes) -> int:
        write(path, content[: len(content) // 2])
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(Path, "write_bytes", half)
    for name in ("run.jsonl", "new.json"):
        with pytest.raises(OSError, match="No space left"):
            second.save(tmp_path / name)
    monkeypatch.undo()
    assert target.read_bytes() == before and os.listdir(tmp_path) == ["run.jsonl"]
    second.save(target)
    assert Trace.load(target).name == "second"
    full = tmp_path / "full.jsonl"
    full.symlink_to("/dev/full")  # a real one: what is no file is written to in place
    with pytest.raises(OSError, match="No space left"):
        second.save(full)
    assert Path("/dev/full").is_char_device()


@pytest.mark.parametrize(
    "folder", ["/proc/flashagents", "/sys/flashagents", "/dev/null/x", "/tmp/" + "x" * 300, "{loop}"]
)
def test_a_cache_folder_that_cannot_be_written_is_named(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    folder = folder.format(loop=tmp_path / "loop")
    monkeypatch.setenv("FLASHAGENTS_CACHE", folder)

    def build(_: Path) -> None:
        raise AssertionError("there is no folder to build in")

    with pytest.raises(ModelError, match="set FLASHAGENTS_CACHE to a folder that can"):
        build_once("m", lambda f: (f / "config.json").exists(), build, space=1, progress=print)


@pytest.mark.parametrize("name", ["model", "./model", "../here/model"])
def test_a_model_folder_is_the_one_that_was_named_wherever_the_application_goes(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine starts late, and again after its death: by then there may be another folder of that name."""
    for place in ("here", "there"):
        (tmp_path / place).mkdir()
        tiny_model(tmp_path / place)
    monkeypatch.chdir(tmp_path / "here")
    client = FlashAgentsChatCompletionClient(name)
    engine = EmbeddedEngine(name)
    monkeypatch.chdir(tmp_path / "there")
    assert engine.model == client.engine.engine.model == str(tmp_path / "here" / "model")  # type: ignore[attr-defined]
    (tmp_path / "there" / "model" / "tokenizer_config.json").write_text("{}")
    assert client.count_tokens([user()]) > 0, "the tokenizer of another model"
    assert client.dump_component().config["model"] == client._source.load().card.name == name
    asyncio.run(client.close())


# ---- an engine that is closed under a team


async def test_an_engine_is_closed_under_a_team() -> None:
    """By whoever thought that it was no longer needed."""
    client = client_on(*[f"{i} and something about the river" for i in range(6)])
    team = RoundRobinGroupChat(agents(client), max_turns=6)
    async with overlapping(team):
        with pytest.raises(RuntimeError, match="EngineClosedError"):
            async for item in team.run_stream(task="Go."):
                if getattr(item, "source", "") == "b":
                    await client.engine.close()
    assert not client.engine._running  # type: ignore[attr-defined]


SAID = [f"{i} and then along the river to the old bridge" for i in range(6)]


@pytest.mark.parametrize("what", ["close", "uninstall", "detach", "another client", "close from an event"])
@pytest.mark.parametrize("after", range(1, 5))
async def test_the_overlap_is_taken_away_under_a_team(what: str, after: int) -> None:
    """In the middle of a run, after any of its messages: the team says what it would have said."""
    stock = shown(await RoundRobinGroupChat(agents(client_on(*SAID)), max_turns=5).run(task="Go."))
    before = asyncio.all_tasks()
    client = client_on(*SAID)
    team = RoundRobinGroupChat(agents(client), max_turns=5)
    closing: list[asyncio.Task[None]] = []
    runtime = FlashGroupChatRuntime(EAGER)

    def on_event(event: Any) -> None:
        if what == "close from an event" and event.kind == "turn" and len(runtime.turns) == after:
            closing.append(asyncio.ensure_future(runtime.close()))

    runtime._on_event = on_event
    if what == "uninstall":
        flashagents_autogen.install(runtime)
    else:
        runtime.attach(team)
    seen = []
    async for item in team.run_stream(task="Go."):
        seen.append(item)
        if len(seen) == 1 + after:
            if what == "close":
                await runtime.close()
            elif what == "uninstall":
                flashagents_autogen.uninstall()
            elif what == "detach":
                runtime.detach(team)
            elif what == "another client":
                for agent in team._participants:
                    agent._model_client = client_on()  # type: ignore[attr-defined]
                    agent._model_client._engine = client.engine  # type: ignore[attr-defined]
    assert shown(seen[-1]) == stock
    await asyncio.gather(*closing)
    flashagents_autogen.uninstall()
    await runtime.close()
    assert len(runtime.expectations) == 0 and not client.engine._running  # type: ignore[attr-defined]
    assert asyncio.all_tasks() <= before


# ---- callbacks in the engines' I/O thread


async def test_a_display_that_exits_ends_neither_the_start_nor_the_thread(stub: Path) -> None:
    """asyncio ends its loop on SystemExit, and all engines of the process live in that one."""
    engine, other = EmbeddedEngine("ok"), EmbeddedEngine("ok")
    assert await text_of(other) == "t0 t1 t2 "

    def leaves(_: Any) -> None:
        sys.exit("enough")

    await asyncio.wait_for(engine.start(leaves), 60)
    io_thread.io_loop().call_soon_threadsafe(sys.exit)  # whatever else may do so there
    assert await asyncio.wait_for(text_of(engine), 60) == "t0 t1 t2 "
    assert await asyncio.wait_for(text_of(other), 60) == "t0 t1 t2 "
    await engine.close()
    await other.close()


# ---- no descriptors left, and hosts that are stopped


async def test_an_engine_that_starts_without_a_free_descriptor(stub: Path) -> None:
    """Refused by name, nothing is left, and the next start works."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    engine = EmbeddedEngine("ok")
    await text_of(engine)  # its threads and their sockets are there
    assert engine._host is not None and engine._host._process is not None
    engine._host._process.kill()
    with pytest.raises(EngineError):
        for _ in range(100):
            await text_of(engine)
    before = descriptors()
    refused = []
    for free in range(0, 12, 2):
        resource.setrlimit(resource.RLIMIT_NOFILE, (before - 1 + free, limits[1]))
        try:
            await asyncio.wait_for(engine.start(), 60)
        except EngineStartError as e:
            refused.append(str(e))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert engine._host is not None
        if engine._host.error is None:  # it came up, and is killed for the next one
            engine._host._process.kill()  # type: ignore[union-attr]
            with pytest.raises(EngineError):
                for _ in range(100):
                    await text_of(engine)
    assert "Too many open files" in refused[0] and all("did not start" in words for words in refused)
    assert await text_of(engine) == "t0 t1 t2 "
    await engine.close()


async def test_a_host_that_is_stopped_can_be_closed(stub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGSTOP, as a debugger sends it: it reads nothing and ends by nothing but SIGKILL."""
    monkeypatch.setattr(host_process, "_GRACE_SECONDS", 0.2)
    engine = EmbeddedEngine("slow")
    stream = engine.generate(ask(300))
    await anext(stream)
    assert engine._host is not None and engine._host._process is not None
    process = psutil.Process(engine._host._process.pid)
    process.send_signal(signal.SIGSTOP)
    reading = asyncio.ensure_future(drain(stream))
    await asyncio.wait_for(engine.close(), 60)
    with pytest.raises(EngineClosedError):
        await reading
    assert not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


async def drain(stream: AsyncGenerator[Delta, None]) -> None:
    async for _ in stream:
        pass
