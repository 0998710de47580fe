"""What a group-chat runtime has done: a list of events, and one record a turn."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["run", "call", "forecast", "end", "turn", "close", "error"]


@dataclass(frozen=True)
class Event:
    """One thing that happened.

    Attributes:
        time: seconds of the monotonic clock.
        kind: "run": a team starts or ends; "call": an agent's request goes out; "forecast": a guess of an
            agent's next prompt was made; "end": an agent's answer is whole; "turn": a forecast met the
            real prompt; "close": sessions were closed; "error": a forecast failed and was left out.
        team: the team's name; "" outside of teams.
        agent: whom it is about.
        data: what there is to say, by name.
    """

    time: float
    kind: Kind
    team: str
    agent: str
    data: dict[str, Any] = field(default_factory=dict)


__all__ = ["Event", "Kind"]
