"""What the documentation tells people to type is typed here, block by block, and runs as far as it can.

`helpers.reader` says how: bash runs the lines, and the programs that they name run in this process, with a
scripted engine where a real one would be started. `NOT_RUN` is the whole list of what goes no further than
its own parser of arguments, with the reasons. Blocks of Python are in `tests/unit/test_docs.py`.
"""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from flashagents_autogen import FlashAgentsChatCompletionClient
from flashagents_runtime import ScriptedEngine, cli, model_store
from flashagents_runtime.engine_args import known
from flashagents_runtime.serve import server_argv
from helpers.doc_blocks import ROOT, Block, blocks, inline_commands
from helpers.reader import Call, Reader
from helpers.sglang_server import FakeSGLang
from helpers.stand_ins import stand_ins
from helpers.threads import one_thread  # noqa: F401
from helpers.tiny_roles import tiny_pairs, tiny_text_model
from helpers.traces import made_up

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]  # on a loaded machine; alone none takes 6 s

BLOCKS = [block for block in blocks() if block.language == "console"]
INLINE = inline_commands()

GPU = "needs a GPU"
NOT_RUN = {
    r"scripts/setup_env\.py": "installs packages; tests/unit/test_setup_env.py",
    r"scripts/run_tests\.py (?!.*tests/)": "runs this test; what it names runs",
    r"-m mkdocs|mkdocs build": "tests/pages/test_site.py builds the site",
    r"pre-commit install": "installs a hook of git; not among the packages for tests",
    r"--shape qwen2\.5-7b": GPU,
    r"--setup (7b|32b)-|paper/(workflows|load|sjf|overhead)/run\.py": GPU,
    r"scripts/soak\.py --engine embedded": GPU + "; tests/reliability/test_soak.py",
    r"benchmarks/pressure/reckoned\.py": "minutes of a stepped scheduler; tests/sched/test_reckoned.py",
    r"benchmarks/lora_sharing/(gpu_check|run)\.py": GPU + "; tests/sched/test_lora_schemes.py",
    r"role_quality\.prepare .*--trajectories": "needs trajectories, which are their authors'",
    r"role_quality\.(train|evaluate|define|similarity|summarise)": "hours; tests/sched/test_role_quality.py",
    r"pip-audit|uv .*pip compile": "needs the package index",
    r"nvidia-smi": "asks for the name of the GPU",
    r"-m pip install .*--no-index": "installs wheels that are not here",
}
# Runs with a scripted engine, but no more of it than this; its rows go where no report finds them.
SMALLEST = {
    r"benchmarks/handoff/run\.py": "--only \"upstream=128, prefix=500, concurrency=1, heads='warm'\" "
    "--repeats 1 --out x.jsonl",
    r"benchmarks/paper/cascade/run\.py": "--prefix 500 --output 128 --repeats 1 "
    "--variants 'stock-lpm; ours' --out x.jsonl",
    r"benchmarks/pressure/run\.py": "--workflows 10 --forecasts none --repeats 1 --requests 20 --out x.jsonl",
    r"role_quality\.prepare": "--facts 12 2",
    r"examples/train_role_adapters": "--pairs 8 --epochs 1",
}


def listed(table: dict[str, Any], call: object) -> Any:
    """The entry whose pattern is found in the call, None for none."""
    return next((entry for pattern, entry in table.items() if re.search(pattern, str(call))), None)


# ---- what a block finds when it is typed


def pairs_of(*files: str) -> Callable[[Path], None]:
    def write(checkout: Path) -> None:
        for file in files:
            path = checkout / file
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps([{"input": p.input, "output": p.output} for p in tiny_pairs("plan")]))

    return write


def folders(*names: str) -> Callable[[Path], None]:
    return lambda checkout: [(checkout / name).mkdir(exist_ok=True) for name in names] and None


def parts_of_a_model(checkout: Path) -> None:
    """What `pack` would fetch, and what it packs."""
    fetched, data = checkout / "STATE" / "fetch", checkout / "STATE" / "work" / "data"
    fetched.mkdir(parents=True, exist_ok=True)
    data.mkdir(parents=True, exist_ok=True)
    (checkout / "OUT").mkdir(exist_ok=True)
    for name in ("model.gguf", "peft-0-py3-none-any.whl", "accelerate-0-py3-none-any.whl"):
        (fetched / name).write_bytes(b"x")


BEFORE: dict[str, Callable[[Path], None]] = {
    "docs/role-training.md": pairs_of("pairs/plan.json", "pairs/action.json", "pairs/reflect.json"),
    "examples/train_role_adapters/README.md": pairs_of("planner.json", "actor.json"),
    "benchmarks/handoff/README.md": folders("OUT_DIR"),
    "benchmarks/lora_sharing/README.md": folders("OUT_DIR"),
    "benchmarks/paper/README.md": folders("OUT_DIR"),
    "benchmarks/pressure/README.md": folders("OUT_DIR"),
    "benchmarks/role_quality/README.md": parts_of_a_model,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In the place of every model that is named."""
    folder = tiny_text_model(tmp_path_factory.mktemp("model"))
    template = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\\n' }}{% endfor %}"
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    return folder


@pytest.fixture
def reader(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    monkeypatch.setattr(model_store, "resolve_model", lambda name=None, **options: model)
    with stand_ins(monkeypatch):
        yield Reader(tmp_path)


# ---- how a program that a block names is run


def run(call: Call, reader: Reader, *, parse_only: bool = False) -> None:
    """As far as it can: at least its own parser understands the arguments."""
    program, *words = call.words
    reason = listed(NOT_RUN, call)
    parse_only = parse_only or reason is not None
    if words[:1] and words[0].endswith("/bounded.py"):  # runs another, for so many seconds
        run(Call(tuple(words[2:])), reader, parse_only=parse_only)
    elif program == "flashagents":
        flashagents(words, reader)
    elif program == "mkdocs":
        from mkdocs.__main__ import cli as mkdocs

        mkdocs.commands[words[0]].make_context(words[0], words[1:])
    elif program == "pip":
        satisfied = [sys.executable, "-m", "pip", *words, "--dry-run", "--no-index", "--quiet"]
        subprocess.run(satisfied, check=True)
    elif not program.startswith("python") or words[:2] == ["-m", "pip"]:
        assert reason, f"{call}: neither run nor listed in NOT_RUN"
    elif (words[0] == "scripts/run_tests.py" and not parse_only) or words[1:] == [
        "flashagents_runtime.sglang_seams"
    ]:
        subprocess.run([sys.executable, *words], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    else:
        more = "" if parse_only else listed(SMALLEST, call) or ""
        reader.python(call, parse_only=parse_only, more=shlex.split(more))


def flashagents(words: list[str], reader: Reader) -> None:
    command: Any = typer.main.get_command(cli.app)
    rest = words
    while hasattr(command, "commands"):
        command, rest = command.commands[rest[0]], rest[1:]
    if not rest:  # a page that names the command
        return
    with pytest.MonkeyPatch.context() as patch, fake_server() as url:
        patch.chdir(reader.checkout)
        patch.setattr("flashagents_runtime.serve.serve", served)
        if words[0] == "top":
            words = ["top", *(url if word.startswith("http") else word for word in words[1:]), "--count", "1"]
        result = CliRunner().invoke(cli.app, words)
    assert result.exit_code == 0, f"{words}: {result.output}{result.exception!r}"


def served(model: str, user_args: list[str], limits: object) -> None:
    """In the place of a server (tests/engine/test_serve_engine.py has a real one)."""
    flags = [word for word in server_argv(model, {}, user_args) if word.startswith("--")]
    assert {flag.removeprefix("--").replace("-", "_") for flag in flags} <= set(known())


@contextmanager
def fake_server() -> Iterator[str]:
    """The address of a server in a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        served = FakeSGLang(ScriptedEngine()).serve()
        server = asyncio.run_coroutine_threadsafe(served, loop).result()
        try:
            yield str(server.make_url("")).rstrip("/")
        finally:
            asyncio.run_coroutine_threadsafe(server.close(), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


# ---- the tests


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_a_block_is_typed(block: Block, reader: Reader) -> None:
    assert block.commands and not [
        line for line in block.text.replace("\\\n", " ").splitlines() if line and not line.startswith("$ ")
    ], "each line of a console block is a command, behind `$ `"
    if prepare := BEFORE.get(block.page):
        prepare(reader.checkout)
    calls, variables = reader.type(block.commands)
    assert calls or variables, "nothing was started"
    for call in calls:
        run(call, reader)
    for page in (reader.checkout / "docs").rglob("*.md"):  # a report has written what is there
        assert page.read_text() == (ROOT / page.relative_to(reader.checkout)).read_text()


# In running text: what is named without being a whole command.
NOT_PARSED = {
    r"pip install": "needs the package index; the files that it names are there",
    r"pip config list": "is pip's own",
    r"flashagents_runtime\.host": "is started by an application, with a socket",
    r"<cell>| PID|gpu\.sh OUT_DIR COMMIT$": "something is to be put in",
}


def found_by_a_reader(checkout: Path) -> None:
    """The files that commands in running text read."""
    (checkout / "OUT").mkdir(exist_ok=True)
    rows = checkout / "benchmarks" / "results" / "lora_sharing.jsonl"
    (checkout / "OUT" / rows.name).write_bytes(rows.read_bytes())
    made_up().save(checkout / "x.jsonl")


@pytest.mark.parametrize("command", INLINE)
def test_a_command_in_running_text_is_understood(command: str, reader: Reader) -> None:
    """No further than its own parser of arguments; a program without one runs."""
    if listed(NOT_PARSED, command):
        named = [word for word in command.split() if word.startswith("requirements/")]
        assert all((ROOT / word).exists() for word in named)
        return
    found_by_a_reader(reader.checkout)
    calls, _ = reader.type([f"python {command}" if command.split()[0].endswith(".py") else command])
    assert calls
    for call in calls:
        run(call, reader, parse_only=True)


@pytest.mark.parametrize(("folder", "least"), [("paper", 10), ("lora_sharing", 7)])
def test_the_planned_gpu_sessions_are_understood(folder: str, least: int, reader: Reader) -> None:
    """The lines of the table in which `g` stands for the script."""
    lines = re.findall(r"`(g \d[^`]+)`", (ROOT / "benchmarks" / folder / "README.md").read_text())
    assert len(lines) >= least
    calls, _ = reader.type([f'g() {{ benchmarks/{folder}/gpu.sh OUT_DIR COMMIT "$@"; }}', *lines])
    assert len(calls) == sum(line.count(";") + 1 for line in lines)
    for call in calls:
        run(call, reader, parse_only=True)


def test_the_exported_variable_names_our_package(reader: Reader) -> None:
    """Of AutoGen's loader, which newer releases let load only what it lists."""
    (block,) = (block for block in BLOCKS if block.page == "docs/client.md")
    _, variables = reader.type(block.commands)
    provider = FlashAgentsChatCompletionClient.component_provider_override
    assert variables == {"AUTOGEN_ALLOWED_PROVIDER_NAMESPACES": str(provider).split(".")[0]}


def test_nothing_is_listed_that_is_not_there() -> None:
    """An exception that no page, and nothing that pages start, needs any more goes."""
    started = [ROOT / "Makefile", *(ROOT / "benchmarks").rglob("*.sh")]
    named = [*INLINE, *(line for block in BLOCKS for line in block.commands)]
    named += [line for path in started for line in path.read_text().splitlines()]
    for table in (NOT_RUN, SMALLEST, NOT_PARSED):
        assert [pattern for pattern in table if not any(re.search(pattern, text) for text in named)] == []
