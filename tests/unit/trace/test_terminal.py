"""`flashagents trace show`, and what notebooks show of engines."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from flashagents_autogen import FlashRequestUsage
from flashagents_runtime import ScriptedEngine, Usage, cli, embedded, remote
from flashagents_runtime.trace import Trace, Turn
from flashagents_runtime.trace.terminal import show
from helpers.traces import made_up


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(cli.app, list(arguments))
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return made_up(agents=3, turns=5, name="a run").save(tmp_path / "x.jsonl")


def test_show_for_people(file: Path) -> None:
    code, out, _ = run("trace", "show", str(file))
    assert code == 0
    assert "a run" in out and "█" in out and "▪" in out
    assert out.count("agent_02") == 1 + 1, "its lane, and its turn"
    assert "wasted" in out


def test_show_for_programs(file: Path) -> None:
    code, out, _ = run("trace", "show", str(file), "--json")
    answer = json.loads(out)
    assert code == 0 and answer["name"] == "a run"
    assert answer["summary"]["turns"] == len(answer["turns"]) == 5
    assert answer["turns"][1]["agent"] == "agent_01"
    assert [group["name"] for group in answer["by_agent"]] == ["agent_00", "agent_01", "agent_02"]


@pytest.mark.long
def test_show_writes_other_files(file: Path, tmp_path: Path) -> None:
    target = tmp_path / "x.svg"
    assert run("trace", "show", str(file), "--page", str(target), "--compare", str(file))[:2] == (
        0,
        f"{target}\n",
    )
    assert target.exists()


def test_no_trace_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "x.jsonl"
    bad.write_text("hello")
    monkeypatch.setattr("sys.argv", ["flashagents", "trace", "show", str(bad)])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 1
    assert capsys.readouterr().err.startswith(f"flashagents: {bad} holds no trace")


def test_names_are_no_markup() -> None:
    trace = Trace("[bold]x")
    trace.record(Turn(agent="[red]a[/]", workflow="w", rid="r", start=0, first=0.1, end=1))
    out = io.StringIO()
    show(trace, Console(file=out, width=100))
    assert "[red]a[/]" in out.getvalue() and "[bold]x" in out.getvalue()


async def test_notebooks_see_figures() -> None:
    engine = ScriptedEngine(model="<b>")
    info = await engine.start()
    assert "&lt;b&gt;" in info._repr_html_() and "<b>Engine</b>" in info._repr_html_()
    assert "kv total" in (await engine.state())._repr_html_()


def test_notebooks_see_usage() -> None:
    usage = Usage(prompt_tokens=1200, cached_tokens=1100, prewarmed_tokens=900, completion_tokens=7)
    for shown in (usage, FlashRequestUsage.of(usage)):
        html = shown._repr_html_()
        assert "prewarmed tokens" in html and "1,100" in html


async def test_notebooks_see_engines() -> None:
    engine = remote.RemoteEngine("http://127.0.0.1:9/<x>")
    assert "not started" in engine._repr_html_() and "&lt;x&gt;" in engine._repr_html_()
    await engine.close()
    lease = embedded.acquire_engine("some model")
    assert "not started" in lease._repr_html_() and "not started" in lease.engine._repr_html_()
    assert "not started" in ScriptedEngine()._repr_html_()
    await lease.close()
