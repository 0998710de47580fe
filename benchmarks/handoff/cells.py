"""What is measured, the cells with most to say first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

UPSTREAM = (128, 512, 2048)
PREFIX = (0, 500, 2000, 8000)
CONCURRENCY = (1, 2, 4, 8)
CHUNKS = ("sizer", "128", "256", "512", "1024", "one pass")


@dataclass(frozen=True)
class Cell:
    """One table cell; token counts before scaling.

    Attributes:
        upstream: tokens that A writes.
        prefix: tokens of B's prompt before A's text.
        concurrency: conversations at once, each with an A and a B of its own.
        heads: "warm" where the prefixes are prefilled before A begins.
        wrong: how many of the forecasts are of another prompt, percent.
    """

    upstream: int
    prefix: int
    concurrency: int
    heads: Literal["cold", "warm"] = "cold"
    wrong: int | None = None

    def case(self, scale: int) -> dict[str, Any]:
        """The keys of its rows, with the counts as run."""
        found: dict[str, Any] = {
            "upstream": self.upstream // scale,
            "prefix": self.prefix // scale,
            "concurrency": self.concurrency,
            "heads": self.heads,
        }
        return found if self.wrong is None else {**found, "wrong": self.wrong}


def cells(*, held: bool = False) -> Iterator[Cell | Literal["chunks"]]:
    """The core, the chunk sweep, wrong forecasts, warm heads; then the rest, short ones first.

    With A `held` to a rate, short texts come first: they last long enough.
    """
    if held:
        yield from (Cell(128, p, c) for c in (1, 8) for p in (2000, 8000))
    core: list[Cell | Literal["chunks"]] = [
        Cell(2048, 8000, 1),
        Cell(512, 2000, 1),
        "chunks",
        Cell(512, 8000, 1),
        Cell(512, 2000, 8),
        Cell(512, 8000, 8),
        Cell(512, 8000, 1, "warm"),
        *(Cell(512, 2000, 2, wrong=wrong) for wrong in (0, 50, 100)),
        Cell(2048, 2000, 1),
        Cell(512, 8000, 8, "warm"),
        Cell(2048, 2000, 8),
        Cell(2048, 8000, 8),
        Cell(2048, 8000, 1, "warm"),
        Cell(2048, 8000, 8, "warm"),
    ]
    yield from core
    grid = [Cell(a, p, c) for a in UPSTREAM for p in PREFIX for c in CONCURRENCY]
    yield from (cell for cell in grid if cell not in core)
    warm = [Cell(a, p, c, "warm") for a in UPSTREAM for p in PREFIX[1:] for c in CONCURRENCY]
    yield from (cell for cell in warm if cell not in core)
