"""AutoGen's documented examples: programs from docstrings of the installed package, one import changed.

They are read from the package when the tests run; nothing of them is kept here.
"""

from __future__ import annotations

import ast
import builtins
import re
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock, CodeExecutor, CodeResult
from autogen_core.tools import FunctionTool, StaticWorkbench

import flashagents_autogen
from flashagents_runtime import Engine

OURS = "from flashagents_autogen import FlashAgentsChatCompletionClient as "
CLIENT = re.compile(r"from autogen_ext\.models\.\w+ import (\w+ChatCompletionClient)$", re.MULTILINE)
TEAMS = re.compile(r"from autogen_agentchat\.teams import ([\w, ]+)$", re.MULTILINE)
BLOCK = re.compile(r"( *)\.\. code-block:: python")


@dataclass(frozen=True)
class Example:
    """One program, named after the class or method that it documents, and its place there."""

    name: str
    source: str

    @property
    def calls_a_model(self) -> bool:
        """Whether it builds a model client."""
        return CLIENT.search(self.source) is not None

    def swapped(self, *, teams: bool = False) -> str:
        """The program with our client imported; with `teams`, our teams too."""
        source = CLIENT.sub(OURS + r"\1", self.source)
        return TEAMS.sub(_our_teams, source) if teams else source


def _our_teams(line: re.Match[str]) -> str:
    names = [name.strip() for name in line.group(1).split(",")]
    ours = [name for name in names if hasattr(flashagents_autogen, f"Flash{name}")]
    lines = [f"from flashagents_autogen import Flash{name} as {name}" for name in ours]
    others = [name for name in names if name not in ours]
    if others:
        lines.append(f"from autogen_agentchat.teams import {', '.join(others)}")
    return "\n".join(lines)


def documented() -> dict[str, Example]:
    """All programs of `autogen_agentchat`, by name."""
    spec = find_spec("autogen_agentchat")
    assert spec is not None and spec.submodule_search_locations
    found: dict[str, Example] = {}
    for file in sorted(Path(spec.submodule_search_locations[0]).rglob("*.py")):
        for name, text in _docstrings(ast.parse(file.read_text(encoding="utf-8")), ()):
            for i, source in enumerate(_blocks(text)):
                found[f"{name}-{i}"] = Example(f"{name}-{i}", source)
    return found


def _docstrings(node: ast.AST, path: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(child)
            if text:
                yield ".".join((*path, child.name)), text
            yield from _docstrings(child, (*path, child.name))


def _blocks(text: str) -> Iterator[str]:
    lines = text.splitlines()
    for i, line in enumerate(lines):
        found = BLOCK.match(line)
        if found is None:
            continue
        block = []
        for inner in lines[i + 1 :]:
            if inner.strip() and len(inner) - len(inner.lstrip()) <= len(found.group(1)):
                break
            block.append(inner)
        yield textwrap.dedent("\n".join(block)).strip("\n") + "\n"


def run(source: str, engine: Engine, monkeypatch: pytest.MonkeyPatch, **arguments: Any) -> None:
    """Run a program as a script; whatever clients it builds speak to this engine.

    Args:
        source: the program.
        engine: of its clients.
        arguments: of its clients; the names of other companies' models are left out.
    """
    stock = flashagents_autogen.FlashAgentsChatCompletionClient

    def build(model: str | None = None, **own: Any) -> Any:
        return stock(engine=engine, **{**own, **arguments})

    module = ModuleType("documented_example")
    with monkeypatch.context() as patch:
        patch.setattr(flashagents_autogen, "FlashAgentsChatCompletionClient", build)
        patch.setitem(sys.modules, module.__name__, module)  # where pydantic looks for what annotations mean
        module.__dict__["__name__"] = "__main__"
        exec(compile(source, "documented_example", "exec", dont_inherit=True), module.__dict__)


# ---- stand-ins for what the tests have not: Docker, a server of tools, a person


class Executor(CodeExecutor):
    """Says that the code has printed a greeting; runs nothing."""

    def __init__(self, work_dir: str) -> None:
        self.ran: list[str] = []

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def restart(self) -> None: ...

    async def execute_code_blocks(
        self, code_blocks: list[CodeBlock], cancellation_token: CancellationToken
    ) -> CodeResult:
        self.ran += [block.code for block in code_blocks]
        return CodeResult(exit_code=0, output="Hello World!\n")


def fetch(url: str) -> str:
    """Fetch a page."""
    return f"{url}: a page about agents."


class ToolServer(StaticWorkbench):
    """A workbench with one tool."""

    def __init__(self, server_params: Any) -> None:
        super().__init__([FunctionTool(fetch, description="Fetch a page.")])


def stand_in(monkeypatch: pytest.MonkeyPatch, typed: Sequence[str] = ()) -> None:
    """Put the stand-ins where the programs import them from; `typed` is what the person types."""
    docker = ModuleType("autogen_ext.code_executors.docker")
    docker.DockerCommandLineCodeExecutor = Executor  # type: ignore[attr-defined]
    mcp = ModuleType("autogen_ext.tools.mcp")
    mcp.McpWorkbench = ToolServer  # type: ignore[attr-defined]
    mcp.StdioServerParams = dict  # type: ignore[attr-defined]
    for name in ("autogen_ext", "autogen_ext.code_executors", "autogen_ext.tools"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    for module in (docker, mcp):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    lines = iter(typed)
    monkeypatch.setattr(builtins, "input", lambda prompt="": next(lines))


# ---- what they print

CHANGES = (
    (r"\b(full_message_)?id='[-\w]+'", "id"),
    (r"created_at=datetime\.datetime\([^)]*\)", "created_at"),
    (r"models_usage=\w+\([^)]*\)", "models_usage"),
)


def shown(text: str) -> str:
    """What a program has printed, without ids, times, and how much came from the cache."""
    for pattern, put in CHANGES:
        text = re.sub(pattern, put, text)
    return text
