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
