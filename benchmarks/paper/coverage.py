"""Which cells the experiments have, and how often each was measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.paper.cascade.cells import SETUPS, ablation, cascade
from benchmarks.paper.overhead.chunks import SIZES

Row = dict[str, Any]
#: Of each experiment, metrics with one value a repeat.
ONE_A_REPEAT = {
    "paper_cascade": ("handoff_last_ms",),
    "paper_workflows": ("end_last_ms",),
    "paper_load": ("workflows_a_second",),
    "paper_sjf": ("job_mean_ms",),
    "paper_overhead": ("sum_ms", "decode_step_ms"),
}
_PAPERS = ("7b-shared", "32b-rate200", "32b-rate50")  # the paper's three set-ups
_SHAPES = ("qwen2.5-7b", "llama-3.1-8b", "smollm2-135m", "qwen2.5-32b")


@dataclass(frozen=True)
class Plan:
    """Cells that are to be measured: each is what its rows' `case` has at least."""

    what: str
    experiment: str
    cells: tuple[dict[str, Any], ...]


def plans() -> Iterator[Plan]:
    """All that the issue asks for, in its order."""
    for setup in (*_PAPERS, "7b-two-gpus"):
        yield Plan(f"cascade, {setup}", "paper_cascade", _cascade(setup, "cascade"))
    for flow, note in (("chain", ""), ("map_reduce", ""), ("slides", "")):
        cells = [
            {"workflow": flow, "concurrency": n, "upstream": "qwen2.5-7b", "gpus": 1} for n in (1, 2, 4, 8)
        ]
        one = tuple({**cell, "downstream": "qwen2.5-7b"} for cell in cells)
        yield Plan(f"{flow}, 7B{note}", "paper_workflows", one)
        if flow == "chain":
            large = [{**cell, "downstream": "qwen2.5-32b"} for cell in cells]
            yield Plan("chain, 7B to 32B on one GPU", "paper_workflows", tuple(large))
            two = tuple({**cell, "gpus": 2} for cell in large)
            yield Plan("chain, 7B to 32B on two GPUs", "paper_workflows", two)
    for cells_of in ("ablation", "ablation-loras"):
        yield Plan(f"{cells_of}, 7b-rate50", "paper_cascade", _cascade("7b-rate50", cells_of))
    for shape in _SHAPES:
        sizes = ["one pass", *(str(size) for size in SIZES[:-1])]
        chunks = [
            {"shape": shape, "cached": cached, "chunk": size} for cached in (16, 4096) for size in sizes
        ]
        steps = [{"shape": shape, "batch": batch} for batch in (1, 8)]
        yield Plan(f"overhead, {shape}", "paper_overhead", (*chunks, *steps))
    sjf = tuple({"setup": "7b-shared", "concurrency": n, "scale": 1} for n in (10, 1))
    yield Plan("shortest job first, 7b-shared", "paper_sjf", sjf)
    for flow in ("chains", "agentic, 1/8"):
        loads = [{"workflows": flow, "shape": "qwen2.5-7b", "load_percent": n} for n in (50, 80, 100, 120)]
        yield Plan(f"load, {flow}", "paper_load", tuple(loads))


def _cascade(setup: str, cells: str) -> tuple[dict[str, Any], ...]:
    assert setup in SETUPS
    found = (cascade if cells == "cascade" else ablation)(5)
    of = {"setup": setup, "cells": cells, "prefixes": "shared"}
    return tuple({**of, "prefix": c.prefix, "output": c.output, "concurrency": c.concurrency} for c in found)


def repeats(rows: Iterable[Row], experiment: str, cell: dict[str, Any]) -> int:
    """How often the cell was measured on a GPU: the rarest of its variants; 0 where it was not."""
    counts = [
        row["n"]
        for row in rows
        if row["experiment"] == experiment
        and row["device"] != "cpu"
        and row["metric"] in ONE_A_REPEAT[experiment]
        and cell.items() <= row["case"].items()
    ]
    return min(counts, default=0)


def table(rows: list[Row]) -> list[str]:
    """Of each plan, how many cells have how many repeats."""
    lines = ["", "| experiment | cells | 5 repeats and more | 1 to 4 | none |", "|---|---|---|---|---|"]
    for plan in plans():
        counts = [repeats(rows, plan.experiment, cell) for cell in plan.cells]
        full, none = sum(n >= 5 for n in counts), counts.count(0)
        lines.append(f"| {plan.what} | {len(counts)} | {full} | {len(counts) - full - none} | {none} |")
    return lines
