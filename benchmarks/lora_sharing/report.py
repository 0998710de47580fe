"""Tables of the rows of `run.py`, in Markdown: each scheme beside stock and beside what could be had at best.

    python benchmarks/lora_sharing/report.py [benchmarks/results/lora_sharing.jsonl]

*gain* is over `none`, *of the bound* says how much of the gain of `floor` over `none` that is. KV is relative
to what the floor keeps: one role's.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ORDER = ("none", "floor", "full", "base_lr", "precomputed", "base")
KEYS = ("roles", "trajectories", "context")


def load(path: Path) -> dict[tuple[Any, ...], dict[str, dict[str, float]]]:
    """Medians by case, variant and metric; a later row of the same case wins."""
    out: dict[tuple[Any, ...], dict[str, dict[str, float]]] = {}
    for line in path.read_text().splitlines():
        r = json.loads(line)
        if r["experiment"] == "lora_sharing" and "trajectories" in r["case"]:
            case = tuple(r["case"][key] for key in KEYS)
            out.setdefault(case, {}).setdefault(r["variant"], {})[r["metric"]] = r["p50"]
    return out


def table(variants: dict[str, dict[str, float]]) -> list[str]:
    none, floor = variants.get("none"), variants.get("floor")
    lines = [
        "| | TTFT, summed, ms | gain | of the bound | tokens/s | gain | of the bound | computed | KV |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name in (n for n in ORDER if n in variants):
        v = variants[name]
        time, rate = v["ttft_sum_ms"], v["throughput"]
        cells = [name, f"{time:.0f}"]
        cells += gain(none and none["ttft_sum_ms"] / time, floor and floor["ttft_sum_ms"] / time)
        cells.append(f"{rate:.0f}")
        cells += gain(none and rate / none["throughput"], floor and rate / floor["throughput"])
        cells.append(f"{v['tokens_computed']:.0f}")
        cells.append(f"{v['kv_bytes'] / floor['kv_bytes']:.3f}" if floor else f"{v['kv_bytes'] / 1e9:.2f} GB")
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def gain(over_none: float | None, of_the_bound: float | None) -> list[str]:
    return [f"{over_none:.2f}" if over_none else "", f"{of_the_bound:.1%}" if of_the_bound else ""]


def main() -> None:
    default = Path(__file__).parents[1] / "results" / "lora_sharing.jsonl"
    cases = load(Path(sys.argv[1]) if len(sys.argv) > 1 else default)
    for case in sorted(cases, key=str):
        roles, trajectories, context = case
        print(f"\n**{roles} roles, {trajectories} at once, {context}**\n")
        print("\n".join(table(cases[case])))


if __name__ == "__main__":
    main()
