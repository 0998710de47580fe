"""Small HTML tables for notebooks and pages; every text in them is escaped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .engine import Engine


def shown(value: Any) -> str:
    """A value as people read it; "" for None."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def html_table(rows: Sequence[Sequence[str]], head: Sequence[str] = ()) -> str:
    """A plain table of texts; columns that look like numbers stand right."""
    parts = ["<table>"]
    if head:
        parts.append("<thead><tr>" + "".join(f"<th>{escape(text)}</th>" for text in head) + "</tr></thead>")
    parts.append("<tbody>")
    for row in rows:
        parts.append("<tr>" + "".join(_td(text) for text in row) + "</tr>")
    return "".join([*parts, "</tbody></table>"])


def _td(text: str) -> str:
    number = text[:1].isdigit() and text.replace(",", "").replace(".", "").isdigit()
    style = ' style="text-align:right"' if number else ""
    return f"<td{style}>{escape(text)}</td>"


def figures_html(title: str, figures: Mapping[str, Any]) -> str:
    """A titled table of names and values."""
    rows = [(name.replace("_", " "), shown(value)) for name, value in figures.items()]
    return f"<b>{escape(title)}</b>{html_table(rows)}"


def engine_html(engine: Engine) -> str:
    """What a notebook shows of an engine."""
    if engine.info is None:
        return f"<b>Engine</b>: not started (<code>{escape(repr(engine))}</code>)"
    return engine.info._repr_html_()


__all__ = ["engine_html", "figures_html", "html_table", "shown"]
