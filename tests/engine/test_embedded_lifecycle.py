"""Real host processes: their deaths, their neighbours, and what they leave behind (nothing)."""

from __future__ import annotations

import asyncio
import contextlib
import os
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

from flashagents_runtime import EngineDiedError, GenerateRequest, SamplingParams
from flashagents_runtime.embedded import EmbeddedEngine
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


async def test_two_engines_and_every_way_to_die(
    session_engine: EmbeddedEngine, small_model: str, short_tmp: Path
) -> None:
    """One test, so that one more engine start serves each death: the next call starts a new host."""
    bystander = await asyncio.create_subprocess_exec("sleep", "600")
    engine = EmbeddedEngine(small_model, max_total_tokens=4096)
    for name, strike in DEATHS.items():
        stream = engine.generate(ENDLESS)
        await anext(stream)
        second = engine.generate(GenerateRequest(input_ids=[5] * 4000))
        waiting = asyncio.create_task(anext(second))
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
        for pid in pids:
            await gone(pid)
        assert segments(token) == [], name
    other = session_engine.generate(ENDLESS)
    assert (await anext(other)).token_ids, "the other engine lives on"
    await other.aclose()
    await engine.close()
    assert bystander.returncode is None, "an unrelated child of the application lives on"
    bystander.kill()
    await bystander.wait()


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
