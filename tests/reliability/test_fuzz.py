"""`make fuzz` without guidance, for a second each: its targets work, and what they find fails a test."""

from __future__ import annotations

import importlib.util
import sys
import types
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def load() -> types.ModuleType:
    path = list(sys.path)
    spec = importlib.util.spec_from_file_location("fuzz", ROOT / "scripts" / "fuzz.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.path[:] = path
    return module


fuzz = load()


@pytest.mark.parametrize("name", list(fuzz.TARGETS))
@pytest.mark.filterwarnings("ignore")  # numpy warns of the arithmetic of broken tensors
def test_changed_inputs_raise_nothing_but_documented_errors(name: str) -> None:
    assert fuzz.unguided(name, 1.0, seed=5) > 10


@pytest.mark.parametrize("name", list(fuzz.TARGETS))
def test_the_seeds_are_sound(name: str) -> None:
    target, seeds = fuzz.TARGETS[name]()
    for seed in seeds:
        target(seed)


def test_a_crash_is_told_with_its_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(data: bytes) -> None:
        if data == b"changed":
            raise ZeroDivisionError

    monkeypatch.setitem(fuzz.TARGETS, "broken", lambda: (broken, [b"seed"]))
    monkeypatch.setattr(fuzz, "change", lambda data, rng: b"changed")
    with pytest.raises(ZeroDivisionError):
        fuzz.unguided("broken", 1.0)
    assert "this input is a crash" in capsys.readouterr().err
