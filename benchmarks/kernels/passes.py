"""Tables of `prefill.py` and `host.py` for the kernels' page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "results"

Row = dict[str, Any]


def _rows(name: str) -> list[Row]:
    path = RESULTS / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _by_case(rows: list[Row]) -> dict[str, dict[str, Row]]:
    """The newest row of each case, by variant or metric."""
    found: dict[str, dict[str, Row]] = {}
    for row in rows:
        name = row["variant"] if row["metric"] in ("us", "host_us_a_layer") else row["metric"]
        found.setdefault(json.dumps(row["case"], sort_keys=True), {})[name] = row
    return found


def _origin(rows: list[Row]) -> str:
    return "; ".join(sorted({f"{r['device']}, commit {r['commit']}, `{r['command']}`" for r in rows}))


def _spread(row: Row) -> str:
    return f"{row['p50']:,.1f} ({row['p20']:,.1f} to {row['p80']:,.1f})"


def prefill() -> list[str]:
    """Large prefill passes: fused, joined, and stock FA3 without LoRA."""
    rows = _rows("kernels_prefill")
    if not rows:
        return []
    lines = [
        "## Large prefill passes, r = 8: fused or joined",
        "",
        "*Joined*: prefix and new tokens copied end to end, V with its low-rank part, then FlashAttention 3",
        "over contiguous rows, as `lora_sharing` does on a Hopper GPU. *Stock*: FA3 without LoRA over pages",
        "of one token, as SGLang calls it. us a layer, median (20th to 80th percentile). *Difference*: the",
        "largest one, of outputs of that RMS.",
        "",
        _origin(rows) + ".",
        "",
        "| | stock FA3 | fused | joined | its join | stock over fused | stock over joined | difference |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for case, of in _by_case(rows).items():
        c = json.loads(case)
        us = {name: of[name]["p50"] for name in ("fa3", "ours", "joined", "join")}
        apart = f"{of['difference']['p50']:.3f} of {of['size']['p50']:.2f}"
        cells = [
            f"{c['shape']}, {c['new']} + {c['prefix']}",
            *(_spread(of[n]) for n in ("fa3", "ours", "joined")),
        ]
        cells += [
            f"{us['join']:,.0f}",
            f"{us['fa3'] / us['ours']:.2f}",
            f"{us['fa3'] / us['joined']:.2f}",
            apart,
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return [*lines, ""]


def host() -> list[str]:
    """What small passes cost the host, and the projection of few tokens the device."""
    rows = _rows("kernels_host")
    if not rows:
        return []
    lines = [
        "## Small passes",
        "",
        "`extend`: microseconds for which the calling thread is busy, a layer, without and with an",
        "`ExtendPlan`. `project_lr`: microseconds of the device, by the kernel for many tokens and for few.",
        "",
        _origin(rows) + ".",
        "",
        "| | before | now |",
        "|---|---|---|",
    ]
    for case, of in _by_case(rows).items():
        c = json.loads(case)
        if c["op"] == "extend":
            name, old, new = f"extend, {c['new']} + {c['prefix']}, r{c['r']}", "without", "with a plan"
        else:
            name, old, new = f"project_lr, {c['tokens']} tokens, r{c['r']}", "for many", "for few"
        lines.append(f"| {name} | {_spread(of[old])} | {_spread(of[new])} |")
    return [*lines, ""]
