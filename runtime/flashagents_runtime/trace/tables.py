"""Small HTML tables for notebooks and pages; every text in them is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from ..html_tables import html_table, shown
from .groups import KINDS
from .view import Row, Summary, TraceView

if TYPE_CHECKING:
    from .recorder import Trace

_MOST_ROWS = 50  # of a notebook's table

COLUMNS = {
    "workflow": "workflow",
    "agent": "agent",
    "start": "start s",
    "gap": "hand-off ms",
    "first_token": "first token ms",
    "seconds": "total s",
    "rate": "tokens/s",
    "prompt": "prompt",
    "cached": "cached",
    "prewarmed": "prewarmed",
    "shared_in_turn": "shared in turn",
    "wasted": "wasted",
    "completion": "completion",
    "ahead": "ahead s",
    "outcome": "outcome",
}
_MS = {"gap", "first_token"}
SUMMARY = {
    "seconds": "seconds",
    "turns": "turns",
    "first_token": "first token ms, mean",
    "gap": "hand-off ms, mean",
    "prompt": "prompt tokens",
    "cached": "cached",
    "prewarmed": "prewarmed",
    "shared_in_turn": "shared in turn",
    "wasted": "wasted",
    "completion": "completion tokens",
    "chunks": "warm-up requests",
    "aborted_chunks": "of these aborted",
}


def cell(name: str, value: Any) -> str:
    """A value of one of the columns as people read it."""
    return f"{value * 1000:,.1f}" if name in _MS and value is not None else shown(value)


GROUP_COLUMNS = {
    "name": "",
    "turns": "turns",
    "gap": "hand-off ms, mean",
    "first_token": "first token ms, mean",
    "seconds": "seconds, summed",
    "prompt": "prompt",
    "cached": "cached",
    "prewarmed": "prewarmed",
    "shared_in_turn": "shared in turn",
    "wasted": "wasted",
    "completion": "completion",
}


def group_tables(view: TraceView) -> list[tuple[str, list[list[str]]]]:
    """Title and rows by `GROUP_COLUMNS` of each grouping with more than one group."""
    tables = []
    for by in KINDS:
        found = view.groups(by)
        if len(found) > 1:
            rows = [[cell(name, getattr(group, name)) for name in GROUP_COLUMNS] for group in found]
            tables.append((f"By {by}", rows))
    return tables


def turn_rows(rows: Iterable[Row]) -> list[list[str]]:
    """The table of turns, as texts, by `COLUMNS`."""
    return [[cell(name, getattr(row, name)) for name in COLUMNS] for row in rows]


def summary_rows(summaries: Sequence[Summary]) -> list[list[str]]:
    """Sums of one trace, or of two side by side with the first one's part of the second."""
    rows = []
    for name, title in SUMMARY.items():
        values = [getattr(summary, name) for summary in summaries]
        row = [title, *(cell(name, value) for value in values)]
        if len(values) == 2:
            row.append(f"{values[0] / values[1]:.0%}" if values[0] is not None and values[1] else "")
        rows.append(row)
    return rows


def trace_html(trace: Trace) -> str:
    """What a notebook shows of a trace: sums, and the first turns."""
    view = trace.view
    rows = view.rows
    more = f"<p>... and {len(rows) - _MOST_ROWS} more turns</p>" if len(rows) > _MOST_ROWS else ""
    return (
        f"<b>{escape(trace.name or 'Trace')}</b>: {len(trace)} events"
        + (f", {trace.dropped} older ones dropped" if trace.dropped else "")
        + html_table(summary_rows([view.summary]))
        + html_table(turn_rows(rows[:_MOST_ROWS]), list(COLUMNS.values()))
        + more
    )


__all__ = [
    "COLUMNS",
    "GROUP_COLUMNS",
    "SUMMARY",
    "cell",
    "group_tables",
    "summary_rows",
    "trace_html",
    "turn_rows",
]
