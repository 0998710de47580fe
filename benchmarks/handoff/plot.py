"""Draw docs/performance-handoff.svg, the README's picture, from the rows:  python benchmarks/handoff/plot.py

Left: from A's last token to B's first one, without the overlap, with it, and at best. Right: what that costs
A. Medians, with the 20th and 80th percentile; one conversation at a time, on the GPU. Needs matplotlib.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_ROOT)]

from benchmarks.handoff.report import Row, load

PLOT = _ROOT / "docs/performance-handoff.svg"
VARIANTS = {
    "off": ("no overlap", "#999999"),
    "ours": ("overlap", "#0072b2"),
    "floor": ("at best: only the last 128 tokens", "#009e73"),
}
METRIC, COST = "handoff_ms", "upstream_itl_mean_ms"
KEYS = {"heads", "prefix", "upstream", "concurrency", "shape", "attention", "a"}
Cell = dict[tuple[str, str], Row]


def cells(rows: list[Row]) -> list[tuple[dict[str, Any], Cell]]:
    """The cases that are drawn, each with its rows by variant and metric: plain ones on a GPU, one at a time.

    Of several shapes, attention backends and GPUs, those of which most was measured; of these, the newest.
    """
    plain = [r for r in rows if r["device"] != "cpu" and set(r["case"]) == KEYS]
    plain = [r for r in plain if r["case"]["concurrency"] == 1 and r["case"]["a"] == "shared"]
    settings = Counter((r["case"]["shape"], r["case"]["attention"]) for r in plain)
    newest = max(plain, key=lambda r: (settings[r["case"]["shape"], r["case"]["attention"]], r["run"]))
    found: dict[tuple[Any, ...], tuple[dict[str, Any], Cell]] = {}
    for row in plain:
        case = row["case"]
        if all(case[k] == newest["case"][k] for k in ("shape", "attention")) and (
            row["device"] == newest["device"]
        ):
            key = (case["heads"] == "warm", case["prefix"], case["upstream"])
            found.setdefault(key, (case, {}))[1][row["variant"], row["metric"]] = row
    return [found[key] for key in sorted(found) if all((v, METRIC) in found[key][1] for v in ("off", "ours"))]


def bar_id(variant: str, row: Row) -> str:
    """The id of a bar's element in the picture: what it shows."""
    case = row["case"]
    what = [row["metric"], variant, case["heads"], case["prefix"], case["upstream"], row["p50"]]
    return ":".join(map(str, what))


def label(case: dict[str, Any]) -> str:
    """A case in two lines."""
    head = f"head of {case['prefix']:,}, {case['heads']}" if case["prefix"] else "no head"
    return f"{head}\nA writes {case['upstream']:,} tokens"


def _beside(axis: Any, x: float, y: float, text: str) -> None:
    axis.annotate(text, (x, y), (3, 0), textcoords="offset points", va="center", fontsize=7)


def draw(rows: list[Row], target: Path) -> None:
    """Write the picture."""
    import matplotlib
    from matplotlib.figure import Figure

    chosen = cells(rows)
    settings = {"svg.fonttype": "none", "svg.hashsalt": "handoff", "font.size": 8}
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=(8, 0.62 * len(chosen) + 1), layout="constrained", facecolor="white")
        left, right = figure.subplots(1, 2, sharey=True, width_ratios=[3, 1])
        for i, (_, cell) in enumerate(chosen):
            for j, (variant, (_, color)) in enumerate(VARIANTS.items()):
                if (row := cell.get((variant, METRIC))) is None:
                    continue
                spread = [[row["p50"] - row["p20"]], [row["p80"] - row["p50"]]]
                bars = left.barh(i + 0.27 * (j - 1), row["p50"], 0.25, color=color, xerr=spread)
                bars.patches[0].set_gid(bar_id(variant, row))
                _beside(left, row["p80"], i + 0.27 * (j - 1), f"{row['p50']:.0f}")
            if (off := cell.get(("off", COST))) and (ours := cell.get(("ours", COST))):
                cost = 100 * (ours["p50"] / off["p50"] - 1)
                bars = right.barh(i, cost, 0.4, color="#d55e00")
                bars.patches[0].set_gid(bar_id("ours", ours))
                _beside(right, max(cost, 0), i, f"{round(cost, 1) or 0:g}")
        left.set_yticks(range(len(chosen)), [label(case) for case, _ in chosen])
        left.invert_yaxis()
        left.set_xlabel("ms from A's last token to B's first one")
        right.set_xlabel("A's tokens take longer by, %")
        for axis in (left, right):
            axis.spines[["top", "right"]].set_visible(False)
            axis.margins(x=0.15)
        right.set_xlim(left=0)
        handles = [matplotlib.patches.Patch(color=color, label=name) for name, color in VARIANTS.values()]
        figure.legend(handles=handles, loc="outside upper left", ncols=3, frameon=False)
        newest = next(iter(chosen[0][1].values()))
        about = f"{newest['device']}, {newest['case']['shape']}, {newest['case']['attention']}"
        figure.savefig(target, metadata={"Date": None, "Title": f"Hand-off, {about}"})


def main() -> None:
    """Write docs/performance-handoff.svg."""
    draw(load(), PLOT)
    print(f"wrote {PLOT.relative_to(_ROOT)}")


if __name__ == "__main__":
    main()
