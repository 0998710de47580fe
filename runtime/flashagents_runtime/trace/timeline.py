"""The time line as a plotly figure. Needs the extra `trace`."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from .._extras import require
from .bars import Bars
from .colors import GAP, KINDS

if TYPE_CHECKING:
    from .recorder import Trace

EXTRA = "trace"
_LANE = {False: 34, True: 22}  # pixels a lane: agents, workflows


def timeline(trace: Trace, compare: Trace | None = None) -> Any:
    """A `plotly.graph_objects.Figure`: one row for each trace, on one axis of seconds.

    Raises ImportError where plotly is missing.
    """
    graph_objects = require("plotly.graph_objects", EXTRA)
    subplots = require("plotly.subplots", EXTRA)
    traces = [trace] if compare is None else [trace, compare]
    pictures = [Bars(one.view) for one in traces]
    heights = [max(3, len(p.lanes)) * _LANE[p.view.by_workflow] + 20 for p in pictures]
    figure = subplots.make_subplots(
        rows=len(traces),
        cols=1,
        shared_xaxes="all",
        row_heights=heights,
        vertical_spacing=50 / (sum(heights) + 50) if compare is not None else 0,
        subplot_titles=[_title(one, i) for i, one in enumerate(traces)] if compare is not None else None,
    )
    shown: set[str] = set()
    for row, picture in enumerate(pictures, 1):
        for part in _parts(graph_objects, picture, shown):
            figure.add_trace(part, row=row, col=1)
        figure.update_yaxes(
            row=row,
            tickvals=list(range(len(picture.lanes))),
            ticktext=[escape(name) for name in picture.lanes],
            range=[max(len(picture.lanes), 1) - 0.45, -0.55],
            zeroline=False,
            fixedrange=True,
            showgrid=len(picture.lanes) <= 100,
        )
    figure.update_annotations(x=0, xanchor="left", font_size=13)  # the titles
    figure.update_xaxes(ticksuffix=" s", zeroline=False, rangemode="nonnegative")
    figure.update_xaxes(showticklabels=True)
    above = (8 if compare is None else 30) / sum(heights)
    figure.update_layout(
        barmode="overlay",
        height=sum(heights) + 130 + (50 if compare is not None else 0),
        margin={"l": 10, "r": 20, "t": 60 if compare is None else 85, "b": 40},
        legend={
            "orientation": "h",
            "y": 1 + above,
            "yanchor": "bottom",
            "x": 0,
        },
        dragmode="zoom",
        hovermode="closest",
        plot_bgcolor="rgba(0,0,0,0)",
        paper_bgcolor="rgba(0,0,0,0)",
        bargap=0,
        uirevision="keep",
    )
    return figure


def _title(trace: Trace, position: int) -> str:
    return escape(trace.name) or ("this run", "compared with")[position]


def _parts(graph_objects: Any, picture: Bars, shown: set[str]) -> list[Any]:
    """One plotly trace a kind of bar, so that thousands of bars stay quick."""
    parts: list[Any] = []
    for kind, (color, name) in KINDS.items():
        bars = [bar for bar in picture.bars if bar.kind == kind]
        if not bars:
            continue
        low = bars[0].low
        edge = 0.5 if kind == "decode" and picture.view.by_workflow else 0  # parts turns of one lane
        parts.append(
            graph_objects.Bar(
                orientation="h",
                base=[bar.start for bar in bars],
                x=[bar.end - bar.start for bar in bars],
                y=[bar.lane + (0.28 if low else -0.12) for bar in bars],
                width=[0.24 if low else 0.52 for _ in bars],
                customdata=[bar.hint for bar in bars],
                hovertemplate="%{customdata}<extra></extra>",
                text=[bar.label for bar in bars] if kind in ("decode", "tool") else None,
                textposition="inside",
                insidetextanchor="start",
                textangle=0,
                constraintext="both",
                textfont={"color": "white", "size": 11},
                marker={
                    "color": color,
                    "opacity": 0.45 if kind == "wait" else 1.0,
                    "line": {"width": edge, "color": "white"},
                },
                name=name,
                legendgroup=kind,
                showlegend=kind not in shown,
            )
        )
        shown.add(kind)
    if picture.gaps:
        parts += _arrows(graph_objects, picture, "gap" not in shown)
        shown.add("gap")
    if picture.marks:
        parts.append(
            graph_objects.Scatter(
                x=[time for _, time, _ in picture.marks],
                y=[lane + 0.28 for lane, _, _ in picture.marks],
                customdata=[hint for _, _, hint in picture.marks],
                hovertemplate="%{customdata}<extra></extra>",
                mode="markers",
                marker={"symbol": "diamond", "size": 8, "color": "#56b4e9"},
                name="marks",
                legendgroup="mark",
                showlegend="mark" not in shown,
            )
        )
        shown.add("mark")
    return parts


def _arrows(graph_objects: Any, picture: Bars, legend: bool) -> list[Any]:
    x: list[float | None] = []
    y: list[float | None] = []
    for gap in picture.gaps:
        x += [gap.start, gap.end, None]
        y += [gap.from_lane - 0.12, gap.to_lane - 0.12, None]
    lines = graph_objects.Scatter(
        x=x,
        y=y,
        mode="lines",
        line={"color": GAP, "width": 1.5},
        hoverinfo="skip",
        name=KINDS["gap"][1],
        legendgroup="gap",
        showlegend=legend,
    )
    heads = graph_objects.Scatter(
        x=[gap.end for gap in picture.gaps],
        y=[gap.to_lane - 0.12 for gap in picture.gaps],
        customdata=[gap.hint for gap in picture.gaps],
        hovertemplate="%{customdata}<extra></extra>",
        mode="markers",
        marker={"symbol": "circle", "size": 6, "color": GAP},
        legendgroup="gap",
        showlegend=False,
    )
    return [lines, heads]


__all__ = ["EXTRA", "timeline"]
