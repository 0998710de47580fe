"""One picture for each experiment, from its rows; drawn by report.py. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Row = dict[str, Any]
Point = tuple[Any, float, float, float]
"""Place on the x axis, 50th, 20th and 80th percentile."""
OUTPUTS = (128, 512, 128 // 16, 512 // 16)  # of A; the latter two are of a dry run


@dataclass
class Panel:
    """One diagram: a line for each name, with a point for each place."""

    title: str
    x: str
    y: str
    lines: dict[str, list[Point]] = field(default_factory=dict)

    def put(self, name: str, point: Point) -> None:
        """Add a point to a line."""
        self.lines.setdefault(name, []).append(point)


def _panels(rows: Iterable[Row], metric: str, key: Callable[[Row], str], x: str, y: str) -> list[Panel]:
    """Of each key a panel with a line a variant."""
    found: dict[str, Panel] = {}
    for row in rows:
        if row["metric"] == metric:
            panel = found.setdefault(key(row), Panel(key(row), x.replace("_", " "), y))
            panel.put(row["variant"], (row["case"][x], row["p50"], row["p20"], row["p80"]))
    return list(found.values())


def cascade(rows: list[Row]) -> list[Panel]:
    """Of each set-up, answers of 128 and 512 tokens: how many times ours' time the best stock's is."""
    found: dict[str, Panel] = {}
    cells: dict[tuple[Any, ...], dict[str, Row]] = {}
    for row in rows:
        case = row["case"]
        if row["metric"] == "first_to_first_ms" and case["cells"] == "cascade":
            of = (case["setup"], case["cells"], case["prefixes"], case["output"], case["prefix"])
            cells.setdefault((*of, case["concurrency"]), {})[row["variant"]] = row
    for (setup, of, prefixes, output, prefix, at_once), by in cells.items():
        stock = [row["p50"] for name, row in by.items() if name in ("stock-fcfs", "stock-lpm")]
        if not stock or "ours" not in by or output not in OUTPUTS:
            continue
        title = f"{of}, {setup}, prefixes {prefixes}"
        panel = found.setdefault(
            title, Panel(title, "conversations at once", "best stock / ours, first to first token")
        )
        ours = by["ours"]
        low, high = (min(stock) / ours[p] for p in ("p80", "p20"))
        panel.put(f"{prefix:,} + {output:,}", (at_once, min(stock) / ours["p50"], low, high))
    return list(found.values())


def workflows(rows: list[Row]) -> list[Panel]:
    """From end to end."""

    def key(row: Row) -> str:
        case = row["case"]
        return f"{case['workflow']}, {case['upstream']} to {case['downstream']}, GPUs: {case['gpus']}"

    return _panels(rows, "end_ms", key, "concurrency", "ms from end to end")


def load(rows: list[Row]) -> list[Panel]:
    """The 95th percentile, and the throughput."""

    def key(row: Row) -> str:
        return f"{row['case'].get('workflows', 'chains')}, {row['case']['shape']}"

    slow = _panels(rows, "end_p95_ms", key, "load_percent", "ms from end to end, p95")
    return slow + _panels(rows, "tokens_a_second", key, "load_percent", "tokens a second")


def sjf(rows: list[Row]) -> list[Panel]:
    """Mean and p99 of the jobs."""
    found = []
    for metric, y in (("job_mean_ms", "ms a job, mean"), ("job_p99_ms", "ms a job, p99")):
        found += _panels(rows, metric, lambda row: str(row["case"]["setup"]), "concurrency", y)
    return found


def overhead(rows: list[Row]) -> list[Panel]:
    """Chunks against one pass, a panel for each number of cached tokens."""
    whole = {}
    for row in rows:
        if row["metric"] == "sum_ms" and row["case"]["chunk"] == "one pass":
            whole[row["variant"], row["case"]["shape"], row["case"]["cached"]] = row["p50"]
    found: dict[int, Panel] = {}
    for row in rows:
        case = row["case"]
        if row["metric"] != "sum_ms" or case["chunk"] == "one pass":
            continue
        one = whole.get((row["variant"], case["shape"], case["cached"]))
        if one is None:
            continue
        panel = found.setdefault(
            case["cached"],
            Panel(f"{case['cached']:,} tokens cached", "tokens a chunk", "all chunks / one pass"),
        )
        values = (row[p] / one for p in ("p50", "p20", "p80"))
        panel.put(f"{case['shape']}, {row['variant']}", (int(case["chunk"]), *values))
    return list(found.values())


PANELS: dict[str, Callable[[list[Row]], list[Panel]]] = {
    "cascade": cascade,
    "workflows": workflows,
    "load": load,
    "sjf": sjf,
    "overhead": overhead,
}


def pictures(rows: list[Row], *, cpu: bool = False) -> dict[str, list[Panel]]:
    """The panels of each experiment that has rows of a GPU (with `cpu`: of a CPU)."""
    found = {}
    for name, make in PANELS.items():
        own = [r for r in rows if r["experiment"] == f"paper_{name}" and (r["device"] == "cpu") == cpu]
        if panels := make(own):
            found[name] = panels
    return found


def draw(panels: list[Panel], target: Path) -> None:
    """Write the picture."""
    import matplotlib
    from matplotlib.figure import Figure

    settings = {"svg.fonttype": "none", "svg.hashsalt": target.name, "font.size": 8}
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=(8, 3.2 * len(panels)), layout="constrained", facecolor="white")
        axes = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
        for axis, panel in zip(axes, panels, strict=True):
            for name, points in panel.lines.items():
                ordered = sorted(points)
                x = [str(p[0]) for p in ordered]
                spread = [[p[1] - p[2] for p in ordered], [p[3] - p[1] for p in ordered]]
                spread = [[max(value, 0.0) for value in side] for side in spread]
                line = axis.errorbar(x, [p[1] for p in ordered], spread, label=name, marker="o", capsize=2)
                line.lines[0].set_gid(f"{panel.title}:{panel.y}:{name}")
            axis.set_title(panel.title)
            axis.set_xlabel(panel.x)
            axis.set_ylabel(panel.y)
            axis.set_ylim(bottom=0)
            axis.spines[["top", "right"]].set_visible(False)
            axis.legend(frameon=False, fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
        figure.savefig(target, metadata={"Date": None, "Title": target.stem})
