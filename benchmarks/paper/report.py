"""Make docs/performance-paper.md and its pictures from the rows:  python benchmarks/paper/report.py

`--rows FOLDER --doc FILE` makes a page of other rows, pictures beside it; with `--cpu` those of a dry run.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_ROOT)]

from benchmarks.paper import coverage, plots, roofline
from benchmarks.rows import RESULTS

DOC = _ROOT / "docs/performance-paper.md"
Row = dict[str, Any]
STOCK = ("openai-", "stock-")

INTRO = """# Performance: the papers' workflows

FlashAgents' experiments with stock SGLang beside ours in one run. Medians, with the 20th and 80th percentile
in brackets, and the number of values. Made by `python benchmarks/paper/report.py` from
`benchmarks/results/paper_*.jsonl`; [benchmarks/paper](../benchmarks/paper/README.md) says what each
experiment and variant is, and how to repeat it. `best stock` is the fastest stock variant of the same cell
(with role LoRAs, of those with role LoRAs; with warm heads, likewise).

The paper's own figures (A100-80GB, its own baselines): cascade 1.05 to 3.52 times in
`t_first^B - t_first^A`, 1.05 to 1.2 with 7B and one conversation; chain 1.8% (one user) and 11.9% (eight)
less time; MapReduce 40.3% and 14.7% less than reviewers one after another; slides 24.1% less; ablation at
eight conversations 2.40 times in all, of which 21% by the intra-turn cache.
"""


FLOOR = """The floor is reckoned from the rates that `overhead` measured on the same GPU: decode steps, tokens
that must be computed, and for a hand-off one chunk of 128 tokens and one decode step
(`benchmarks/paper/roofline.py`). Milliseconds."""


def load(folder: Path = RESULTS) -> list[Row]:
    """The newest row of each device, experiment, variant, case and metric."""
    newest: dict[str, Row] = {}
    for path in sorted(folder.glob("paper_*.jsonl")):
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


def alike(one: str, other: str) -> bool:
    """Warm heads are compared with warm heads, role LoRAs with role LoRAs."""
    return all((mark in one) == (mark in other) for mark in ("heads warm", "role LoRAs"))


def _shown(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def table(rows: list[Row], columns: list[str], metric: str) -> list[str]:
    """A line a case: each variant, and how often the best stock one's time theirs is."""
    of_metric = [row for row in rows if row["metric"] == metric]
    variants = list(dict.fromkeys(row["variant"] for row in of_metric))
    against = any(stock(v) for v in variants)
    own = [v for v in variants if not stock(v) and against]
    higher = metric.endswith("_a_second") or metric == "fairness"  # else less is better
    own = [] if metric == "wasted_percent" else own
    head = [*columns, *variants, *(f"{v} / best stock" if higher else f"best stock / {v}" for v in own)]
    lines = ["", f"`{metric}`:", "", f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for cell in grouped(of_metric, lambda row: row["case"]):
        by = {row["variant"]: row for row in cell}
        cells = [_shown(cell[0]["case"].get(c, "")) for c in columns]
        cells += [shown(by[v]) if v in by else "" for v in variants]
        for v in own:
            rivals = [r["p50"] for n, r in by.items() if stock(n) and alike(n, v)]
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
    metrics: tuple[str, ...]
    if first["experiment"] == "paper_cascade":
        title = f"{case['cells']}, {case['setup']}, prefixes {case['prefixes']}"
        columns, metrics = (
            ["prefix", "output", "concurrency"],
            ("first_to_first_ms", "handoff_ms", "upstream_itl_mean_ms"),
        )
    elif first["experiment"] == "paper_load":
        title = (
            f"load, {case['workflows']}, {case['shape']}, arrivals {case['trace']}, {case['count']} workflows"
        )
        columns = ["load_percent"]
        metrics = ("end_ms", "end_p95_ms", "end_p99_ms", "ms_a_token")
        metrics += ("workflows_a_second", "tokens_a_second", "fairness", "wasted_percent")
    elif first["experiment"] == "paper_sjf":
        title = f"shortest job first, {case['setup']}, {case['slots']} requests at a time"
        columns = ["concurrency", "jobs"]
        metrics = ("job_mean_ms", "job_p99_ms", "short_mean_ms", "medium_mean_ms", "long_mean_ms")
    elif first["experiment"] == "paper_overhead":
        title = f"what chunks cost, {case['shape']}"
        columns, metrics = ["cached", "new", "chunk"], ("sum_ms", "reread_percent", "decode_step_ms")
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
        if any(row["metric"] == metric for row in rows):
            lines += table(rows, ["cached", "batch"] if metric == "decode_step_ms" else columns, metric)
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
        "workflows",
        "slots",
    )
    return [row["device"], row["experiment"], *(case.get(name) for name in names)]


def page(folder: Path = RESULTS, *, cpu: bool = False) -> str:
    """The whole page; `cpu`: pictures are of a CPU's rows."""
    parts = [INTRO]
    found = load(folder)
    if not found:
        parts.append("\nNothing was measured on a GPU yet: the commands are there, the rows are not.")
    parts.append("\n".join(["\n## What was measured how often\n", *coverage.table(found)[1:]]))
    if near := roofline.table(found):
        parts.append("\n".join(["\n## How near the floor\n", FLOOR, *near]))
    drawn = plots.pictures(found, cpu=cpu)
    shown_already = set()
    for rows in sorted(grouped(found, setting), key=lambda rows: rows[0]["device"] == "cpu"):
        name = rows[0]["experiment"].removeprefix("paper_")
        lines = section(rows)
        if name in drawn and name not in shown_already:
            shown_already.add(name)
            lines[1:1] = [
                f"![{name}, medians with the 20th and 80th percentile]({picture(DOC, name).name})\n"
            ]
        parts.append("\n".join(lines))
    return "\n".join(part.strip("\n") + "\n" for part in parts)


def picture(doc: Path, name: str) -> Path:
    """Where an experiment's picture is."""
    return doc.with_name(f"performance-paper-{name}.svg")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=Path, default=RESULTS, help="the folder of paper_*.jsonl")
    parser.add_argument("--doc", type=Path, default=DOC)
    parser.add_argument("--cpu", action="store_true", help="draw a CPU's rows")
    args = parser.parse_args()
    args.doc.write_text(page(args.rows, cpu=args.cpu))
    print(f"wrote {args.doc.name}")
    for name, panels in plots.pictures(load(args.rows), cpu=args.cpu).items():
        plots.draw(panels, picture(args.doc, name))
        print(f"wrote {picture(args.doc, name).name}")


if __name__ == "__main__":
    main()
