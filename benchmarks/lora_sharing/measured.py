"""The rows of `run.py`, cell by cell, with ratios of what was measured side by side."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def load(path: Path) -> list[Row]:
    """All rows, oldest first."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [row for row in map(json.loads, lines) if row["experiment"] == "lora_sharing"]


def sections(rows: Iterable[Row]) -> dict[tuple[str, str], list[Measured]]:
    """The cells of the trace, by device and shape."""
    found: dict[tuple[str, str], dict[str, Measured]] = {}
    for row in rows:
        if "pool" in row["case"]:
            cells = found.setdefault((row["device"], row["case"]["shape"]), {})
            cells.setdefault(json.dumps(row["case"], sort_keys=True), Measured(row["case"])).add(row)
    return {key: list(cells.values()) for key, cells in found.items()}


class Measured:
    """One cell."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.case = case
        self._runs: dict[str, dict[tuple[str, str], Row]] = {}

    def add(self, row: Row) -> None:
        """Take a row in; those of one run belong together."""
        self._runs.setdefault(row["run"], {})[row["variant"], row["metric"]] = row

    def rows(self) -> list[Row]:
        """All of them."""
        return [row for run in self._runs.values() for row in run.values()]

    def has(self, variant: str) -> bool:
        return any(name == variant for run in self._runs.values() for name, _ in run)

    @property
    def bound(self) -> str:
        """The variant that computes no more than it has to: with one role `none` does."""
        return "none" if self.case["roles"] == 1 else "floor"

    def p50(self, variant: str, metric: str) -> float:
        """The newest median; KeyError where there is none."""
        return float(self._newest(variant, metric)["p50"])

    def shown(self, variant: str, metric: str) -> str:
        """The newest median, with the 20th and 80th percentile where they differ."""
        row = self._newest(variant, metric)
        figures = [f"{row[p]:,.0f}" for p in ("p50", "p20", "p80")]
        return figures[0] if row["n"] == 1 else f"{figures[0]} ({figures[1]} to {figures[2]})"

    def _newest(self, variant: str, metric: str) -> Row:
        for run in reversed(self._runs.values()):
            if (variant, metric) in run:
                return run[variant, metric]
        raise KeyError((variant, metric))

    def ratio(self, metric: str, one: str, other: str, beside: str | None = None) -> float | None:
        """One variant's median over another's, of one run where there is one that has both.

        Args:
            beside: of a run that has this variant too, if there is one.
        """
        for wanted in ({one, other, beside or one}, {one, other}):
            for run in reversed(self._runs.values()):
                if all((name, metric) in run for name in wanted):
                    return _over(run[one, metric], run[other, metric])
        try:  # engines that do not fit beside each other may have been measured in two runs
            return _over(self._newest(one, metric), self._newest(other, metric))
        except KeyError:
            return None

    def gain(self, metric: str, one: str, other: str, beside: str | None = None) -> float | None:
        """How many times better one variant is than the other."""
        ratio = self.ratio(metric, one, other, beside)
        if ratio is None or ratio == 0:
            return None
        return 1 / ratio if metric.endswith("_ms") else ratio


def _over(one: Row, other: Row) -> float:
    return float(one["p50"]) / float(other["p50"]) if other["p50"] else 0.0
