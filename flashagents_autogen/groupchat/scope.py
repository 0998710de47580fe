"""One run of a team: who speaks in it, and what is kept warm for it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Literal

from autogen_agentchat.agents import SocietyOfMindAgent
from autogen_agentchat.teams import BaseGroupChat

from .guess import Upstream
from .members import manager_of

Role = Literal["member", "manager", "tool", "free"]


@dataclass(eq=False)
class Said:
    """An upstream of this run, with the seat of the participant whose message it becomes."""

    seat: str
    upstream: Upstream


class RunScope:
    """From the start of a run to its end.

    Attributes:
        team: whose run; None for agents that are called by hand.
        outer: where in another team's run it runs; None at the top.
        host: the agent or team object that runs it, where there is one.
        said: what is being said, or has been since the last change of speakers, in order of start.
        last: who spoke last.
        first: length of the team's thread when its first agent spoke: up to there it is the task.
        began: how often each agent has begun to speak, by `id`.
    """

    def __init__(self, team: BaseGroupChat | None, outer: Seat | None = None, host: Any = None) -> None:
        self.team = team
        self.outer = outer
        self.host = host
        self.said: list[Said] = []
        self.last: str | None = None
        self.first: int | None = None
        self.began: dict[int, int] = {}
        self.ended = False
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def name(self) -> str:
        """The team's name; "" without a team."""
        return "" if self.team is None else self.team.name

    @property
    def workflow(self) -> str:
        """The name under which traces have this run: AutoGen's id of the team."""
        return "" if self.team is None else self.team._team_id

    @property
    def root(self) -> RunScope:
        """The outermost run that this one is part of."""
        return self if self.outer is None else self.outer.scope.root

    @property
    def manager(self) -> Any:
        """The team's manager; None before the first run and without a team."""
        return None if self.team is None else manager_of(self.team)

    @property
    def society(self) -> SocietyOfMindAgent | None:
        """The SocietyOfMindAgent that runs this team, if one does."""
        return self.host if isinstance(self.host, SocietyOfMindAgent) else None

    def speaks(self, key: Any, seat: str, upstream: Upstream) -> None:
        """A participant's model begins to speak."""
        self.began[id(key)] = self.began.get(id(key), 0) + 1
        manager = self.manager
        if self.first is None and manager is not None:
            self.first = len(manager._message_thread)
        active = getattr(manager, "_active_speakers", ())
        self.said = [s for s in self.said if s.seat != seat and (not s.upstream.ended or s.seat in active)]
        self.said.append(Said(seat, upstream))

    def has_begun(self, key: Any, times: int | None) -> bool:
        """Whether an agent has begun to speak just so often."""
        return self.began.get(id(key)) == times

    def drop(self, upstream: Upstream) -> None:
        """It will be no message after all."""
        self.said = [s for s in self.said if s.upstream is not upstream]

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something beside the team; it ends with the run at the latest."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def cancel(self) -> None:
        """End what was spawned."""
        self.ended = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


@dataclass(frozen=True, eq=False)
class Seat:
    """A participant's place in a run."""

    scope: RunScope
    name: str


@dataclass(frozen=True, eq=False)
class Speaker:
    """Whose request a call is.

    Attributes:
        key: the agent or manager object.
        name: the name that its message will carry.
        role: a "member" of a team, its "manager", an agent behind a "tool", or "free".
        scope: the run that it speaks in.
        seat: of a member, the participant's name.
    """

    key: Any
    name: str
    role: Role
    scope: RunScope
    seat: str = ""


__all__ = ["Role", "RunScope", "Said", "Seat", "Speaker"]
