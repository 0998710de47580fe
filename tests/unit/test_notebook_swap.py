"""The notebook on swapping the client: executed cell by cell on a stub host; shipped without outputs."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from helpers import stub_host
from helpers.notebooks import jupyter_folders, tiny_model

pytestmark = pytest.mark.long

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebooks" / "01_swap_your_client.ipynb"

# Before the reader's cells: stub hosts instead of real ones, and a model that needs no download.
SETUP = f"""
import sys
from flashagents_runtime import model_store
from flashagents_runtime.model_store import resolve_model
from flashagents_runtime.embedded import EmbeddedEngine, host_process
host_process.host_command = lambda fd: [sys.executable, {stub_host.__file__!r}, str(fd)]
EmbeddedEngine._resolve_model = lambda self: "ok"
model_store.resolve_model = lambda name=None, **kwargs: resolve_model({{folder!r}}, **kwargs)
"""


def test_every_cell_runs_and_shows_something(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jupyter_folders(tmp_path, monkeypatch)
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    setup = nbformat.v4.new_code_cell(SETUP.replace("{folder!r}", repr(str(tiny_model(tmp_path)))))
    notebook.cells.insert(0, setup)
    NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
    shown = {
        cell.id: [output.get("data", {}) for output in cell.outputs if "data" in output]
        for cell in notebook.cells
        if cell.cell_type == "code"
    }
    for name in ("timeline", "second"):
        figure = shown[name][0]["application/vnd.plotly.v1+json"]
        assert {"until first token", "decode"} <= {part.get("name") for part in figure["data"]}
    assert "local_guide" in shown["table"][0]["text/html"]
    assert "running" in shown["engine"][0]["text/html"]
    assert "prompt tokens" in shown["usage"][0]["text/html"]


def test_it_is_shipped_without_outputs() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(not cell.outputs and cell.execution_count is None for cell in code)
    assert sum(cell.cell_type == "markdown" for cell in notebook.cells) >= 6, "a narrative"
