"""Generated pages and pictures say what the rows say: they are made anew and compared."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from benchmarks import report as overview
from benchmarks.handoff import plot
from benchmarks.handoff import report as handoff
from benchmarks.intra_turn import report as intra_turn
from benchmarks.lora_sharing import report as lora_sharing
from benchmarks.paper import report as paper

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("report", [overview, handoff, intra_turn], ids=lambda module: module.__name__)
def test_a_page_is_what_its_report_writes(
    report: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = report.DOC
    monkeypatch.setattr(report, "DOC", tmp_path / page.name)
    for name in ("ROOT", "_ROOT"):
        monkeypatch.setattr(report, name, tmp_path, raising=False)  # for what it prints
    monkeypatch.setattr("sys.argv", ["report.py"])
    report.main()
    assert (tmp_path / page.name).read_text() == page.read_text(), f"run the report: {page.name} is old"


@pytest.mark.parametrize("report", [paper, lora_sharing], ids=lambda module: module.__name__)
def test_a_page_is_what_its_report_gives(report: Any) -> None:
    assert report.page() == report.DOC.read_text(), f"run the report: {report.DOC.name} is old"


def bars(picture: Path) -> dict[str, float]:
    """Of each bar that is drawn, by its id: its length, in the picture's points."""
    found = {}
    for group in ElementTree.parse(picture).getroot().iter(f"{SVG}g"):
        name = group.get("id", "")
        path = group.find(f"{SVG}path")
        if name.count(":") == 5 and path is not None:
            x = [float(x) for x, _ in re.findall(r"[ML] (-?[\d.]+) (-?[\d.]+)", path.get("d", ""))]
            found[name] = max(x) - min(x)
    return found


def test_the_readmes_picture_shows_the_rows() -> None:
    drawn = bars(plot.PLOT)
    chosen = plot.cells(handoff.load())
    wanted = {
        plot.bar_id(variant, cell[variant, plot.METRIC]): cell[variant, plot.METRIC]["p50"]
        for _, cell in chosen
        for variant in plot.VARIANTS
        if (variant, plot.METRIC) in cell
    }
    assert len(wanted) >= 10
    times = {name: length for name, length in drawn.items() if name.startswith(plot.METRIC)}
    assert times.keys() == wanted.keys(), "run benchmarks/handoff/plot.py: the rows have changed"
    scale = max(times.values()) / max(wanted.values())
    assert {name: times[name] / scale for name in times} == pytest.approx(wanted, rel=1e-3, abs=0.01)
    costs = {name for name in drawn if name.startswith(plot.COST)}
    assert costs == {plot.bar_id("ours", cell["ours", plot.COST]) for _, cell in chosen}


@pytest.mark.long
def test_the_readmes_picture_can_be_drawn(tmp_path: Path) -> None:
    plot.draw(handoff.load(), tmp_path / "x.svg")
    assert bars(tmp_path / "x.svg").keys() == bars(plot.PLOT).keys()
    assert "NVIDIA H200" in (tmp_path / "x.svg").read_text()
