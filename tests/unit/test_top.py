"""`flashagents top`: servers, and embedded engines of other processes, which stub hosts stand in for."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from flashagents_runtime import EngineError, GenerateRequest, SamplingParams, ScriptedEngine, cli, remote, top
from flashagents_runtime.embedded import EmbeddedEngine, acquire_engine, window
from flashagents_runtime.handoff import Prefiller
from flashagents_runtime.looks import SOCKET_NAME, Look, ask, windows
from flashagents_runtime.tally import tally_of
from helpers import stub_host
from helpers.plugged_engine import FIGURES, PluggedEngine
from helpers.stub_hosts import stub_hosts


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(cli.app, list(arguments))
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Engines' folders of this test alone: the machine may have others."""
    with stub_hosts(monkeypatch) as folder:
        monkeypatch.setattr("flashagents_runtime.looks.BASES", (folder,))
        yield folder


def request(n: int, ids: int = 8) -> GenerateRequest:
    return GenerateRequest(input_ids=[1] * ids, sampling=SamplingParams(max_new_tokens=n))


async def answer(engine: EmbeddedEngine, n: int) -> None:
    async for _ in engine.generate(request(n)):
        pass


# ---- servers


class FakeServer(PluggedEngine):
    def __init__(self, url: str, *, api_key: str | None = None) -> None:
        super().__init__(model="org/Model-7B", max_total_tokens=1000)


def test_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "RemoteEngine", FakeServer)
    code, out, _ = run("top", "http://localhost:1", "--count", "2", "--interval", "0.05", "--json")
    looks = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and len(looks) == 2
    assert (looks[0]["kv_total"], looks[0]["running"]) == (1000, 0)
    assert looks[0]["plugin"] == FIGURES and looks[0]["counts"] is None
    code, out, _ = run("top", "--count", "2", "--interval", "0.05")
    assert code == 0 and "Model-7B" in out and out.count("requests running") == 2 and "1,000" in out
    assert "soft_pins" in out and "token bytes rows" in out and "1,024" in out
    assert "━" not in out, "no bars where there is no terminal"


def test_bars_on_a_terminal() -> None:
    look = asyncio.run(top.EngineSource(FakeServer(""), "here").look())[0]
    console = Console(record=True, force_terminal=True, width=100, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(top.picture(look, "here", "12:00:00"))
    console.file.close()
    assert "━" in console.export_text()


# ---- embedded engines


@pytest.mark.long
def test_an_engine_of_another_process_is_found(folder: Path) -> None:
    code = f"""
import asyncio
from flashagents_runtime import GenerateRequest
from flashagents_runtime.embedded import EmbeddedEngine, host_process
host_process.host_command = lambda fd: [{sys.executable!r}, {stub_host.__file__!r}, str(fd)]
EmbeddedEngine._resolve_model = lambda self: self.model

async def main():
    async with EmbeddedEngine("plugged") as engine:
        async for _ in engine.generate(GenerateRequest(input_ids=[1, 2, 3])):
            pass
        print("up", flush=True)
        await asyncio.to_thread(input)

asyncio.run(main())
"""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, text=True) as other:
        assert other.stdin is not None and other.stdout is not None
        assert other.stdout.readline() == "up\n"
        status, out, _ = run("top", "--count", "1", "--json")
        look = json.loads(out)
        assert status == 0 and look["pid"] == other.pid
        assert look["plugin"] == {"soft_pins": {"pins": 3}} and look["kv_total"] == 9
        assert (look["counts"]["answers"], look["counts"]["prompt"]) == (1, 3)
        status, out, _ = run("top", str(other.pid), "--count", "1")
        assert f"embedded in process {other.pid}" in out and "sessions open" in out and "pins" in out
        other.stdin.write("\n")
    assert windows() == []


async def test_only_its_user_may_look(folder: Path) -> None:
    async with EmbeddedEngine("ok"):
        [path] = windows()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        path.parent.chmod(0o755)
        assert windows() == [], "a folder that others may enter is not trusted"
        path.parent.chmod(0o700)
        link = folder / "flashagents-falink"
        link.symlink_to(path.parent)
        assert windows() == [path], "nor is a link"
        link.unlink()


async def test_another_users_process_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with EmbeddedEngine("ok"):
        [path] = windows()
        monkeypatch.setattr("flashagents_runtime.looks.peer_uid", lambda sock: 12345)
        with pytest.raises(EngineError, match="another user"):
            await ask(path)
        monkeypatch.setattr(window, "peer_uid", lambda sock: 12345)
        monkeypatch.setattr("flashagents_runtime.looks.peer_uid", lambda sock: os.getuid())
        with pytest.raises(EngineError, match="did not answer"):
            await ask(path)


async def test_what_is_counted() -> None:
    async with EmbeddedEngine("ok") as engine:
        await answer(engine, 4)
        await answer(engine, 0)
        prefiller = Prefiller(engine)
        session = prefiller.open()
        session.figures.computed, session.figures.prewarmed = 30, 20
        assert engine.tally.counts().sessions == 1
        await session.close()
        await prefiller.close()
        look = await ask(windows()[0])
    assert look.counts is not None
    assert (look.counts.answers, look.counts.warm_ups, look.counts.completion) == (1, 1, 4)
    assert (look.counts.ahead, look.counts.prewarmed, look.counts.wasted) == (30, 20, 10)
    assert look.counts.sessions == 0


async def test_who_shares_an_engine_shares_its_tally() -> None:
    lease = acquire_engine("ok")
    assert tally_of(lease) is lease.engine.tally
    assert tally_of(ScriptedEngine()) is None
    await lease.close()


async def test_many_watchers_are_one_question(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0
    before = EmbeddedEngine._look

    async def counted(self: EmbeddedEngine, *arguments: object) -> Look:
        nonlocal asked
        asked += 1
        return await before(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(EmbeddedEngine, "_look", counted)
    monkeypatch.setattr(window, "_FRESH_SECONDS", 60)
    async with EmbeddedEngine("ok") as engine:
        [path] = windows()
        looks = await asyncio.gather(*(ask(path) for _ in range(8)))
        assert asked == 1 and len(looks) == 8
        await answer(engine, 3)


async def test_who_watches_and_says_nothing_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window, "_MOST_WATCHERS", 2)
    async with EmbeddedEngine("no-answer") as engine:
        [path] = windows()
        idle = [socket.socket(socket.AF_UNIX) for _ in range(3)]
        for one in idle:
            one.connect(str(path))
        await answer(engine, 3)
        for one in idle:
            one.close()


@pytest.mark.long
async def test_an_engine_that_does_not_answer_is_said_to(monkeypatch: pytest.MonkeyPatch) -> None:
    async with EmbeddedEngine("no-answer"):
        with monkeypatch.context() as hurry, pytest.raises(EngineError, match="busy"):
            hurry.setattr(window, "_PATIENCE_SECONDS", 1.05)
            await top.EmbeddedSource().look()
    async with EmbeddedEngine("bad-call"):
        with pytest.raises(EngineError, match="no figures today"):
            await top.EmbeddedSource().look()
        async with EmbeddedEngine("ok"):
            assert len(await top.EmbeddedSource().look()) == 1, "the others are shown"


async def test_an_engine_that_dies_is_gone() -> None:
    engine = EmbeddedEngine("die-after-two-sigkill")
    await engine.start()
    [path] = windows()
    with pytest.raises(EngineError):
        await answer(engine, 5)
    assert windows() == []
    with pytest.raises(EngineError, match="has ended"):
        await ask(path)
    await engine.close()


async def test_a_socket_that_cannot_be_made_disturbs_nobody(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(window, "SOCKET_NAME", "no/such/folder")
    async with EmbeddedEngine("ok") as engine:
        await answer(engine, 3)
        assert windows() == []
    assert "will not see this engine" in caplog.text


async def test_a_host_that_ends_while_the_socket_is_made_leaves_none(folder: Path) -> None:
    async def never() -> Look:
        raise AssertionError

    home = folder / "flashagents-fa0"
    home.mkdir(0o700)
    late = window.Window(never)
    late.close()
    await late.open(home)
    with pytest.raises(EngineError, match="has ended"):
        await ask(windows()[0])
    (home / SOCKET_NAME).unlink()
    home.rmdir()


@pytest.mark.parametrize("says", [b"", b"{}\n", b"no json\n", b"x" * (2 << 20)], ids=len)
async def test_strange_answers_are_errors(says: bytes, folder: Path) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(says)
        writer.close()

    home = folder / "flashagents-fa0"
    home.mkdir(0o700)
    server = await asyncio.start_unix_server(serve, str(home / SOCKET_NAME))
    try:
        with pytest.raises(EngineError):
            await ask(windows()[0])
    finally:
        server.close()
        await server.wait_closed()
        (home / SOCKET_NAME).unlink()
        home.rmdir()


def test_without_an_engine(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["flashagents", "top", "123456"])
    with pytest.raises(SystemExit):
        cli.main()
    assert re.match("flashagents: no embedded engine of process 123456 is running", capsys.readouterr().err)
    assert isinstance(top.source_of(None), top.EngineSource), "servers where nothing is embedded"
