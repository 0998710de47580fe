"""A cell that builds the client may be run again and again: one engine, whatever Jupyter keeps alive."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import nbformat
import psutil
import pytest
from nbclient import NotebookClient

from helpers import stub_host
from helpers.tiny_tokenizer import tiny_tokenizer

pytestmark = pytest.mark.long

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebooks" / "00_quickstart.ipynb"

# Before the user's cells: stub hosts instead of real ones, and a model that needs no download.
SETUP = f"""
import sys
from flashagents_runtime import embedded, model_store
from flashagents_runtime.model_store import resolve_model
from flashagents_runtime.embedded import EmbeddedEngine, host_process
host_process.host_command = lambda fd: [sys.executable, {stub_host.__file__!r}, str(fd)]
EmbeddedEngine._resolve_model = lambda self: "ok"
model_store.resolve_model = lambda name=None, **kwargs: resolve_model({{folder!r}}, **kwargs)
"""
PID = "print(client.engine.engine._host._process.pid, len(embedded.pooled_engines()))"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model folder without weights."""
    folder = tmp_path / "model"
    folder.mkdir()
    tiny_tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(
        json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"]})
    )
    template = (
        "{% for m in messages %}{{ m.role + ': ' + m.content + '\\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
    )
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    return folder


@pytest.fixture
def jupyter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Jupyter writes into this test's folder alone."""
    for name in ("JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    yield


def hosts_of(process: psutil.Process) -> list[psutil.Process]:
    return [child for child in process.children(True) if stub_host.__file__ in child.cmdline()]


@pytest.mark.usefixtures("jupyter")
def test_a_cell_that_is_run_again_starts_no_second_engine(model: Path) -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    setup = nbformat.v4.new_code_cell(SETUP.replace("{folder!r}", repr(str(model))))
    look = nbformat.v4.new_code_cell(PID)
    cells = {cell.id: cell for cell in notebook.cells}
    notebook.cells = [setup, cells["client"], cells["run"], look, cells["usage"], cells["close"]]
    runner = NotebookClient(notebook, timeout=60, kernel_name="python3")

    def run(cell: nbformat.NotebookNode) -> str:
        done = runner.execute_cell(cell, notebook.cells.index(cell))
        return "".join(
            output.get("text") or output.data["text/plain"]
            for output in done.outputs
            if output.output_type != "error"
        )

    with runner.setup_kernel():
        run(setup)
        run(cells["client"])
        assert hosts_of(psutil.Process()) == [], "nothing is started before the first call"
        assert "t0" in run(cells["run"])
        [host] = hosts_of(psutil.Process())
        assert run(look).split() == [str(host.pid), "1"]
        run(cells["client"])
        run(cells["client"])
        assert "t0" in run(cells["run"])
        assert run(look).split() == [str(host.pid), "1"]
        assert hosts_of(psutil.Process()) == [host]
        assert "prompt_tokens" in run(cells["usage"])
        run(cells["close"])
        assert hosts_of(psutil.Process()) == [], "closing the last client ends the engine"
        run(cells["client"])
        run(cells["run"])
        [host] = hosts_of(psutil.Process())
    psutil.wait_procs([host], timeout=20)
    assert not host.is_running(), "the engine ends with its kernel"


def test_the_notebook_is_shipped_without_outputs() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    assert all(
        not cell.outputs and cell.execution_count is None for cell in notebook.cells if "outputs" in cell
    )
