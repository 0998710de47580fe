"""The kernel benchmark's registry and its page, without a device."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT), *sys.path])


def test_every_cell_has_a_key_of_its_own_and_a_roofline() -> None:
    from benchmarks.kernels.cases import decode_cells, extend_cells
    from benchmarks.kernels.run import registry

    cells = registry()
    assert len(cells) == len(decode_cells()) + len(extend_cells()) == 96
    ceiling = {"copy_gbs": 4000.0, "matmul_tflops": 800.0}
    for cell in cells.values():
        assert 0 < cell.roofline_us(0, ceiling) < cell.roofline_us(64, ceiling)


def test_a_cell_with_rows_is_done(tmp_path: Path) -> None:
    from benchmarks.kernels.run import done_keys, registry

    cell = registry()["decode/qwen2.5-7b/b8/c8192"]
    path = tmp_path / "rows.jsonl"
    assert done_keys(path) == set()
    path.write_text(json.dumps({"variant": "ours", "case": cell.case() | {"r": 16, "roofline_us": 1.0}}))
    assert done_keys(path) == {cell.key}


def test_the_page_is_what_the_rows_say() -> None:
    from benchmarks.kernels.report import END, PAGE, load, render

    table, runs = load()
    assert PAGE.read_text().startswith(render(table, runs) + "\n" + END)


def test_a_missing_cell_is_marked() -> None:
    from benchmarks.kernels.report import render

    page = render({}, [])
    assert "0 of 96 cells" in page and page.count("| not run |") == 96
