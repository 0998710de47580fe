"""Real host processes: their deaths, their neighbours, and what they leave behind (nothing)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from flashagents_runtime import (
    ContextLengthError,
    EngineDiedError,
    EngineStartError,
    GenerateRequest,
    SamplingParams,
)
from flashagents_runtime.embedded import EmbeddedEngine
from flashagents_runtime.handoff import Prefiller
from helpers.cancel_points import descriptors
from helpers.scheduler_harness import tiny_model

ENDLESS = GenerateRequest(input_ids=list(range(10, 60)), sampling=SamplingParams(ignore_eos=True))


@pytest.fixture
def short_tmp(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A temporary folder that is empty again afterwards, with no shared memory of its engines left."""
    folder = Path(tempfile.mkdtemp(prefix="fa-life"))
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield folder
    assert run_dirs(folder) == []
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def small_model(model_path: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Another model than the default one: two random layers, with the default model's tokenizer."""
    folder = tiny_model(tmp_path_factory.mktemp("models"))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(Path(model_path) / name, folder / name)
    return str(folder)


def run_dirs(folder: Path) -> list[str]:
    return [p.name for p in folder.iterdir() if p.name.startswith("flashagents-")]


def segments(token: str) -> list[str]:
    """Shared memory of the engine whose run folder has this token."""
    return [p.name for p in Path("/dev/shm").glob(f"*{token}*")]


def token_of(engine: EmbeddedEngine) -> str:
    assert engine._host is not None and engine._host._run_dir is not None
    return engine._host._run_dir.token


def processes_of(engine: EmbeddedEngine) -> dict[str, psutil.Process]:
    assert engine._host is not None and engine._host._process is not None
    host = psutil.Process(engine._host._process.pid)
    named = {"host": host}
    for child in host.children(recursive=True):
        for part in ("scheduler", "detokenizer"):
            if part in " ".join(child.cmdline()):
                named[part] = child
    return named


def kill(part: str, number: int) -> Callable[[EmbeddedEngine], None]:
    return lambda engine: processes_of(engine)[part].send_signal(number)


# The ways in which SGLang's processes end (docs/architecture.md), each by what sets it off: the watchdog
# finds a child gone; a child that fails, or the hang watchdog, sends SIGQUIT to the host; an exception in
# the tokenizer manager kills the host's whole tree.
DEATHS = {
    "scheduler-killed": kill("scheduler", signal.SIGKILL),
    "detokenizer-killed": kill("detokenizer", signal.SIGKILL),
    "child-reports-failure": kill("host", signal.SIGQUIT),
    "host-killed": kill("host", signal.SIGKILL),
}


async def more_than_the_pool_holds(engine: EmbeddedEngine) -> None:
    """A pool of 4,096 tokens: what can never fit is refused, all else is served, if need be one by one."""

    async def ask(seed: int, prompt: int, new: int) -> list[int]:
        rng = random.Random(seed)
        sampling = SamplingParams(max_new_tokens=new, temperature=0, ignore_eos=True)
        ids = [rng.randrange(10, 500) for _ in range(prompt)]
        stream = engine.generate(GenerateRequest(input_ids=ids, sampling=sampling))
        return [token async for delta in stream for token in delta.token_ids]

    with pytest.raises(ContextLengthError, match=r"KV cache holds 4096 .*max_total_tokens"):
        await ask(0, 4096, 1)
    alone = [await ask(seed, 100, 300) for seed in (1, 2)]
    # Admitted by how long answers have been so far, and then longer: some are retracted and begin again.
    answers = await asyncio.gather(
        *(ask(seed, 100, 300) for seed in range(1, 21)), *(ask(seed, 1500, 8) for seed in range(30, 36))
    )
    assert [len(answer) for answer in answers] == [300] * 20 + [8] * 6
    assert answers[:2] == alone
    state = await engine.state()
    assert (state.running, state.waiting, state.kv_used) == (0, 0, 0)
    assert state.kv_cached + state.kv_free == state.kv_total


async def test_two_engines_and_every_way_to_die(
    session_engine: EmbeddedEngine, small_model: str, short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One test, so that one more engine start serves each death: the next call starts a new host."""
    bystander = await asyncio.create_subprocess_exec("sleep", "600")
    monkeypatch.setenv("FLASHAGENTS_CHECK", "1")
    engine = EmbeddedEngine(small_model, max_total_tokens=4096)
    await more_than_the_pool_holds(engine)
    files = 0
    for name, strike in DEATHS.items():
        stream = engine.generate(ENDLESS)
        await anext(stream)
        second = engine.generate(GenerateRequest(input_ids=[5] * 4000))
        waiting = asyncio.create_task(anext(second))
        prefiller = Prefiller(engine, chunk_size=16)
        session = prefiller.open()
        session.extend(list(range(10, 400)))
        token = token_of(engine)
        assert segments(token), "its shared memory does not carry the token"
        pids = [p.pid for p in processes_of(engine).values()]
        assert len(pids) == 3, f"{name}: {pids}"
        strike(engine)
        with pytest.raises(EngineDiedError, match="died") as error:
            async for _ in stream:
                pass
        assert error.value.log_tail, name
        assert not any("crash diagnostics" in line for line in error.value.log_tail), "a minute of dumps"
        with contextlib.suppress(EngineDiedError):  # it may have had its first token before the death
            await waiting
        await second.aclose()
        await session.settle()
        assert session.state in ("idle", "stalled")  # its chunk may have been done
        await prefiller.close()
        assert not prefiller._sessions
        for pid in pids:
            await gone(pid)
        assert segments(token) == [], name
        assert asyncio.all_tasks() == {asyncio.current_task()}, name
        files = files or descriptors()
        assert descriptors() <= files, name
    starting = asyncio.create_task(engine.start())
    await strike_while_starting(engine, starting)
    with pytest.raises(EngineStartError) as refused:
        await starting
    assert refused.value.log_tail
    other = session_engine.generate(ENDLESS)
    assert (await anext(other)).token_ids, "the other engine lives on"
    await other.aclose()
    await engine.close()
    assert bystander.returncode is None, "an unrelated child of the application lives on"
    bystander.kill()
    await bystander.wait()


async def strike_while_starting(engine: EmbeddedEngine, starting: asyncio.Task[object]) -> None:
    """Kill the scheduler as soon as there is one: it has no model yet."""
    before = engine._host
    while not starting.done():
        await asyncio.sleep(0.02)
        host = engine._host
        if host is not before and host is not None and host._process is not None:
            with contextlib.suppress(psutil.Error, KeyError):  # not there yet
                processes_of(engine)["scheduler"].kill()
                return


async def gone(pid: int) -> None:
    for _ in range(200):
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return
        await asyncio.sleep(0.05)
    pytest.fail(f"process {pid} is still there: {psutil.Process(pid).cmdline()}")


SCRIPT = """
import asyncio, os, sys, threading
from flashagents_runtime import GenerateRequest, SamplingParams
from flashagents_runtime.embedded import acquire_engine

engine = acquire_engine(sys.argv[1], {"max_total_tokens": 4096})

async def ask():
    request = GenerateRequest(input_ids=[1, 2, 3], sampling=SamplingParams(max_new_tokens=4, ignore_eos=True))
    return sum([len(delta.token_ids) async for delta in engine.generate(request)])

counts = [asyncio.run(ask()), asyncio.run(ask())]
thread = threading.Thread(target=lambda: counts.append(asyncio.run(ask())))
thread.start()
thread.join()
print(counts, engine.engine._host._run_dir.token, flush=True)
if sys.argv[2] == "be-killed":
    os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("end", ["forget-to-close", "be-killed"])
async def test_a_script_without_main_guard_from_standard_input(
    end: str, small_model: str, short_tmp: Path
) -> None:
    """Two event loops and a thread use one engine; the script never closes it, or is killed."""
    code = textwrap.dedent(SCRIPT)
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-", small_model, end],
        input=code,
        capture_output=True,
        text=True,
        timeout=400,
        env=env,
    )
    counts, _, token = done.stdout.strip().rpartition(" ")
    assert counts == "[4, 4, 4]", done.stderr
    assert done.returncode == (0 if end == "forget-to-close" else -signal.SIGKILL), done.stderr
    assert done.stderr == ""
    deadline = time.monotonic() + 30
    while hosts_below(short_tmp) or segments(token):
        assert time.monotonic() < deadline, (hosts_below(short_tmp), segments(token))
        await asyncio.sleep(0.1)
    while run_dirs(short_tmp):
        assert time.monotonic() < deadline, run_dirs(short_tmp)
        await asyncio.sleep(0.1)


def hosts_below(folder: Path) -> list[int]:
    """Processes whose temporary folder lies in `folder`."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("TMPDIR", "").startswith(str(folder) + "/"):
                found.append(process.pid)
        except psutil.Error:
            continue
    return found
