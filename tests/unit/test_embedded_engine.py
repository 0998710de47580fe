"""EmbeddedEngine against a stub host process: what happens when hosts misbehave."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from flashagents_runtime import (
    ContextLengthError,
    EngineClosedError,
    EngineDiedError,
    EngineError,
    EngineStartError,
    GenerateRequest,
    RequestRejectedError,
    SamplingParams,
    UnknownAdapterError,
)
from flashagents_runtime.embedded import EmbeddedEngine, host_process, run_dir
from helpers import stub_host
from helpers.stub_hosts import stub_hosts


def hosts() -> list[psutil.Process]:
    """The stub hosts that this process has started; other tests may have children of their own."""
    found = []
    for process in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if stub_host.__file__ in process.cmdline():
                found.append(process)
    return found


@pytest.fixture(autouse=True)
def stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Start the stub instead of the real host; nothing of it may be left afterwards."""
    with stub_hosts(monkeypatch) as folder:
        yield folder
    left = [host.cmdline() for host in hosts()]
    assert left == [], "a host was left behind"


def request(n: int = 3) -> GenerateRequest:
    return GenerateRequest(input_ids=[1, 2, 3], sampling=SamplingParams(max_new_tokens=n))


async def text_of(engine: EmbeddedEngine, n: int = 3) -> str:
    return "".join([delta.text async for delta in engine.generate(request(n))])


async def test_generates_and_reports_usage() -> None:
    async with EmbeddedEngine("ok") as engine:
        deltas = [delta async for delta in engine.generate(request(4))]
    assert [d.token_ids for d in deltas] == [[0], [1], [2], [3]]
    assert [d.result is not None for d in deltas] == [False, False, False, True]
    assert deltas[-1].result is not None and deltas[-1].result.usage.completion_tokens == 4


async def test_an_adapter_that_is_not_there_is_named() -> None:
    async with EmbeddedEngine("ok") as engine:
        with pytest.raises(UnknownAdapterError, match="no LoRA adapter 'nobody'; it has 'actor'"):
            async for _ in engine.generate(GenerateRequest(input_ids=[1], lora="nobody")):
                pass


async def test_the_first_request_starts_the_engine() -> None:
    engine = EmbeddedEngine("ok")
    assert engine.info is None
    assert await text_of(engine) == "t0 t1 t2 "
    assert engine.info is not None
    await engine.close()


async def test_concurrent_starts_share_one_host() -> None:
    engine = EmbeddedEngine("ok")
    await asyncio.gather(*(engine.start() for _ in range(5)))
    assert len(hosts()) == 1
    await engine.close()


async def test_a_cancelled_start_does_not_end_the_start_of_others() -> None:
    engine = EmbeddedEngine("ok")
    first = asyncio.create_task(engine.start())
    second = asyncio.create_task(engine.start())
    await asyncio.sleep(0)
    first.cancel()
    assert (await second).model == "stub"
    await engine.close()


def test_one_engine_serves_several_event_loops_and_threads() -> None:
    engine = EmbeddedEngine("ok")
    texts = [asyncio.run(text_of(engine)) for _ in range(2)]
    thread = threading.Thread(target=lambda: texts.append(asyncio.run(text_of(engine))))
    thread.start()
    thread.join()
    asyncio.run(engine.close())
    assert texts == ["t0 t1 t2 "] * 3


async def test_progress_is_reported_and_a_failing_display_is_dropped() -> None:
    engine = EmbeddedEngine("never-ready")
    seen: list[str] = []
    thinking = asyncio.Event()
    loop = asyncio.get_running_loop()

    def bad(_: object) -> None:
        raise RuntimeError("the display fell over")

    def good(progress: object) -> None:
        seen.append(progress.stage)  # type: ignore[attr-defined]
        if "Thinking" in seen[-1]:
            loop.call_soon_threadsafe(thinking.set)

    starts = [asyncio.create_task(engine.start(callback)) for callback in (bad, good)]
    await asyncio.wait_for(thinking.wait(), 20)
    await engine.close()
    results = await asyncio.gather(*starts, return_exceptions=True)
    assert [type(r) for r in results] == [EngineClosedError, EngineClosedError]


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("refuse", "not to my taste"),
        ("die-at-start", "exit status 3"),
        ("die-of-an-exception", r"did not start: ValueError: the pool is too small\n"),
    ],
)
async def test_a_host_that_does_not_come_up(mode: str, words: str) -> None:
    engine = EmbeddedEngine(mode)
    with pytest.raises(EngineStartError, match=words) as error:
        await engine.start()
    assert f"stub host: mode {mode}" in error.value.log_tail
    assert not [line for line in error.value.log_tail if "Applied 1 hook(s)" in line or "Ignore" in line]
    await engine.close()


@pytest.mark.parametrize(
    ("mode", "words"),
    [("die-after-two", "exit status 7"), ("die-after-two-sigkill", "killed by SIGKILL")],
)
async def test_a_host_that_dies_fails_every_waiting_call_and_the_next_starts_anew(
    mode: str, words: str
) -> None:
    engine = EmbeddedEngine(mode)
    got: list[str] = []
    with pytest.raises(EngineDiedError, match=words) as error:
        async for delta in engine.generate(request(9)):
            got.append(delta.text)
    assert got == ["t0 ", "t1 "]
    assert "about to die" in error.value.log_tail
    assert await text_of(engine, 2) == "t0 t1 "  # two tokens are within its power
    await engine.close()


async def test_several_waiting_calls_all_raise() -> None:
    engine = EmbeddedEngine("no-answer")
    await engine.start()
    calls = [asyncio.create_task(engine.state()) for _ in range(3)]
    await asyncio.sleep(0.1)
    [host] = hosts()
    host.send_signal(signal.SIGKILL)
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(r) for r in results] == [EngineDiedError] * 3
    assert len({id(r) for r in results}) == 3, "each call has an exception of its own"
    await engine.close()


async def test_garbage_on_the_wire_ends_the_host() -> None:
    engine = EmbeddedEngine("garbage")
    with pytest.raises(EngineDiedError):
        await text_of(engine)
    await engine.close()


async def test_what_a_host_has_started_dies_with_it() -> None:
    engine = EmbeddedEngine("with-child")
    await engine.start()
    [host] = hosts()
    [child] = host.children()
    host.kill()
    with pytest.raises(EngineDiedError):
        while True:
            await engine._call("state") if engine._alive() else await engine._host.call("state")  # type: ignore[union-attr]
            await asyncio.sleep(0.01)
    psutil.wait_procs([child], timeout=5)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
    await engine.close()


async def test_leaving_a_stream_early_aborts_the_request() -> None:
    async with EmbeddedEngine("slow") as engine:
        stream = engine.generate(request(200))
        async for _ in stream:
            break
        await stream.aclose()
        while (await engine.state()).kv_used == 0:  # the stub counts aborts there
            await asyncio.sleep(0.01)


async def test_cancelling_the_reader_aborts_the_request() -> None:
    async with EmbeddedEngine("slow") as engine:
        task = asyncio.create_task(text_of(engine, 200))
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while (await engine.state()).kv_used == 0:
            await asyncio.sleep(0.01)


async def test_abort_ends_the_stream_with_that_reason() -> None:
    async with EmbeddedEngine("slow") as engine:
        wanted = request(200)
        last = None
        async for delta in engine.generate(wanted):
            last = delta
            await engine.abort(wanted.rid)
        assert last is not None and last.result is not None
        assert last.result.finish_reason == "abort"
        await engine.abort("0" * 32)  # unknown ids are ignored


async def test_a_refused_request_leaves_the_engine_well() -> None:
    async with EmbeddedEngine("reject") as engine:
        for _ in range(2):
            with pytest.raises(RequestRejectedError, match="too silly"):
                await text_of(engine)


async def test_a_failed_call_leaves_the_engine_well() -> None:
    async with EmbeddedEngine("bad-call") as engine:
        with pytest.raises(EngineError, match="no figures today"):
            await engine.state()
        assert await text_of(engine) == "t0 t1 t2 "


async def test_prompts_that_cannot_fit_are_refused_here() -> None:
    async with EmbeddedEngine("ok") as engine:
        with pytest.raises(ContextLengthError, match=r"1200 tokens.*holds 1000"):
            async for _ in engine.generate(GenerateRequest(input_ids=[1] * 1200)):
                pass
        with pytest.raises(ContextLengthError, match=r"at most 997"):
            await text_of(engine, 998)
        with pytest.raises(RequestRejectedError, match="empty"):
            async for _ in engine.generate(GenerateRequest(input_ids=[])):
                pass


async def test_an_id_in_use_is_refused() -> None:
    async with EmbeddedEngine("slow") as engine:
        wanted = request(200)
        stream = engine.generate(wanted)
        await anext(stream)
        with pytest.raises(RequestRejectedError, match="in use"):
            async for _ in engine.generate(wanted):
                pass
        await stream.aclose()


async def test_closing_fails_running_requests_and_later_calls() -> None:
    engine = EmbeddedEngine("slow")
    task = asyncio.create_task(text_of(engine, 500))
    await engine.start()
    await asyncio.sleep(0.1)
    await engine.close()
    await engine.close()
    with pytest.raises(EngineClosedError):
        await task
    with pytest.raises(EngineClosedError, match="build a new one"):
        await text_of(engine)


async def test_closing_an_engine_that_was_never_started() -> None:
    engine = EmbeddedEngine("ok")
    await engine.close()
    with pytest.raises(EngineClosedError):
        await engine.start()


async def test_a_host_that_ignores_the_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_process, "_GRACE_SECONDS", 0.2)
    engine = EmbeddedEngine("ignores-the-end")
    await engine.start()
    await engine.close()
    assert hosts() == []


async def test_an_unrelated_child_of_the_application_lives_on() -> None:
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "input()", stdin=asyncio.subprocess.PIPE
    )
    async with EmbeddedEngine("ok") as one, EmbeddedEngine("ok") as other:
        await one.close()
        assert await text_of(other) == "t0 t1 t2 "
    assert child.returncode is None
    await child.communicate(b"\n")
    assert child.returncode == 0


async def test_a_loop_that_closes_under_its_request_harms_nobody() -> None:
    async with EmbeddedEngine("slow") as engine:

        def abandon() -> None:
            loop = asyncio.new_event_loop()
            stream = engine.generate(request(50))
            loop.run_until_complete(anext(stream))
            abandoned.append(stream)
            loop.close()

        abandoned: list[object] = []
        thread = threading.Thread(target=abandon)
        thread.start()
        await asyncio.to_thread(thread.join)
        assert await text_of(engine, 3) == "t0 t1 t2 "
        # Nobody closes this generator's loop again: end it by hand, as the interpreter would.
        with pytest.raises(StopIteration):
            abandoned[0].aclose().send(None)  # type: ignore[attr-defined]


def test_a_forked_child_cannot_use_the_parents_engine() -> None:
    engine = EmbeddedEngine("ok")
    asyncio.run(engine.start())
    pid = os.fork()
    if pid == 0:  # the child: tell by the exit status, and leave without pytest's clean-up
        try:
            engine._check()
        except EngineError as e:
            os._exit(0 if "forked child" in str(e) else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    asyncio.run(engine.close())


def test_an_application_killed_by_sigkill_takes_its_host_with_it(stub: Path) -> None:
    """The stub has no parent watch: it sees the closed socket."""
    code = f"""
import asyncio, os, signal, sys, tempfile
from flashagents_runtime.embedded import EmbeddedEngine, host_process, run_dir
host_process.host_command = lambda fd: [sys.executable, {stub_host.__file__!r}, str(fd)]
EmbeddedEngine._resolve_model = lambda self: self.model
engine = EmbeddedEngine("ok")
asyncio.run(engine.start())
print(engine._host._process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == -signal.SIGKILL
    host = int(done.stdout)
    for _ in range(100):
        if not psutil.pid_exists(host) or psutil.Process(host).status() == psutil.STATUS_ZOMBIE:
            break
        threading.Event().wait(0.05)
    else:
        pytest.fail("the host outlived its application")
    # Its folder is swept when the next engine starts.
    assert [path.name[:14] for path in stub.iterdir()] == ["flashagents-fa"]
    assert run_dir.sweep() == 1


@pytest.mark.parametrize("arguments", [{"lora_sharing": "bogus"}, {"lora_sharing": "base_lr"}])
def test_sharing_that_cannot_be_is_refused_before_anything_starts(arguments: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="lora_sharing"):
        EmbeddedEngine(**arguments)
