"""The notebooks with the small model on a real engine: one after another in one kernel, on one engine."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from helpers.notebooks import jupyter_folders

FOLDER = Path(__file__).parents[2] / "examples" / "notebooks"
OTHERS = ("00_quickstart", "01_swap_your_client", "02_travel_planner_timeline", "03_map_reduce")

pytestmark = [pytest.mark.engine, pytest.mark.timeout(400)]

# Before the first notebook: short answers, and one engine for all, that of the notebook with adapters.
SETUP = """
import flashagents_autogen

_Client = flashagents_autogen.FlashAgentsChatCompletionClient


def _brief(model_name=None, *, max_tokens, engine_args=None, **arguments):
    if model_name is None:
        model_name, engine_args = str(model), ENGINE
    most = 6 if "lora" in arguments else 12
    return _Client(model_name, engine_args=engine_args, max_tokens=min(max_tokens, most), **arguments)


flashagents_autogen.FlashAgentsChatCompletionClient = _brief
"""


def cells_of(stem: str) -> list[Any]:
    """The cells, with ids that say which notebook they are of."""
    cells = nbformat.read(FOLDER / f"{stem}.ipynb", as_version=4).cells
    for cell in cells:
        cell.id = f"{stem[:2]}-{cell.id}"
    return list(cells)


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """What each cell gave, by "number of the notebook-cell"."""
    *roles, close = cells_of("04_role_loras")  # its engine stays until all have run
    cells = [nbformat.v4.new_code_cell(SETUP), *roles]
    for stem in OTHERS:
        cells += cells_of(stem)
    notebook = nbformat.v4.new_notebook(cells=[*cells, close])
    notebook.metadata["kernelspec"] = {"name": "python3", "language": "python", "display_name": "Python 3"}
    with pytest.MonkeyPatch.context() as monkeypatch:
        jupyter_folders(tmp_path_factory.mktemp("jupyter"), monkeypatch)
        NotebookClient(notebook, timeout=240, kernel_name="python3").execute()
    return {cell.id: cell.outputs for cell in notebook.cells if cell.cell_type == "code"}


def text(outputs: list[Any]) -> str:
    return "".join(out.get("text") or out.data.get("text/plain", "") for out in outputs)


def figures(outputs: dict[str, list[Any]], number: str) -> list[Any]:
    """The plotly figures of a notebook."""
    kind = "application/vnd.plotly.v1+json"
    mine = [out for name, outs in outputs.items() if name.startswith(number) for out in outs]
    return [out.data[kind] for out in mine if kind in out.get("data", {})]


def test_the_second_run_finds_the_first_ones_cache(outputs: dict[str, list[Any]]) -> None:
    assert "--- summary" in text(outputs["01-record"])
    found = re.findall(r"(\d+) of (\d+) prompt tokens", text(outputs["01-cached"]))
    (first, _), (second, prompt) = ((int(cached), int(total)) for cached, total in found)
    assert second > first
    assert second > 0.9 * prompt
    assert len(figures(outputs, "01")) == 2


def test_overlap_prewarms_and_changes_no_word(outputs: dict[str, list[Any]]) -> None:
    off, on = re.findall(r"overlap \w+: hand-off \d+ ms, (\d+) of", text(outputs["02-gaps"]))
    assert int(off) == 0 < int(on)
    for number in ("02", "03"):
        assert text(outputs[f"{number}-texts"]).endswith("True")
        assert len(figures(outputs, number)) == 1
        assert "<table>" in outputs[f"{number}-table"][0].data["text/html"]
    assert "image/png" in outputs["02-paper"][0].data
    assert "meta_reviewer" in text(outputs["03-graph"])


def test_roles_that_share_compute_less(outputs: dict[str, list[Any]]) -> None:
    apart, shared = re.findall(r": (\d+) of \d+ prompt tokens computed", text(outputs["04-sums"]))
    assert int(shared) < 0.6 * int(apart)
    bars, timeline = figures(outputs, "04")
    assert [len(part["x"]) for part in bars["data"]] == [6, 6]
    assert {"until first token", "decode"} <= {part.get("name") for part in timeline["data"]}
    assert "token_bytes_rows" in text(outputs["04-figures"])
    assert "'editor'; it has 'actor', 'critic', 'planner'" in text(outputs["04-unknown"])
