"""The set-up script, with its installations replaced: what is done again, and what is never half-used."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "setup_env.py"


@pytest.fixture(scope="module")
def setup_env() -> ModuleType:
    spec = importlib.util.spec_from_file_location("setup_env", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["setup_env"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def machine(setup_env: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """An empty place for an environment, and a list of the commands that would have run."""
    commands: list[str] = []
    fail_on: list[str] = []

    def call(command: list[str], log: Path, extra_environment: dict[str, str] | None = None) -> None:
        text = " ".join(command)
        commands.append(text)
        log.touch()
        if "-m venv" in text:
            python = Path(command[-1]) / "bin" / "python"
            python.parent.mkdir(parents=True)
            python.touch()
        if any(word in text for word in fail_on):
            log.write_text("the reason\n")
            raise setup_env.SetupError("failed")

    monkeypatch.setattr(setup_env, "call", call)
    monkeypatch.setattr(setup_env, "uv_settings", lambda python: {})
    monkeypatch.setattr(setup_env, "SPACE_NEEDED", {"cpu": 0, "gpu": 0})

    def prepare(level: str, device: str = "cpu") -> list[str]:
        commands.clear()
        setup_env.prepare(setup_env.Environment(tmp_path / "venv", device), setup_env.LEVELS[level])
        return list(commands)

    return SimpleNamespace(prepare=prepare, fail_on=fail_on, venv=tmp_path / "venv")


def test_the_second_run_does_nothing(machine: SimpleNamespace) -> None:
    first = machine.prepare("run")
    assert "-m venv" in first[0]
    assert any("torch==" in command for command in first)
    assert machine.prepare("run") == []


def test_tests_add_only_their_tools(machine: SimpleNamespace) -> None:
    machine.prepare("run")
    tools, train, docs = machine.prepare("test")
    assert tools.endswith("test.txt") and "--no-deps" not in tools
    assert train.endswith("train.txt") and "--no-deps" in train
    assert docs.endswith("docs.txt"), "a test builds the documentation"


def test_the_documentation_needs_no_test_tools(machine: SimpleNamespace) -> None:
    machine.prepare("run")
    [added] = machine.prepare("docs")
    assert added.endswith("docs.txt")


def test_a_changed_requirement_runs_its_step_alone(
    machine: SimpleNamespace, setup_env: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requirements = tmp_path / "requirements"
    requirements.mkdir()
    for file in setup_env.REQUIREMENTS.glob("*.txt"):
        (requirements / file.name).write_bytes(file.read_bytes())
    monkeypatch.setattr(setup_env, "REQUIREMENTS", requirements)
    machine.prepare("test")
    (requirements / "cpu.txt").write_text("more==1\n")
    again = machine.prepare("test")
    assert len(again) == 1
    assert again[0].endswith("cpu.txt")


def test_a_killed_set_up_starts_from_nothing(machine: SimpleNamespace) -> None:
    machine.prepare("run")
    (machine.venv / ".flashagents" / "installing").touch()
    (machine.venv / "half").touch()
    assert "-m venv" in machine.prepare("run")[0]
    assert not (machine.venv / "half").exists()


def test_a_failed_step_shows_its_log_and_starts_from_nothing(
    machine: SimpleNamespace, setup_env: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.fail_on.append("torch==")
    with pytest.raises(setup_env.SetupError):
        machine.prepare("run")
    assert "the reason" in capsys.readouterr().err
    machine.fail_on.clear()
    assert "-m venv" in machine.prepare("run")[0]


def test_without_uv_pip_goes_on(machine: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    machine.fail_on.append("tools.txt")
    commands = machine.prepare("run")
    assert "uv is not to be had" in capsys.readouterr().err
    assert all("-m pip install" in command for command in commands[1:])


def test_someone_elses_environment_is_left_alone(machine: SimpleNamespace, setup_env: ModuleType) -> None:
    machine.venv.mkdir()
    (machine.venv / "pyvenv.cfg").touch()
    with pytest.raises(setup_env.SetupError, match="was not made by this set-up"):
        machine.prepare("run")
    assert (machine.venv / "pyvenv.cfg").exists()


def test_devices_do_not_mix(machine: SimpleNamespace) -> None:
    machine.prepare("run")
    commands = machine.prepare("run", "gpu")
    assert "-m venv" in commands[0]
    assert any("--no-deps -r" in command and command.endswith("gpu.txt") for command in commands)
    assert "-m venv" in machine.prepare("run", "cpu")[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda module, patch: patch.setattr(module.platform, "machine", lambda: "arm64"), "Linux on x86-64"),
        (
            lambda module, patch: patch.setattr(module.platform, "libc_ver", lambda: ("glibc", "2.31")),
            "glibc 2.34",
        ),
        (lambda module, patch: patch.setattr(module, "SPACE_NEEDED", {"cpu": 1 << 60}), "free disk"),
    ],
    ids=["system", "libc", "disk"],
)
def test_what_cannot_work_is_said_first(
    setup_env: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[ModuleType, pytest.MonkeyPatch], None],
    message: str,
) -> None:
    change(setup_env, monkeypatch)
    with pytest.raises(setup_env.SetupError, match=message):
        setup_env.check_machine("cpu", tmp_path)


def test_the_device_can_be_chosen(setup_env: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLASHAGENTS_DEVICE", "gpu")
    assert setup_env.detect_device() == "gpu"
    monkeypatch.setenv("FLASHAGENTS_DEVICE", "tpu")
    with pytest.raises(setup_env.SetupError, match="must be `cpu` or `gpu`"):
        setup_env.detect_device()


def test_pips_configuration_reaches_uv(setup_env: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    listing = (
        "global.index-url='https://index.example/simple'\n"
        ":env:.cert='/certificates.pem'\n"
        "global.extra-index-url='file:///wheels https://more.example/simple'\n"
    )
    monkeypatch.setattr(setup_env.subprocess, "run", lambda *a, **k: SimpleNamespace(stdout=listing))
    for name in ("UV_DEFAULT_INDEX", "UV_INDEX", "SSL_CERT_FILE"):
        monkeypatch.delenv(name, raising=False)
    assert setup_env.uv_settings(Path("python")) == {
        "UV_DEFAULT_INDEX": "https://index.example/simple",
        "UV_INDEX": "https://more.example/simple",
        "SSL_CERT_FILE": "/certificates.pem",
    }
