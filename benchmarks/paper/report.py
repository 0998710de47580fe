"""Make docs/performance-paper.md from the rows:  python benchmarks/paper/report.py"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_ROOT)]

from benchmarks.rows import RESULTS

DOC = _ROOT / "docs/performance-paper.md"
Row = dict[str, Any]
STOCK = ("openai-", "stock-")

INTRO = """# Performance: the papers' workflows

FlashAgents' experiments with stock SGLang beside ours in one run. Medians, with the 20th and 80th percentile
in brackets, and the number of values. Made by `python benchmarks/paper/report.py` from
`benchmarks/results/paper_*.jsonl`; [benchmarks/paper](../benchmarks/paper/README.md) says what each
experiment and variant is, and how to repeat it. `best stock` is the fastest stock variant of the same cell.

The paper's own figures (A100-80GB, its own baselines): cascade 1.05 to 3.52 times in
`t_first^B - t_first^A`, 1.05 to 1.2 with 7B and one conversation; chain 1.8% (one user) and 11.9% (eight)
less time; MapReduce 40.3% and 14.7% less than reviewers one after another; slides 24.1% less; ablation at
eight conversations 2.40 times in all, of which 21% by the intra-turn cache.
"""


def load() -> list[Row]:
    """The newest row of each device, experiment, variant, case and metric."""
    newest: dict[str, Row] = {}
    for path in sorted(RESULTS.glob("paper_*.jsonl")):
        for line in path.read_text().splitlines():
            row = json.loads(line)
            key = [row[k] for k in ("device", "experiment", "variant", "case", "metric")]
            newest[json.dumps(key, sort_keys=True)] = row
    return list(newest.values())


def grouped(rows: Iterable[Row], key: Callable[[Row], Any]) -> list[list[Row]]:
    """Rows with equal keys together, in order of their first."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(json.dumps(key(row), sort_keys=True), []).append(row)
    return list(found.values())


def number(value: float) -> str:
    """Three digits."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def shown(row: Row) -> str:
    """A median with its spread."""
    return f"{number(row['p50'])} ({number(row['p20'])} to {number(row['p80'])}; {row['n']})"


def stock(variant: str) -> bool:
    """Whether the variant has nothing of ours in its engine."""
    return variant.startswith(STOCK)


def table(rows: list[Row], columns: list[str], metric: str) -> list[str]:
    """A line a case: each variant, and how often the best stock one's time theirs is."""
    of_metric = [row for row in rows if row["metric"] == metric]
    variants = list(dict.fromkeys(row["variant"] for row in of_metric))
    own = [v for v in variants if not stock(v)]
    higher = metric.endswith("_a_second")  # else less is better
    head = [*columns, *variants, *(f"{v} / best stock" if higher else f"best stock / {v}" for v in own)]
    lines = ["", f"`{metric}`:", "", f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for cell in grouped(of_metric, lambda row: row["case"]):
        by = {row["variant"]: row for row in cell}
        cells = [f"{cell[0]['case'][c]:,}" for c in columns]
        cells += [shown(by[v]) if v in by else "" for v in variants]
        for v in own:
            # Warm heads are compared with warm heads.
            rivals = [
                r["p50"] for n, r in by.items() if stock(n) and ("heads warm" in n) == ("heads warm" in v)
            ]
            ratio = ""
            if rivals and v in by:
                best = max(rivals) if higher else min(rivals)
                ratio = f"{by[v]['p50'] / best if higher else best / by[v]['p50']:.2f}"
            cells.append(ratio)
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def section(rows: list[Row]) -> list[str]:
    """One experiment of one set-up on one device."""
    first = rows[0]
    case = first["case"]
    if first["experiment"] == "paper_cascade":
        title = f"{case['cells']}, {case['setup']}, prefixes {case['prefixes']}"
        columns, metrics = (
            ["prefix", "output", "concurrency"],
            ("first_to_first_ms", "handoff_ms", "upstream_itl_mean_ms"),
        )
    elif first["experiment"] == "paper_load":
        title = f"load, {case['shape']}, arrivals {case['trace']}, {case['count']} workflows"
        columns = ["load_percent"]
        metrics = ("end_ms", "end_p95_ms", "end_p99_ms", "ms_a_token", "workflows_a_second")
    else:
        title = f"{case['workflow']}, {case['upstream']} to {case['downstream']}, GPUs: {case['gpus']}"
        title += f", token counts divided by {case['scale']}" if case["scale"] != 1 else ""
        columns, metrics = ["concurrency"], ("end_ms", "handoff_ms")
    versions = ", ".join(f"{k} {v}" for k, v in sorted(first["versions"].items()))
    commands = " ".join(f"`{c}`" for c in sorted({row["command"] for row in rows}))
    commits = ", ".join(sorted({row["commit"] for row in rows}))
    lines = [f"\n## {title}: {first['device']}\n", f"{versions}; commit {commits}. {commands}"]
    if first["device"] == "cpu":
        lines.append("\nA tiny model on a CPU: it shows that the benchmark runs, and little about a GPU.")
    for metric in metrics:
        lines += table(rows, columns, metric)
    return lines


def setting(row: Row) -> list[Any]:
    """What a section is about."""
    case = row["case"]
    names = (
        "setup",
        "cells",
        "prefixes",
        "workflow",
        "upstream",
        "downstream",
        "gpus",
        "scale",
        "shape",
        "trace",
        "count",
    )
    return [row["device"], row["experiment"], *(case.get(name) for name in names)]


def page() -> str:
    """The whole page."""
    parts = [INTRO]
    if not (found := load()):
        parts.append("\nNothing was measured on a GPU yet: the commands are there, the rows are not.")
    for rows in sorted(grouped(found, setting), key=lambda rows: rows[0]["device"] == "cpu"):
        parts.append("\n".join(section(rows)))
    return "\n".join(part.strip("\n") + "\n" for part in parts)


if __name__ == "__main__":
    DOC.write_text(page())
    print(f"wrote {DOC.relative_to(_ROOT)}")
