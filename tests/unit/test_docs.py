"""The documentation's code: blocks and docstrings run as they stand, with scripted engines.

What is to be typed into a shell is in `tests/examples/test_documented_commands.py`.
"""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import json
import re
import sys
import types
from collections.abc import AsyncIterator, Iterator
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import prometheus_client
import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.teams import DiGraphBuilder

from flashagents_autogen import FlashRoundRobinGroupChat
from flashagents_runtime import GenerateRequest
from flashagents_runtime.chat import ChatMessage
from flashagents_runtime.chat_tokenizer import ByteChatTokenizer
from flashagents_runtime.handoff import CutRules, Downstream, Prefiller, forecast_messages, slot_marker
from helpers.doc_blocks import ROOT, Block, blocks
from helpers.stand_ins import SLIDES, StandIn, StandInClient, stand_ins

BLOCKS = blocks()
LANGUAGES = {
    "python": "runs here",
    "console": "is typed in tests/examples/test_documented_commands.py",
    "text": "a drawing or a formula",
}

# Show the client of another company, which is replaced: its package is not needed here.
BEFORE_THE_CHANGE = ("examples/notebooks/01_swap_your_client.ipynb",)


def test_there_is_a_test_for_each_kind_of_block() -> None:
    """Where another kind is needed (`json`, `toml`), have it read by what reads it, and name it above."""
    assert [str(block) for block in BLOCKS if block.language not in LANGUAGES] == []


@pytest.fixture
def readers_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[StandIn]]:
    """A folder of its own and scripted engines; afterwards nothing that was opened is left."""
    servers = []

    def serve(port: int) -> None:
        servers.append(start_server(0, "127.0.0.1", registry))

    start_server, registry = prometheus_client.start_http_server, prometheus_client.CollectorRegistry()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(prometheus_client, "start_http_server", serve)
    monkeypatch.setattr(prometheus_client, "REGISTRY", registry)
    with stand_ins(monkeypatch) as engines:
        yield engines
    for server, thread in servers:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.language == "python"], ids=str)
def test_it_runs_as_a_reader_would_paste_it(block: Block, readers_place: list[StandIn]) -> None:
    """Each block by itself, as a script."""
    program = compile(block.text, "block", "exec")
    if block.page in BEFORE_THE_CHANGE:
        return
    exec(program, {"__name__": "__main__"})
    starts = "asyncio.run(main())" in block.text and ".start(" not in block.text
    if starts and "ChatCompletionClient(" in block.text:
        assert any(engine.requests for engine in readers_place)


# ---- docstrings, which the reference shows


def docstring_examples() -> list[Any]:
    """The docstrings with `>>>` lines, each with its module and the name of what it documents."""
    out = []
    for folder in ("", "runtime", "kernels"):
        for path in sorted((ROOT / folder).glob("flashagents_*/**/*.py")):
            module = ".".join(path.relative_to(ROOT / folder).with_suffix("").parts).removesuffix(".__init__")
            for node in ast.walk(ast.parse(path.read_text())):
                kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
                text = (ast.get_docstring(node) or "") if isinstance(node, kinds) else ""
                if ">>> " in text:
                    name = getattr(node, "name", "")
                    marks = [pytest.mark.long] if folder == "kernels" else []  # imports torch
                    out.append(pytest.param(module, text, id=f"{path.stem}.{name}", marks=marks))
    return out


@pytest.fixture
async def names(readers_place: list[StandIn]) -> AsyncIterator[dict[str, Any]]:
    """What the examples take for granted: an application's agents, a team, an engine, and so on."""
    client = StandInClient(max_tokens=40)
    people = ("planner", "critic", "writer", "novelty", "soundness", "clarity", "meta_reviewer")
    agents = {name: AssistantAgent(name, client) for name in people}
    builder = DiGraphBuilder()
    builder.add_node(agents["planner"]).add_node(agents["critic"])
    builder.add_edge(agents["planner"], agents["critic"])
    engine, tokenizer = StandIn(), ByteChatTokenizer()
    prefiller = Prefiller(engine)
    told = [ChatMessage(role="user", content=slot_marker(0), source="planner")]
    rules = CutRules(tokenizer)

    async def texts() -> AsyncIterator[str]:
        yield json.dumps(SLIDES)

    yield {
        **agents,
        "AssistantAgent": AssistantAgent,
        "ChatMessage": ChatMessage,
        "EmbeddedEngine": StandIn,
        "FlashAgentsChatCompletionClient": StandInClient,
        "builder": builder,
        "client": client,
        "engine": engine,
        "ids": [1, 2, 3],
        "paper": "A paper.",
        "prometheus_client": prometheus_client,
        "request": GenerateRequest(input_ids=[1, 2, 3]),
        "rules": rules,
        "show": len,
        "start": len,
        "stream": ["Hel", "lo"],
        "team": FlashRoundRobinGroupChat([agents["planner"], agents["critic"]], max_turns=2),
        "texts": texts(),
        "tokenizer": tokenizer,
        # Of a hand-off without AutoGen; `writer` is an agent elsewhere.
        "target": Downstream(prefiller.open(), forecast_messages(tokenizer.render, told), rules),
    }
    await prefiller.close()


@pytest.mark.parametrize(("module", "text"), docstring_examples())
async def test_a_docstrings_example_runs(module: str, text: str, names: dict[str, Any]) -> None:
    """Line by line, as asyncio's own prompt would; what is shown is what stands there."""
    if module.startswith("flashagents_runtime.handoff"):
        names["writer"] = names["target"]
    names = {**vars(importlib.import_module(module)), **names}
    for example in doctest.DocTestParser().get_examples(text):
        code = compile(example.source, "example", "single", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        shown: list[object] = []
        with patch.object(sys, "displayhook", shown.append):
            running = types.FunctionType(code, names)()
            if inspect.iscoroutine(running):
                await running
        assert not example.want or repr(shown[-1]) == example.want.strip()


@cache
def names_in(file: str) -> set[str]:
    tree = ast.parse((ROOT / "tests" / "unit" / file).read_text())
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    return {node.name for node in tree.body if isinstance(node, functions) and node.name.startswith("test_")}


def test_every_test_that_the_page_of_the_clients_tests_names_is_there() -> None:
    named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", (ROOT / "docs" / "client-tests.md").read_text())
    assert len(named) > 60
    missing = [f"{file}::{name}" for file, name in named if name not in names_in(file)]
    assert missing == []


def test_every_test_of_the_contract_is_on_it() -> None:
    named = set(
        re.findall(r"`test_client_contract\.py::(test_\w+)`", (ROOT / "docs" / "client-tests.md").read_text())
    )
    assert named == names_in("test_client_contract.py")
