"""The notebook on swapping the client, with the default model on a real engine."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from helpers.notebooks import jupyter_folders

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebooks" / "01_swap_your_client.ipynb"

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]


def test_the_second_run_finds_the_first_ones_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("plotly")
    jupyter_folders(tmp_path, monkeypatch)
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, timeout=240, kernel_name="python3").execute()
    printed = {
        cell.id: "".join(output.get("text", "") for output in cell.outputs)
        for cell in notebook.cells
        if cell.cell_type == "code"
    }
    assert "--- summary" in printed["record"]
    found = re.findall(r"(\d+) of (\d+) prompt tokens", printed["cached"])
    (first, _), (second, prompt) = ((int(cached), int(total)) for cached, total in found)
    assert second > first
    assert second > 0.9 * prompt
