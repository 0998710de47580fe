"""The time line as a matplotlib figure, for papers. Needs the extra `trace`."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from .._extras import require
from .bars import Bars
from .colors import GAP, KINDS

if TYPE_CHECKING:
    from .recorder import Trace

_THINNEST = 0.4  # points: a chunk of milliseconds is seen beside turns of seconds


def paper_figure(trace: Trace, compare: Trace | None, width: float) -> Any:
    """A `matplotlib.figure.Figure` that belongs to no window; `width` in inches.

    Raises ImportError where matplotlib is missing.
    """
    figures = require("matplotlib.figure", "trace")
    patches = require("matplotlib.patches", "trace")
    traces = [trace] if compare is None else [trace, compare]
    pictures = [Bars(one.view) for one in traces]
    heights = [max(len(p.lanes), 2) * (0.12 if p.view.by_workflow else 0.24) for p in pictures]
    figure = figures.Figure(figsize=(width, sum(heights) + 0.75 * len(traces)), layout="constrained")
    axes = figure.subplots(len(traces), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    kinds: set[str] = set()
    for one, picture, axis in zip(traces, pictures, axes, strict=True):
        kinds |= _draw(axis, picture)
        if compare is not None:
            axis.set_title(one.name.replace("$", r"\$"), fontsize=8, loc="left")
    axes[-1].set_xlabel("seconds", fontsize=8)
    handles = [
        patches.Patch(color=color, label=name) for kind, (color, name) in KINDS.items() if kind in kinds
    ]
    if handles:
        figure.legend(handles=handles, loc="outside upper center", ncols=3, fontsize=7, frameon=False)
    return figure


def _draw(axis: Any, picture: Bars) -> set[str]:
    rows: dict[tuple[str, int], list[tuple[float, float]]] = defaultdict(list)
    for bar in picture.bars:
        rows[bar.kind, bar.lane].append((bar.start, bar.end - bar.start))
    low = {bar.kind for bar in picture.bars if bar.low}
    for (kind, lane), spans in rows.items():
        place = (lane + 0.14, 0.26) if kind in low else (lane - 0.4, 0.5)
        axis.broken_barh(
            spans,
            place,
            color=KINDS[kind][0],
            alpha=0.5 if kind == "wait" else 1.0,
            linewidth=_THINNEST if kind in low else 0,
            snap=False,  # to whole pixels: what is thinner than one would be gone
        )
    for gap in picture.gaps:
        axis.plot([gap.start, gap.end], [gap.from_lane - 0.15, gap.to_lane - 0.15], color=GAP, linewidth=0.8)
    names = [name.replace("$", r"\$") for name in picture.lanes]
    axis.set_yticks(range(len(names)), names, fontsize=4 if picture.view.by_workflow else 7)
    axis.set_ylim(max(len(names), 1) - 0.4, -0.6)
    axis.tick_params(axis="x", labelsize=7)
    axis.spines[["top", "right"]].set_visible(False)
    return {kind for kind, _ in rows} | ({"gap"} if picture.gaps else set())


__all__ = ["paper_figure"]
