"""The Python of the documentation compiles, and that of the README and the client's page runs."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import flashagents_autogen
from flashagents_autogen import FlashAgentsChatCompletionClient
from flashagents_runtime import ScriptedEngine

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(pages: list[Path]) -> list[Any]:
    """Each block of Python, with its page and line as the test's id."""
    out = []
    for page in pages:
        text = page.read_text()
        for match in _BLOCK.finditer(text):
            line = text.count("\n", 0, match.start()) + 2
            out.append(pytest.param(match[1], id=f"{page.name}:{line}"))
    return out


def compiled(source: str) -> Any:
    return compile(source, "block", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.mark.parametrize("source", blocks(PAGES))
def test_it_compiles(source: str) -> None:
    compiled(source)


@pytest.mark.parametrize("source", blocks([ROOT / "README.md", ROOT / "docs" / "client.md"]))
def test_it_runs(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a scripted engine in the place of every engine that would have to be started."""
    engines: list[ScriptedEngine] = []

    def build(*args: Any, **kwargs: Any) -> FlashAgentsChatCompletionClient:
        if "engine" in kwargs:
            return FlashAgentsChatCompletionClient(*args, **kwargs)
        kwargs = {
            k: v for k, v in kwargs.items() if k not in ("model", "engine_args", "engine_url", "api_key")
        }
        engines.append(ScriptedEngine(["Eiffel Tower, Louvre, Seine."] * 9))
        return FlashAgentsChatCompletionClient(engine=engines[-1], **kwargs)

    monkeypatch.setattr(flashagents_autogen, "FlashAgentsChatCompletionClient", build)
    result = eval(compiled(source), {"__name__": "__main__"})
    if inspect.iscoroutine(result):
        asyncio.run(result)
    if "asyncio.run(main())" in source:
        assert len(engines) == 1 and len(engines[0].requests) == 1


def names_in(file: str) -> set[str]:
    tree = ast.parse((ROOT / "tests" / "unit" / file).read_text())
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    return {node.name for node in tree.body if isinstance(node, functions) and node.name.startswith("test_")}


def test_every_test_that_the_clients_page_names_is_there() -> None:
    named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", (ROOT / "docs" / "client.md").read_text())
    assert len(named) > 60
    missing = [f"{file}::{name}" for file, name in named if name not in names_in(file)]
    assert missing == []


def test_every_test_of_the_contract_is_on_the_clients_page() -> None:
    named = set(
        re.findall(r"`test_client_contract\.py::(test_\w+)`", (ROOT / "docs" / "client.md").read_text())
    )
    assert named == names_in("test_client_contract.py")
