"""Which of AutoGen's bugs the Flash teams mend: all, unless told otherwise."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class TeamFixes(BaseModel):
    """Switches, each on by default; docs/teams.md says what each one changes.

    Attributes:
        stop_at_once: a cancelled run ends at once, whether its token or its task was cancelled, and
            whether or not the agents look at the token (AutoGen 7100, 7123).
        usable_after_cancel: after a run that was cancelled or failed, the next one begins where that one
            was cut off, and no agent is told anything twice (AutoGen 7100, 4776).
        turn_counters: turns and termination conditions of a run that was cut off do not count in the next
            one; Magentic-One's rounds do not either.
        callbacks: a run leaves no callback on the caller's CancellationToken.
        termination_sees_all: of agents that speak at the same time, the termination condition sees the
            messages of all, not of the last one (AutoGen 8206, 5395).
        graph_state: a graph with cycles goes on where it was saved (AutoGen 7043, 7092, 7220, 7916).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    stop_at_once: bool = True
    usable_after_cancel: bool = True
    turn_counters: bool = True
    callbacks: bool = True
    termination_sees_all: bool = True
    graph_state: bool = True

    @classmethod
    def none(cls) -> TeamFixes:
        """All switched off: AutoGen as it is."""
        return cls(**dict.fromkeys(cls.model_fields, False))


__all__ = ["TeamFixes"]
