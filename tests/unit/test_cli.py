"""The command line: what it prints, where, and its exit status."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from flashagents_runtime import __version__, cli, doctor, model_store, role_training
from flashagents_runtime.doctor import Check, Report
from flashagents_runtime.engine_args import check_flags
from flashagents_runtime.errors import ModelDownloadError
from flashagents_runtime.role_training import Recipe, TrainedRole
from flashagents_runtime.types import Progress

HELPED = sorted(typer.main.get_command(cli.app).commands)  # type: ignore[attr-defined]
GOOD = Report(ok=True, checks=[Check(name="python", status="ok", found="3.11.7 [x]")])
BAD = Report(
    ok=False,
    checks=[
        Check(name="default model", status="note", found="not prepared yet", advice="later"),
        Check(name="sglang", status="problem", found="not installed", advice="install it"),
    ],
)


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(cli.app, list(arguments))
    return result.exit_code, result.stdout, result.stderr


def test_version() -> None:
    assert run("--version") == (0, f"flashagents-autogen {__version__}\n", "")


@pytest.mark.parametrize("command", ["", *(c for c in HELPED if c != "trace"), "trace show"])
def test_nothing_of_the_help_is_cut_off(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = run(*command.split(), "--help")
    assert code == 0 and "Usage:" in out
    assert "…" not in out and max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize(("report", "status"), [(GOOD, 0), (BAD, 1)], ids=["good", "bad"])
def test_doctor_for_programs(report: Report, status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "examine", lambda **kwargs: report)
    code, out, _ = run("doctor", "--json")
    assert code == status
    answer = json.loads(out)
    assert answer["ok"] is report.ok
    assert [check["name"] for check in answer["checks"]] == [check.name for check in report.checks]


def test_doctor_for_people(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "examine", lambda **kwargs: GOOD)
    code, out, _ = run("doctor")
    assert code == 0
    assert "3.11.7 [x]" in out, "square brackets are text, not markup"
    assert "All is well." in out
    monkeypatch.setattr(doctor, "examine", lambda **kwargs: BAD)
    code, out, _ = run("doctor")
    assert code == 1
    assert out.index("sglang: install it") < out.index("default model: later"), "problems come first"


def test_prepare_model_prints_the_folder_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def resolve(name: str | None, *, progress: object) -> Path:
        assert callable(progress)
        progress(Progress("Downloading", 0.5))
        return tmp_path

    monkeypatch.setattr(model_store, "resolve_model", resolve)
    code, out, err = run("prepare-model")
    assert (code, out) == (0, f"{tmp_path}\n")
    assert "Downloading" in err
    assert run("prepare-model", "--quiet") == (0, f"{tmp_path}\n", "")


def test_prepare_model_for_programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(model_store, "resolve_model", lambda name, *, progress: tmp_path)
    code, out, err = run("prepare-model", "--quiet", "--json")
    assert (code, json.loads(out), err) == (0, {"model": str(tmp_path)}, "")


@pytest.mark.parametrize(
    ("report", "says"), [(GOOD, ""), (BAD, "sglang: not installed: install it\n")], ids=["good", "bad"]
)
def test_a_quiet_doctor_says_only_what_is_wrong(
    report: Report, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "examine", lambda **kwargs: report)
    code, out, err = run("doctor", "--quiet")
    assert code == (0 if report.ok else 1) and err == ""
    assert out == says


def test_a_quiet_server_prepares_in_silence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[object] = []

    def resolve(name: str | None, *, progress: object) -> Path:
        assert callable(progress)
        progress(Progress("Downloading", 0.5))
        return tmp_path

    monkeypatch.setattr(model_store, "resolve_model", resolve)
    monkeypatch.setattr("flashagents_runtime.serve.serve", lambda *arguments: seen.append(arguments[1]))
    assert run("serve", "--quiet", "--port", "1") == (0, "", "")
    code, out, err = run("serve", "--port", "1")
    assert (code, out) == (0, "") and "Downloading" in err
    assert seen == [["--port", "1"]] * 2, "the rest is SGLang's"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--bogus", "3"], "has no argument '--bogus'"),
        (["--tp_size=2"], "no argument '--tp_size'; did you mean --tp-size?"),
        (["--max-total-tokns", "9"], "did you mean --max-total-tokens?"),
        (["--max-body-mb", "9"], "did you mean --max-body-mib?"),
        (["my/model", "--port", "1"], "'my/model' belongs to no flag; give a model as --model"),
    ],
)
def test_a_flag_that_sglang_has_not_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    monkeypatch.setattr(model_store, "resolve_model", lambda *args, **kwargs: pytest.fail("prepared a model"))
    monkeypatch.setattr(sys, "argv", ["flashagents", "serve", *arguments])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    error = capsys.readouterr().err
    assert caught.value.code == 1 and message in error and error.count("\n") == 1


@pytest.mark.parametrize(
    "argv",
    [
        ["--port", "1", "--tp", "2", "--host=::", "--json-model-override-args", '{"a": -1}'],
        ["--random-seed", "-1", "--no-enable-lora", "--lora-sharing", "base", "--lora-paths", "a=b", "c=d"],
        ["--tensor-parallel-size", "2", "--config", "f.yaml", "-h"],
    ],
)
def test_flags_of_sglang_in_all_their_forms(argv: list[str]) -> None:
    check_flags(argv)


def test_our_errors_are_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def resolve(name: str | None, *, progress: object) -> Path:
        raise ModelDownloadError("no network: do this")

    monkeypatch.setattr(model_store, "resolve_model", resolve)
    monkeypatch.setattr(sys, "argv", ["flashagents", "prepare-model", "--quiet"])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 1
    assert capsys.readouterr().err == "flashagents: no network: do this\n"


def test_a_wrong_argument_is_one_line_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["flashagents", "top", "nonsense"])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    error = capsys.readouterr().err
    assert caught.value.code == 1 and error.startswith("flashagents: ") and error.count("\n") == 1


def test_as_a_module() -> None:
    command = [sys.executable, "-m", "flashagents_runtime", "--version"]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    assert answer.stdout == f"flashagents-autogen {__version__}\n"


def test_an_interrupt_is_quiet() -> None:
    code = (
        "import signal, sys, time\nfrom flashagents_runtime import cli, model_store\n"
        # a parent that runs in the background may have left SIGINT ignored
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "def resolve(name, *, progress):\n    print('ready', flush=True)\n    time.sleep(60)\n"
        "model_store.resolve_model = resolve\nsys.argv = ['flashagents', 'prepare-model']\ncli.main()\n"
    )
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None and child.stderr is not None
        assert child.stdout.readline() == "ready\n"
        os.kill(child.pid, signal.SIGINT)
        assert child.wait(30) == cli.INTERRUPTED
        assert "Traceback" not in child.stderr.read()


def test_importing_the_command_line_is_light() -> None:
    code = "import sys, flashagents_runtime.cli, flashagents_runtime.doctor; print('torch' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout == "False\n"


@pytest.mark.parametrize("as_json", [False, True])
def test_trained_roles_are_told(as_json: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def train(model: Path, files: dict[str, Path], out: Path, recipe: Recipe, **more: object) -> list[Any]:
        return [TrainedRole(role=r, recipe=recipe, pairs=2, digest="d", losses=[2.0, 0.5]) for r in files]

    monkeypatch.setattr(role_training, "train_roles", train)
    monkeypatch.setattr(model_store, "resolve_model", lambda *args, **kwargs: tmp_path)
    words = ["train-roles", "plan=a.json", "act=b.json", "--out", "adapters", "--rank", "4", "--shared-a"]
    code, out, err = run(*words, *(["--json"] if as_json else []))
    assert code == 0 and err == ""
    if as_json:
        told = json.loads(out)
        assert [role["adapter"] for role in told.values()] == ["adapters/plan", "adapters/act"]
        assert told["act"]["losses"] == [2.0, 0.5] and told["act"]["recipe"]["rank"] == 4
    else:
        assert out.splitlines() == ["adapters/plan", "adapters/act"]
