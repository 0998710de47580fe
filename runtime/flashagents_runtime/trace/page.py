"""One self-contained page of a trace: time line, sums, table of turns. Needs the extra `trace`.

The chart is plotly's, whose script its own wheel brings along; nothing is loaded from anywhere.
"""

from __future__ import annotations

from importlib import resources
from typing import TYPE_CHECKING

import jinja2

from .._extras import require
from .tables import COLUMNS, GROUP_COLUMNS, group_tables, summary_rows, turn_rows
from .timeline import EXTRA, timeline

if TYPE_CHECKING:
    from .recorder import Trace

CHART_ID = "timeline"


def page(trace: Trace, compare: Trace | None = None) -> str:
    """The page as HTML. Raises ImportError where plotly is missing."""
    io = require("plotly.io", EXTRA)
    chart = io.to_html(
        timeline(trace, compare),
        include_plotlyjs=True,
        full_html=False,
        div_id=CHART_ID,
        config={"scrollZoom": True, "displaylogo": False, "responsive": True},
    )
    traces = [trace] if compare is None else [trace, compare]
    names = [one.name or ("this run", "compared with")[i] for i, one in enumerate(traces)]
    views = [one.view for one in traces]
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    template = resources.files(__package__).joinpath("page.html.jinja").read_text("utf-8")
    return environment.from_string(template).render(
        title=" / ".join(names) if compare is not None else trace.name or "FlashAgents trace",
        chart=chart,
        chart_id=CHART_ID,
        names=names,
        summary=summary_rows([view.summary for view in views]),
        columns=list(COLUMNS.values()),
        group_columns=list(GROUP_COLUMNS.values()),
        turns=[
            (name, group_tables(view), turn_rows(view.rows), one.dropped)
            for name, view, one in zip(names, views, traces, strict=True)
        ],
    )


__all__ = ["CHART_ID", "page"]
