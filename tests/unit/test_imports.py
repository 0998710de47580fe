"""Imports go down only, and an application that imports us does not import SGLang or torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

import flashagents_autogen
import flashagents_runtime


def loaded_by(module: str, *names: str) -> list[str]:
    code = f"import sys, {module}; print(*[m for m in {names!r} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return out.stdout.split()


def test_the_client_imports_neither_sglang_nor_torch_nor_transformers() -> None:
    assert loaded_by("flashagents_autogen", "sglang", "torch", "transformers", "tokenizers") == []


@pytest.mark.parametrize(
    "module", ["flashagents_runtime", "flashagents_runtime.chat_tokenizer", "flashagents_runtime.embedded"]
)
def test_the_runtime_imports_no_autogen(module: str) -> None:
    assert loaded_by(module, "autogen_core", "autogen_agentchat", "sglang", "torch") == []


def test_what_is_imported_late_is_listed_too() -> None:
    listed = dir(flashagents_autogen)
    assert {*flashagents_autogen.__all__, "groupchat", "teams", "__doc__", "__file__"} <= {*listed}
    assert not {"Any", "TYPE_CHECKING"} & {*listed}


@pytest.mark.parametrize("package", [flashagents_autogen, flashagents_runtime])
def test_what_is_exported_exists_and_is_sorted(package: object) -> None:
    exported = package.__all__  # type: ignore[attr-defined]
    assert list(exported) == sorted(set(exported))
    assert all(hasattr(package, name) for name in exported)
