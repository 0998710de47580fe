"""The example programs as modules, with a scripted engine in place of a real one."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from flashagents_autogen import FlashAgentsChatCompletionClient
from flashagents_runtime import ScriptedEngine

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


def load_example(name: str) -> ModuleType:
    """`examples/<name>/main.py`, anew."""
    return _load(f"example_{name}", EXAMPLES / name / "main.py")


def load_benchmark(path: str) -> ModuleType:
    """`benchmarks/<path>`, anew; it finds its neighbours by itself."""
    return _load(f"benchmark_{Path(path).stem}", ROOT / "benchmarks" / path)


def _load(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where pydantic looks for what annotations mean
    spec.loader.exec_module(module)
    return module


def scripted_example(name: str, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The same, and whatever client it builds speaks to this engine."""
    module = load_example(name)

    def build(model: str | None = None, **arguments: object) -> FlashAgentsChatCompletionClient:
        return FlashAgentsChatCompletionClient(engine=engine, **arguments)

    monkeypatch.setattr(module, "FlashAgentsChatCompletionClient", build)
    return module
