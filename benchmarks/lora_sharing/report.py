"""Make docs/performance-lora.md from the rows:  python benchmarks/lora_sharing/report.py"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_ROOT)]

from benchmarks.lora_sharing import marks
from benchmarks.lora_sharing.cells import GROUPS, case
from benchmarks.lora_sharing.measured import Measured, Row, load, sections
from benchmarks.lora_sharing.trace import CONTEXTS
from benchmarks.rows import RESULTS

DOC = _ROOT / "docs/performance-lora.md"
VARIANTS = ("none", "floor", "full", "base_lr", "precomputed", "base")

INTRO = """# Performance: role LoRAs

LRAgent's trace (plan, action and reflect agents on one growing context, 17 steps) with the shape of
Llama-3.1-8B, random weights, adapters of r = 8 on q and v. Made by
`python benchmarks/lora_sharing/report.py` from `benchmarks/results/lora_sharing.jsonl`;
[benchmarks/lora_sharing](../benchmarks/lora_sharing/README.md) says how to repeat it,
[role LoRAs](lora-sharing.md) what the schemes are.

`none` is stock SGLang with its LoRA (the papers' Non-Shared). `floor` is the same engine with one adapter for
all steps: it computes what a perfectly shared cache has to compute, with stock kernels, and no more, so its
gain over `none` is the *bound* of what sharing can give. All engines of a run had pools of the same size
(*pool*, tokens) and took turns; ratios are of runs side by side. Medians, with the 20th and 80th percentile
in brackets. TTFT is the time to the first token, summed over the steps of a trajectory. *KV* is what the
cache holds in the end, in bytes, over the floor's.
"""

EMPTY = """
No cell of the trace has been measured on a GPU yet.
"""

STEPS = ("33.7k", "66.4k")
# LRAgent's figures (arXiv 2602.01053), on one A6000, by context: BaseLRShared over Non-Shared.
PAPER_THROUGHPUT = {"9.1k": 786 / 592, "17.3k": 1239 / 669, "33.7k": 1678 / 683}
PAPER_OVERLAP = {100: 1678 / 683, 60: 1108 / 683, 20: 765 / 683, 0: 682 / 683}


def number(value: float) -> str:
    """Three digits."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def order(cell: Measured) -> tuple[int, int, int, int]:
    """One trajectory first, short contexts first."""
    of = cell.case
    return of["trajectories"], -of["overlap"], of["roles"], list(CONTEXTS).index(of["context"])


def table(cells: list[Measured]) -> list[str]:
    """Every variant of every cell, with its bound."""
    lines = [
        "| context | at once | roles | shared | pool | | TTFT, ms | over none | bound | of it "
        "| tokens/s | over none | bound | of it | computed | KV |",
        "|---" * 16 + "|",
    ]
    for cell in sorted(cells, key=order):
        of = cell.case
        what = (
            f"| {of['context']} | {of['trajectories']} | {of['roles']} | {of['overlap']}% | {of['pool']:,} "
        )
        for variant in (v for v in VARIANTS if cell.has(v)):
            columns = [variant]
            for metric in ("ttft_sum_ms", "throughput"):
                columns.append(cell.shown(variant, metric))
                columns += gains(cell, variant, metric)
            columns.append(number(cell.p50(variant, "tokens_computed")))
            kv = cell.ratio("kv_bytes", variant, cell.bound)
            columns.append(
                f"{kv:.3f}" if kv is not None else number(cell.p50(variant, "kv_bytes") / 1e9) + " GB"
            )
            lines.append(what + "| " + " | ".join(columns) + " |")
    return lines


def gains(cell: Measured, variant: str, metric: str) -> list[str]:
    """Over `none`, what the bound is there, and how much of it that is; above 1 is faster."""
    if variant == "none":
        return ["", "", ""]
    gain, bound = cell.gain(metric, variant, "none", variant), cell.gain(metric, cell.bound, "none", variant)
    reached = None if variant == "floor" else cell.gain(metric, variant, cell.bound, variant)
    shown = [f"{x:.2f}" if x is not None else "" for x in (gain, bound)]
    return [*shown, f"{reached:.1%}" if reached is not None else ""]


def by_step(cells: list[Measured]) -> list[str]:
    """Times to the first token of each step, of the cells of one trajectory."""
    lines: list[str] = []
    for cell in sorted(cells, key=order):
        of = cell.case
        if of["context"] not in STEPS or (of["trajectories"], of["roles"], of["overlap"]) != (1, 3, 100):
            continue
        variants = [v for v in VARIANTS if cell.has(v)]
        lines += ["", f"TTFT of each step, ms, at {of['context']}:", ""]
        lines += ["| step | " + " | ".join(variants) + " |", "|---" * (len(variants) + 1) + "|"]
        for step in range(17):
            metric = f"ttft_step_{step:02}_ms"
            figures = " | ".join(number(cell.p50(v, metric)) for v in variants)
            lines.append(f"| {step + 1} | {figures} |")
    return lines


def beside_the_paper(cells: list[Measured]) -> list[str]:
    """`base_lr` over `none`, and LRAgent's own ratios."""
    lines = []
    for cell in sorted(cells, key=order):
        of = cell.case
        if (of["trajectories"], of["roles"]) != (1, 3) or not cell.has("base_lr"):
            continue
        theirs = PAPER_THROUGHPUT.get(of["context"]) if of["overlap"] == 100 else None
        if of["context"] == "33.7k":
            theirs = PAPER_OVERLAP.get(of["overlap"])
        ours = cell.gain("throughput", "base_lr", "none", "base_lr")
        if theirs is not None and ours is not None:
            lines.append(f"| {of['context']} | {of['overlap']}% | {ours:.2f} | {theirs:.2f} |")
    if not lines:
        return []
    head = [
        "",
        "Throughput of `base_lr` over `none` beside LRAgent's BaseLRShared over Non-Shared (an A6000):",
        "",
    ]
    return [*head, "| context | shared | here | theirs |", "|---|---|---|---|", *lines]


def of_marks(cells: list[Measured]) -> list[str]:
    """Which marks were reached, and what is short of them."""
    lines = ["", "| mark | wanted | reached | worst | short of it |", "|---|---|---|---|---|"]
    for mark in marks.MARKS:
        found = sorted(mark.found(cells), key=lambda pair: pair[1])
        if not found:
            lines.append(f"| {mark.name} | {mark.wanted} | not measured | | |")
            continue
        short = [f"{where}: {value:.3f}" for where, value in found if not mark.holds(value)]
        worst = max(found, key=lambda pair: mark.distance(pair[1]))[1]
        reached = f"{len(found) - len(short)} of {len(found)}"
        lines.append(f"| {mark.name} | {mark.wanted} | {reached} | {worst:.3f} | {'; '.join(short)} |")
    return lines


def coverage(cells: list[Measured]) -> list[str]:
    """The cells of which no scheme has rows, by group."""
    lines, count, there = [], 0, 0
    for group in GROUPS.values():
        left = []
        for cell in group.cells:
            of = case(cell, group.pool, "", 0)
            same = [m for m in cells if all(m.case[k] == v for k, v in of.items() if k not in ("shape", "r"))]
            own = [name for names in group.starts for name in group.own(cell, names)]
            have = bool(same) and all(any(m.has(v) for m in same) for v in own)
            count, there = count + 1, there + have
            left += [] if have else [str(cell)]
        if left:
            lines.append(f"- `{group.name}`: {'; '.join(left)}")
    return ["", f"Measured: {there} of {count} cells." + (" Not yet:" if lines else ""), "", *lines]


def exactness(rows: list[Row]) -> list[str]:
    """Log-probs on a GPU against each scheme's definition (`gpu_check.py`)."""
    found: dict[tuple[Any, ...], dict[str, Row]] = {}
    for row in rows:
        if row["metric"].startswith("logprob_") and row["device"] != "cpu":
            of = row["case"]
            key = (row["device"], row["variant"], of["attention"], "on" if of["graphs"] else "off")
            sizes = (str(of.get("chunk", 256)), str(of["page_size"]), str(of["r"]))  # older rows: all of 256
            found.setdefault((*key, *sizes), {})[row["metric"]] = row
    if not found:
        return []
    lines = [
        "",
        "## Right on a GPU",
        "",
        "Differences of log-probs from each scheme's definition in torch, token by token, on a random Llama",
        "of 4 layers with an 8B model's attention, by `benchmarks/lora_sharing/gpu_check.py`. `none` is the",
        "noise of bf16; *wrong*: the same answers against a definition in which nothing is shared.",
        "",
        "| device | scheme | attention | CUDA graphs | chunk | page | r | mean | largest | wrong | commit |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for key, metrics in found.items():
        values = [
            f"{metrics[m]['p50']:.3f}" if m in metrics else ""
            for m in (
                "logprob_abs_diff_mean",
                "logprob_abs_diff_max",
                "logprob_abs_diff_mean_of_a_wrong_definition",
            )
        ]
        commit = next(iter(metrics.values()))["commit"]
        lines.append("| " + " | ".join([*key, *values, commit]) + " |")
    return lines


def page(path: Path = RESULTS / "lora_sharing.jsonl") -> str:
    """The whole page."""
    rows = load(path)
    parts = [INTRO]
    found = sections(rows)
    if not found:
        parts.append(EMPTY)
        parts.append("\n".join(coverage([])) + "\n")
    for (device, shape), cells in found.items():
        of = [row for cell in cells for row in cell.rows()]
        versions = ", ".join(f"{k} {v}" for k, v in sorted(of[-1]["versions"].items()))
        commits = ", ".join(sorted({row["commit"] for row in of}))
        commands = " ".join(f"`{c}`" for c in sorted({row["command"] for row in of}))
        parts.append(f"\n## {device}, {shape}\n\n{versions}; commit {commits}. {commands}\n")
        for part in (
            of_marks(cells),
            ["", *table(cells)],
            by_step(cells),
            beside_the_paper(cells),
            coverage(cells),
        ):
            if part:
                parts.append("\n".join(part) + "\n")
    parts.append("\n".join(exactness(rows)) + "\n")
    return "\n".join(part.strip("\n") + "\n" for part in parts if part.strip("\n"))


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=Path, default=RESULTS / "lora_sharing.jsonl")
    parser.add_argument("--doc", type=Path, default=DOC)
    args = parser.parse_args()
    args.doc.write_text(page(args.rows))
    print(f"wrote {args.doc}")


if __name__ == "__main__":
    main()
