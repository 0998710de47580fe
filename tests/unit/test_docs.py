"""The documentation's code: every block of Python runs as it stands, every command names what exists."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import prometheus_client
import pytest
import typer

import flashagents_autogen
from flashagents_autogen import FlashAgentsChatCompletionClient
from flashagents_runtime import GenerateRequest, Reply, ScriptedEngine, cli, embedded
from flashagents_runtime.trace import events

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
_CONSOLE = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(pages: list[Path]) -> list[Any]:
    """Each block of Python, with its page and line as the test's id."""
    out = []
    for page in pages:
        text = page.read_text()
        for match in _BLOCK.finditer(text):
            line = text.count("\n", 0, match.start()) + 2
            out.append(pytest.param(match[1], id=f"{page.name}:{line}"))
    return out


ENGINES: list[ScriptedEngine] = []  # of the block that runs


def answer(request: GenerateRequest) -> str | Reply:
    """What all models of the documentation say: names of speakers where one is to be selected."""
    return "critic" if b"role" in bytes(min(i, 255) for i in request.input_ids[-900:]) else "Eiffel Tower."


class Scripted(FlashAgentsChatCompletionClient):
    """A client whose engine is scripted, wherever it would have to be started or reached."""

    def __init__(self, model: str | None = None, **kwargs: Any) -> None:
        if "engine" not in kwargs:
            for name in ("engine_args", "engine_url", "api_key"):
                kwargs.pop(name, None)
            ENGINES.append(ScriptedEngine([answer] * 50))
            kwargs["engine"] = ENGINES[-1]
        super().__init__(**kwargs)


class ScriptedEmbedded(ScriptedEngine):
    """In the place of `EmbeddedEngine`."""

    def __init__(self, model: str | None = None, **engine_args: Any) -> None:
        super().__init__([answer] * 50)
        self.adapters = set(engine_args.get("lora_paths", ()))

    async def load_lora(self, name: str, path: str) -> None:
        self.adapters.add(name)

    async def unload_lora(self, name: str) -> None:
        self.adapters.remove(name)

    async def __aenter__(self) -> ScriptedEmbedded:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


@pytest.fixture
def readers_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder of its own, scripted engines, and afterwards nothing that a block has installed or opened."""
    servers = []

    def serve(port: int) -> None:
        servers.append(start_server(0, "127.0.0.1", registry))

    ENGINES.clear()
    start_server, registry = prometheus_client.start_http_server, prometheus_client.CollectorRegistry()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(flashagents_autogen, "FlashAgentsChatCompletionClient", Scripted)
    monkeypatch.setattr(embedded, "EmbeddedEngine", ScriptedEmbedded)
    monkeypatch.setattr(prometheus_client, "start_http_server", serve)
    monkeypatch.setattr(prometheus_client, "REGISTRY", registry)
    monkeypatch.setattr(events, "_sinks", ())
    yield
    flashagents_autogen.uninstall()
    for server, thread in servers:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.usefixtures("readers_place")
@pytest.mark.parametrize("source", blocks(PAGES))
def test_it_runs_as_a_reader_would_paste_it(source: str) -> None:
    """Each block by itself, as a script, with a scripted engine in the place of a real one."""
    if 'save("timeline.html")' in source:
        pytest.importorskip("plotly")
    exec(compile(source, "block", "exec"), {"__name__": "__main__"})
    if "asyncio.run(main())" in source and ".start(" not in source and ENGINES:
        assert any(engine.requests for engine in ENGINES)


def docstring_examples() -> list[Any]:
    """The `>>>` lines of each docstring, as source; the reference shows them."""
    out = []
    for folder in ("flashagents_autogen", "runtime", "kernels"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
                text = (ast.get_docstring(node) or "") if isinstance(node, kinds) else ""
                lines = [line.strip() for line in text.splitlines()]
                if code := [line[4:] for line in lines if line.startswith((">>> ", "... "))]:
                    name = getattr(node, "name", path.stem)
                    out.append(pytest.param("\n".join(code), id=f"{path.stem}.{name}"))
    return out


@pytest.mark.parametrize("source", docstring_examples())
def test_a_docstrings_example_is_python(source: str) -> None:
    compile(source, "example", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def commands(pages: list[Path]) -> list[Any]:
    """Each command of a console block, without its comment."""
    out = []
    for page in pages:
        for block in _CONSOLE.findall(page.read_text()):
            for line in block.replace("\\\n", " ").splitlines():
                if line.startswith("$ "):
                    command = re.sub(r"\s+#.*", "", line[2:])
                    out.append(pytest.param(command, id=f"{page.parent.name}/{page.name}: {command}"))
    return out


READMES = [*(ROOT / "examples").rglob("README.md"), *(ROOT / "benchmarks").rglob("README.md")]


@pytest.mark.parametrize("command", commands([*PAGES, *READMES]))
def test_a_command_names_what_exists(command: str) -> None:
    words = shlex.split(command)
    while re.match(r"[A-Z_]+=", words[0]):  # environment
        words.pop(0)
    program, *words = words
    flags = [word.partition("=")[0] for word in words if word.startswith("--")]
    if program == "make":
        assert re.search(rf"^{words[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    elif program.endswith("python") and words[0] == "-m":
        path = ROOT / f"{words[1].replace('.', '/')}.py"
        assert path.exists()
        source = "".join(file.read_text() for file in path.parent.glob("*.py"))
        assert [flag for flag in flags if f'"{flag}"' not in source] == []
    elif program.endswith("python"):
        source = (ROOT / words[0]).read_text()
        assert [flag for flag in flags if f'"{flag}"' not in source] == []
    elif program.endswith("flashagents"):
        group = typer.main.get_command(cli.app)
        chosen = group.commands[words[0]]  # type: ignore[attr-defined]
        known = {option for parameter in chosen.params for option in parameter.opts}
        open_ended = chosen.context_settings.get("ignore_unknown_options")
        assert open_ended or set(flags) <= known
    else:
        assert (ROOT / program).exists() or Path(program).name in ("pip", "uv", "flashagents", "git")


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
