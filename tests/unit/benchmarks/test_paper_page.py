"""What the page reckons and draws of rows: coverage, floors, panels."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from benchmarks.paper import coverage, plots, report, roofline
from benchmarks.rows import row

SHARED = {"device": "NVIDIA H200", "commit": "c", "versions": {}, "command": "python x", "run": "r"}


def rates_rows() -> list[dict[str, Any]]:
    """4,096 tokens a 0.1 s, 128 a 10 ms, a step 5 ms (of eight: 6 ms)."""
    chunk = {"shape": "qwen2.5-7b", "cached": 16, "new": 4096}
    step = {"shape": "qwen2.5-7b", "cached": 2000}
    found = [
        ({**chunk, "chunk": "one pass"}, "sum_ms", 100.0),
        ({**chunk, "chunk": "128"}, "sum_ms", 320.0),
        ({**step, "batch": 1}, "decode_step_ms", 5.0),
        ({**step, "batch": 8}, "decode_step_ms", 6.0),
    ]
    return [row("paper_overhead", "graphs", case, metric, [ms] * 5, SHARED) for case, metric, ms in found]


def cascade_case(**changes: Any) -> dict[str, Any]:
    case = {"setup": "7b-shared", "cells": "cascade", "prefixes": "shared"}
    return {**case, "prefix": 2000, "output": 512, "concurrency": 1, **changes}


def test_the_plan_has_the_papers_240_settings_and_all_experiments() -> None:
    plans = {plan.what: plan for plan in coverage.plans()}
    cascade = [plans[f"cascade, {name}"] for name in ("7b-shared", "32b-rate200", "32b-rate50")]
    assert sum(len(plan.cells) for plan in cascade) == 240
    assert {plan.experiment for plan in plans.values()} == set(coverage.ONE_A_REPEAT)


def test_coverage_counts_the_rarest_variant_and_no_cpu() -> None:
    case = cascade_case()
    rows = [
        row("paper_cascade", "ours", case, "handoff_last_ms", [1.0] * 5, SHARED),
        row("paper_cascade", "stock-lpm", case, "handoff_last_ms", [1.0] * 3, SHARED),
        row("paper_cascade", "ours", case, "handoff_ms", [1.0], SHARED),
    ]
    assert coverage.repeats(rows, "paper_cascade", case) == 3
    assert coverage.repeats(rows, "paper_cascade", cascade_case(concurrency=2)) == 0
    assert coverage.repeats([{**r, "device": "cpu"} for r in rows], "paper_cascade", case) == 0
    assert "| cascade, 7b-shared | 80 | 0 | 1 | 79 |" in coverage.table(rows)


def test_the_floor_is_reckoned_from_measured_rates() -> None:
    of = roofline.rates(rates_rows(), "NVIDIA H200", "qwen2.5-7b")
    assert of == roofline.Rates(prefill=40960, residual=0.010, step=0.005, step8=0.006)
    assert roofline.rates(rates_rows(), "another GPU", "qwen2.5-7b") is None
    assert of is not None and of.last(1) == pytest.approx(0.015)
    assert of.last(8) == pytest.approx(1024 / 40960 + 0.006), "the last chunks of eight are more than one"
    floor = roofline.cascade
    assert floor(cascade_case(), "handoff_ms", of) == pytest.approx(15)
    shared = floor(cascade_case(), "first_to_first_ms", of)
    assert shared == pytest.approx(511 * 5 + 2512 / 40.96 + 15)
    two = floor(cascade_case(setup="7b-two-gpus"), "first_to_first_ms", of)
    assert two == pytest.approx(511 * 5 + 15), "B computes while A writes"
    held = floor(cascade_case(setup="7b-rate50", concurrency=8), "first_to_first_ms", of)
    assert held == pytest.approx(511 / 50 * 1e3 + 25 + 6)
    assert floor(cascade_case(), "upstream_itl_mean_ms", of) is None


def test_a_workflows_floor_needs_one_engine() -> None:
    of = roofline.Rates(prefill=40960, residual=0.010, step=0.005, step8=0.006)
    case = {"workflow": "chain", "upstream": "x", "downstream": "x", "gpus": 1, "scale": 1, "concurrency": 1}
    assert roofline.workflow(case, "end_ms", of) == pytest.approx(4436 / 40.96 + 1024 * 5 + 30)
    assert roofline.workflow({**case, "downstream": "y"}, "end_ms", of) is None
    assert roofline.workflow(case, "handoff_ms", of) is None


def test_headlines_stand_beside_their_floors() -> None:
    rows = [*rates_rows(), row("paper_cascade", "ours", cascade_case(), "handoff_ms", [30.0], SHARED)]
    assert roofline.table(rows)[-1] == "| 7b-shared, 2,000 + 512 | 1 | `handoff_ms` | 15.0 | 30.0 | 50% |"
    assert roofline.table(rates_rows()) == []


def test_role_loras_are_compared_with_role_loras() -> None:
    assert report.alike("stock-lpm", "ours") and report.alike("stock-lpm, role LoRAs", "ours, role LoRAs")
    assert not report.alike("stock-lpm", "ours, role LoRAs")


def test_panels_show_what_rows_say() -> None:
    rows = rates_rows()
    for variant, ms in (("stock-lpm", 300.0), ("stock-fcfs", 400.0), ("ours", 100.0)):
        rows.append(row("paper_cascade", variant, cascade_case(), "first_to_first_ms", [ms], SHARED))
    found = plots.pictures(rows)
    assert found["cascade"][0].lines == {"2,000 + 512": [(1, 3.0, 3.0, 3.0)]}
    assert found["overhead"][0].lines == {"qwen2.5-7b, graphs": [(128, 3.2, 3.2, 3.2)]}
    assert plots.pictures(rows, cpu=True) == {}


@pytest.mark.long
def test_a_picture_is_drawn_of_each_line(tmp_path: Path) -> None:
    panels = plots.pictures(rates_rows())["overhead"]
    plots.draw(panels, tmp_path / "x.svg")
    ids = {e.get("id", "") for e in ElementTree.parse(tmp_path / "x.svg").getroot().iter()}
    assert {f"{p.title}:{p.y}:{name}" for p in panels for name in p.lines} <= ids


def test_the_page_takes_other_rows(tmp_path: Path) -> None:
    import json

    rows = [*rates_rows(), row("paper_cascade", "ours", cascade_case(), "handoff_ms", [30.0], SHARED)]
    (tmp_path / "paper_x.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    text = report.page(tmp_path)
    assert "| 7b-shared, 2,000 + 512 | 1 |" in text
    assert "](performance-paper-overhead.svg)" in text
