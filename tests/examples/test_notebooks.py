"""The notebooks, run from their first cell to their last, with a scripted engine in place of a real one."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[2] / "examples" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
# The others have tests of their own; all of them run on a real engine in tests/engine.
COMPARED = [path for path in NOTEBOOKS if path.stem[:2] in ("02", "03")]
PLOTLY = "application/vnd.plotly.v1+json"

# Before the notebook's own cells.
SETUP = """
import flashagents_autogen
from flashagents_runtime import ScriptedEngine

_Client = flashagents_autogen.FlashAgentsChatCompletionClient


def _scripted(model=None, **arguments):
    def answer(request):
        return f"answer {sum(request.input_ids) % 9973}"

    return _Client(engine=ScriptedEngine([answer] * 100), **arguments)


flashagents_autogen.FlashAgentsChatCompletionClient = _scripted
"""


@pytest.fixture
def jupyter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jupyter writes into this test's folder alone."""
    for name in ("JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))


def printed(cell: nbformat.NotebookNode) -> str:
    return "".join(out.get("text") or out.data["text/plain"] for out in cell.outputs)


@pytest.mark.usefixtures("jupyter")
@pytest.mark.parametrize("path", COMPARED, ids=lambda path: path.stem)
def test_a_notebook_runs_from_top_to_bottom(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    notebook.cells.insert(0, nbformat.v4.new_code_cell(SETUP))
    NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
    cells = {cell.id: cell for cell in notebook.cells if cell.cell_type == "code"}
    for cell in cells.values():
        assert all(out.output_type != "error" and out.get("name") != "stderr" for out in cell.outputs)
    timelines = [out for cell in cells.values() for out in cell.outputs if PLOTLY in out.get("data", {})]
    assert len(timelines) == 1
    assert {"overlap on", "overlap off"} <= {
        note["text"] for note in timelines[0].data[PLOTLY]["layout"]["annotations"]
    }
    assert printed(cells["texts"]).endswith("True"), "the same answers"


def test_there_are_notebooks() -> None:
    assert [path.stem for path in NOTEBOOKS] == [
        "00_quickstart",
        "01_swap_your_client",
        "02_travel_planner_timeline",
        "03_map_reduce",
        "04_role_loras",
    ]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_shipped_without_outputs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert all(not c.outputs and c.execution_count is None for c in notebook.cells if c.cell_type == "code")
