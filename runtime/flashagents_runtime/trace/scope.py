"""Whose work it is, where nobody else can tell: set around a call, read by whoever records."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True)
class Scope:
    """`agent` and `workflow` of the events recorded inside; "" leaves it to the recorder."""

    agent: str = ""
    workflow: str = ""


_scope: ContextVar[Scope] = ContextVar("flashagents_trace_scope", default=Scope())  # noqa: B039 (frozen)


@contextlib.contextmanager
def scope(*, agent: str = "", workflow: str = "") -> Iterator[None]:
    """Name what is recorded inside the block; an inner block adds to the outer one.

    Example:
        >>> with scope(workflow="paper 17"):
        ...     await team.run(task="Review it.")
    """
    outer = _scope.get()
    token = _scope.set(Scope(agent or outer.agent, workflow or outer.workflow))
    try:
        yield
    finally:
        _scope.reset(token)


def current_scope() -> Scope:
    """What the innermost blocks say."""
    return _scope.get()


__all__ = ["Scope", "current_scope", "scope"]
