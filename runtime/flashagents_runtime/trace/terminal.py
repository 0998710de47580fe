"""A trace on a terminal."""

from __future__ import annotations

from rich.console import Console, Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from .bars import Bars
from .colors import KINDS
from .recorder import Trace
from .tables import COLUMNS, summary_rows, turn_rows

_HEAVY = {"decode": "█", "wait": "░", "ahead": "▪", "aborted": "×", "tool": "▒"}  # noqa: RUF001 (a sign)
_TEXTS = {"workflow", "agent", "outcome"}
_DROPPED_FIRST = ("ahead", "start", "rate", "completion", "shared_in_turn", "seconds", "wasted", "workflow")


def render(trace: Trace, width: int) -> Group:
    """Time line, sums and turns; `width` in columns."""
    view = trace.view
    head = Text(trace.name or "Trace", style="bold")
    if trace.dropped:
        head.append(f"  ({trace.dropped} older events were dropped)", style="yellow")
    return Group(head, _lanes(Bars(view), width), _summary(trace), _turns(trace, width))


def _lanes(picture: Bars, width: int) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 1), pad_edge=False)
    name = max([8, *map(len, picture.lanes)])
    columns = max(20, width - name - 2)
    table.add_column(no_wrap=True, min_width=name)
    table.add_column()
    low, high = picture.view.bounds
    seconds = max(high - low, 1e-9)
    # What lies in a lane's lower half on a page is drawn first here, and so covered where both fall together.
    for lane, title in enumerate(picture.lanes):
        line = [" "] * columns
        styles = [""] * columns
        for bar in sorted((bar for bar in picture.bars if bar.lane == lane), key=lambda bar: not bar.low):
            first = min(int(bar.start / seconds * columns), columns - 1)
            last = min(int(bar.end / seconds * columns), columns - 1)
            for i in range(first, last + 1):
                line[i], styles[i] = _HEAVY[bar.kind], KINDS[bar.kind][0]
        drawn = Text()
        for sign, style in zip(line, styles, strict=True):
            drawn.append(sign, style=style)
        table.add_row(escape(title), drawn)
    legend = Text()
    for kind, sign in _HEAVY.items():
        legend.append(f"{sign} {KINDS[kind][1]}  ", style=KINDS[kind][0])
    table.add_row(f"{seconds:.2f} s", legend)
    return table


def _summary(trace: Trace) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column()
    table.add_column(justify="right")
    for row in summary_rows([trace.view.summary]):
        table.add_row(*row)
    return table


def _turns(trace: Trace, width: int) -> Table:
    """The table of turns, without columns that say nothing, and without the last ones to be missed."""
    cells = dict(zip(COLUMNS, zip(*turn_rows(trace.view.rows), strict=True), strict=False))
    if len(set(cells.get("outcome", ()))) == 1:
        del cells["outcome"]
    if len(set(cells.get("workflow", ()))) == 1:
        del cells["workflow"]
    kept = {name: column for name, column in cells.items() if any(cell not in ("", "0") for cell in column)}
    wide = {name: max(len(COLUMNS[name]), *map(len, column)) + 1 for name, column in kept.items()}
    for name in _DROPPED_FIRST:
        if sum(wide.values()) > width:
            kept.pop(name, None)
            wide.pop(name, None)
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for name in kept:
        table.add_column(COLUMNS[name], justify="left" if name in _TEXTS else "right", no_wrap=True)
    for row in zip(*kept.values(), strict=True):
        table.add_row(*map(escape, row))
    return table


def show(trace: Trace, console: Console | None = None) -> None:
    """Print it."""
    console = console or Console()
    console.print(render(trace, console.width))


__all__ = ["render", "show"]
