"""Turns by agent, engine or workflow: one line each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    from .view import Row

By = Literal["agent", "engine", "workflow"]
KINDS: tuple[By, ...] = ("agent", "engine", "workflow")


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """The turns of one agent, engine or workflow; seconds and tokens, see `Row`.

    Attributes:
        name: of the agent, engine or workflow; "" where nobody said it.
        first_token: mean time to the first token; None where none came.
        gap: mean hand-off gap; None where its turns follow nobody.
        seconds: of all its turns together, which may be at the same time.
    """

    name: str
    turns: int
    first_token: float | None
    gap: float | None
    seconds: float
    prompt: int
    cached: int
    prewarmed: int
    shared_in_turn: int
    wasted: int
    completion: int


def groups(rows: Iterable[Row], by: By) -> list[Group]:
    """Rows with the same agent, engine or workflow together, in order of first appearance."""
    if by not in KINDS:
        raise ValueError(f"turns are grouped by {', '.join(KINDS)}, not by {by!r}")
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(getattr(row, by), []).append(row)
    return [_group(name, members) for name, members in found.items()]


def _group(name: str, rows: Sequence[Row]) -> Group:
    return Group(
        name=name,
        turns=len(rows),
        first_token=_mean([row.first_token for row in rows]),
        gap=_mean([row.gap for row in rows]),
        seconds=sum(row.seconds for row in rows),
        prompt=sum(row.prompt for row in rows),
        cached=sum(row.cached for row in rows),
        prewarmed=sum(row.prewarmed for row in rows),
        shared_in_turn=sum(row.shared_in_turn for row in rows),
        wasted=sum(row.wasted for row in rows),
        completion=sum(row.completion for row in rows),
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


__all__ = ["KINDS", "By", "Group", "groups"]
