"""One row of the tables."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Seam:
    """One upstream symbol.

    `target` is its dotted path. `signature` is that of a function, without annotations, or None.
    `attributes` are those of a class or module that are read or written. `hooked` says that the plug-in
    wraps it (AROUND).
    """

    target: str
    reason: str
    signature: str | None = None
    attributes: tuple[str, ...] = ()
    hooked: bool = False
