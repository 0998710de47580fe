"""A missing extra is named; another import error is left as it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flashagents_runtime import _extras


def test_what_is_there_is_imported() -> None:
    assert _extras.require("json", "gpu") is json


def test_what_is_missing_is_named_with_its_extra() -> None:
    with pytest.raises(
        ImportError, match=r"no_such_package is not installed.*flashagents-autogen\[gpu\]"
    ) as caught:
        _extras.require("no_such_package.inner", "gpu")
    assert caught.value.name == "no_such_package.inner"


def test_another_extra_is_named_too() -> None:
    assert "flashagents-autogen[plots]" in _extras.missing_message(["a", "b"], "plots")


def test_a_broken_module_raises_its_own_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_one.py").write_text("import no_such_library")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_library"):
        _extras.require("broken_one", "gpu")


def test_the_command_in_the_advice_names_a_file_of_the_checkout() -> None:
    root = Path(__file__).parents[2]
    assert (root / "requirements" / "gpu-overrides.txt").exists()
    assert "requirements/gpu-overrides.txt" in _extras.HOW_TO["gpu"]
