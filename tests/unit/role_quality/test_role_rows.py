"""From records to rows, and from rows to the page."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from benchmarks.role_quality import report, summarise
from benchmarks.role_quality.cells import Cell, cells

pytestmark = pytest.mark.long
LOSS = {"full": 0.3, "base": 0.0, "droidspeak": 0.2, "base_lr_own": 0.15}


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """Records of 12 questions and two seeds, in which some variants are worse by a known amount."""
    (tmp_path / "data/facts").mkdir(parents=True)
    (tmp_path / "data/facts/about.json").write_text(json.dumps({"task": "facts", "questions": 12}))
    for judge in ("engine", "definition"):
        for cell in cells(judge, "facts", [0, 1]):
            file = cell.records(tmp_path)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("".join(json.dumps(r) + "\n" for r in records(cell)))
    folder = tmp_path / "similarity"
    folder.mkdir()
    for seed in (0, 1):
        found = {part: [1.0, 0.9 + seed / 100] for part in ("key", "base", "row", "added")}
        (folder / f"facts-shared-{seed}.json").write_text(json.dumps(found))
    return tmp_path


def records(cell: Cell) -> list[dict[str, object]]:
    rng = random.Random(f"{cell.seed} {cell.adapters}")
    loss = LOSS.get(cell.variant, 0.01 if cell.variant != "none" else 0.0)
    out: list[dict[str, object]] = []
    for question in range(12):
        for turn, role in enumerate(("plan", "action", "reflect")):
            f1, nll = rng.uniform(0.6, 0.9), rng.uniform(2, 4)
            out.append({
                "question": f"q{question}", "source": "x", "turn": turn, "role": role, "crossed": turn > 0,
                "nll": nll + 2 * loss, "tokens": 4, "exact": float(f1 - loss > 0.7), "f1": f1 - loss,
                "kl": None if cell.variant == "none" else loss, "answer": "",
            })  # fmt: skip
    return out


def test_rows_and_page(work: Path, tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    summarise.main(
        ["--work", str(work), "--seeds", "0,1", "--device", "A GPU", "--note", "made up", "--out", str(out)]
    )
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    got = {
        (r["variant"], r["case"]["judge"], r["case"]["adapters"], r["case"]["role"], r["metric"]): r
        for r in rows
        if "judge" in r["case"] and r["case"]["judge"] != "both"
    }
    full = got["full", "engine", "shared", "all", "f1_minus_none"]
    assert (full["mean"], full["low"], full["high"]) == (-30.0, -30.0, -30.0)
    assert (full["case"]["questions"], full["case"]["seeds"], full["n"]) == (12, 2, 12)
    assert full["note"] == "made up"
    assert got["full", "engine", "shared", "action", "nll_minus_none"]["mean"] == 0.15
    assert got["base", "engine", "own", "all", "kl"]["mean"] == 0.0
    assert ("none", "engine", "own", "all", "f1_minus_none") not in got
    assert "f1_minus_own_none" in {m for v, _, a, _, m in got if v == "base_lr" and a == "shared"}
    # The first turn reads nobody's cache: the planner has no turn that counts.
    assert not any(role == "plan" for _, _, _, role, _ in got)
    distance = [r for r in rows if r["metric"] == "nll_from_definition" and r["variant"] == "full"]
    assert [r["mean"] for r in distance] == [0.0, 0.0]

    page = report.page(report.load(out), tmp_path)
    assert "## A GPU" in page and "made up" in page
    assert "| Non-Shared minus `full` is significant | -30.00 (-30.00 to -30.00) | yes |" in page
    assert "| `base` within 0.7 points of Non-Shared | +0.00 (0.00 to 0.00) | yes |" in page
    assert "is worse, by definition | -15.00" in page
    for name in ("quality-gpu.svg", "quality-similarity-gpu.svg"):
        assert "<svg" in (tmp_path / name).read_text()
        assert f"({name})" in page


def test_a_page_without_rows_says_so(tmp_path: Path) -> None:
    assert "Nothing has been measured yet" in report.page(report.load(tmp_path / "none.jsonl"), tmp_path)
