"""What is measured, in groups of engines that fit beside each other on one H200."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

BASELINES = ("none", "floor")
"""Measured again in each group, for the ratios: what is compared was measured in one run."""

OF_ENGINE = {"none": "none", "floor": "none"}
"""The engine of a variant, where it has another name: the floor is stock SGLang with one role's adapter."""


@dataclass(frozen=True)
class Cell:
    """One conversation, or several at once.

    Attributes:
        context: one of `trace.CONTEXTS`.
        trajectories: how many are under way at any time.
        roles: adapters that take part.
        overlap: percent of the context that all roles have in common.
    """

    context: str
    trajectories: int = 1
    roles: int = 3
    overlap: int = 100

    def __str__(self) -> str:
        return f"{self.context} x {self.trajectories}, {self.roles} roles, {self.overlap}%"


@dataclass(frozen=True)
class Group:
    """Engines that run side by side, or one after another, with pools of one size.

    Attributes:
        variants: what is compared; `OF_ENGINE` says on which engines.
        pool: tokens of KV that each engine has.
        members: adapters that are loaded into each engine.
        cells: in the order of their worth.
        in_turn: one engine at a time: two do not fit.
    """

    name: str
    variants: Sequence[str]
    pool: int
    members: int
    cells: Sequence[Cell]
    in_turn: bool = False

    @property
    def engines(self) -> list[str]:
        """Names of the engines."""
        return list(dict.fromkeys(OF_ENGINE.get(v, v) for v in self.variants))

    @property
    def starts(self) -> list[list[str]]:
        """The engines that are up at the same time."""
        return [[name] for name in self.engines] if self.in_turn else [self.engines]

    def measured(self, cell: Cell, engines: Sequence[str]) -> list[str]:
        """The cell's variants on these engines. With one role the floor is `none`."""
        found = [v for v in self.variants if OF_ENGINE.get(v, v) in engines]
        return [v for v in found if not (v == "floor" and cell.roles == 1)]

    def own(self, cell: Cell, engines: Sequence[str]) -> list[str]:
        """Of these, what decides whether the cell is done: the baselines are measured beside others too."""
        measured = self.measured(cell, engines)
        return [v for v in measured if v not in BASELINES] or measured


_WIDE = [Cell("33.7k", overlap=n) for n in (60, 20, 0)]
_REST = [Cell("9.1k"), Cell("17.3k"), Cell("9.1k", 8), *_WIDE, Cell("1.9k"), Cell("1.9k", 8), Cell("128k")]

GROUPS = {
    group.name: group
    for group in (
        # The marks of base_lr and full, where nothing is evicted but in stock's eight trajectories.
        Group(
            "shared",
            ("none", "floor", "full", "base_lr"),
            190_000,
            16,
            [
                Cell("33.7k"),
                Cell("66.4k"),
                Cell("17.3k", 8),
                Cell("33.7k", roles=1),
                Cell("33.7k", roles=8),
                Cell("33.7k", roles=16),
                *_REST,
            ],
        ),
        # Eight trajectories of 66.4k: one shared context of each fits, three do not.
        Group(
            "large",
            ("none", "floor", "base_lr", "full"),
            600_000,
            3,
            [Cell("66.4k", 8)],
            in_turn=True,
        ),
        # The schemes that keep a row for each role.
        Group(
            "rows",
            ("none", "floor", "precomputed", "base"),
            190_000,
            3,
            [
                Cell("33.7k"),
                Cell("66.4k"),
                Cell("17.3k", 8),
                Cell("33.7k", roles=1),
                *_REST,
            ],
        ),
        Group("eight", ("none", "floor", "base_lr"), 340_000, 3, [Cell("33.7k", 8)]),
        Group("rows16", ("none", "floor", "precomputed", "base"), 170_000, 16, [Cell("33.7k", roles=16)]),
        Group("rows8", ("none", "floor", "precomputed", "base"), 180_000, 8, [Cell("33.7k", roles=8)]),
    )
}


def chosen(group: Group, only: str) -> Iterator[Cell]:
    """The group's cells whose name contains `only`."""
    return (cell for cell in group.cells if only in str(cell))


def case(cell: Cell, pool: int, shape: str, rank: int) -> dict[str, Any]:
    """What a row says of the cell."""
    return {
        "context": cell.context,
        "roles": cell.roles,
        "trajectories": cell.trajectories,
        "overlap": cell.overlap,
        "pool": pool,
        "shape": shape,
        "r": rank,
    }
