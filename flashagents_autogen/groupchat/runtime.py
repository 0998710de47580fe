"""The one object behind overlapping teams."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from time import monotonic
from types import TracebackType
from typing import Any, Self
from weakref import WeakSet

from autogen_agentchat.agents import AssistantAgent

from .. import _side_channel
from .._side_channel import ClientCall, Tap
from . import hooks
from .policy import GroupChatPolicy
from .shapes import check_shapes
from .trace import Event, Kind

_log = logging.getLogger(__name__)


class FlashGroupChatRuntime:
    """Lets the agents of AutoGen teams overlap.

    Args:
        policy: what it may do.
        on_event: called with every event, in the event loop; what it raises is logged.

    Attributes:
        policy: as given.
        events: the latest events, oldest first.

    Example:
        >>> async with FlashGroupChatRuntime() as runtime:
        ...     runtime.attach(team)
        ...     await team.run(task="Plan a trip.")
    """

    def __init__(
        self, policy: GroupChatPolicy | None = None, *, on_event: Callable[[Event], None] | None = None
    ) -> None:
        check_shapes()
        self.policy = policy or GroupChatPolicy()
        self.events: deque[Event] = deque(maxlen=self.policy.keep)
        self._on_event = on_event
        self._teams: WeakSet[Any] = WeakSet()

    def attach(self, team: Any) -> None:
        """Follow a team from its next run on; it moves here from any other runtime.

        Args:
            team: any AutoGen team (`BaseGroupChat`).

        Raises:
            TypeError: it is none.
        """
        self.start()
        self._teams.add(team)
        hooks.hook_team(team, self)

    def detach(self, team: Any) -> None:
        """Follow it no more; fine where it is not followed."""
        self._teams.discard(team)
        hooks.unhook_team(team)

    def start(self) -> None:
        """Listen to the model clients of this process; twice is fine. `attach` and `install` call it."""
        _side_channel.listen(self)

    def stop(self) -> None:
        """Listen no more."""
        _side_channel.unlisten(self)

    async def close(self) -> None:
        """Let all teams go and close all sessions. Closing twice is fine."""
        for team in list(self._teams):
            self.detach(team)
        self.stop()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def record(self, kind: Kind, team: str, agent: str, **data: Any) -> None:
        """Note an event."""
        event = Event(monotonic(), kind, team, agent, data)
        self.events.append(event)
        if self._on_event is not None:
            try:
                self._on_event(event)
            except Exception:
                _log.exception("on_event failed")

    # What the hooks and the clients tell.

    def begin_run(self, team: Any) -> object | None:
        """See `hooks.RunFollower`."""
        self.record("run", team.name, "", state="begins")
        run: object = team
        return run

    async def end_run(self, run: Any) -> None:
        """See `hooks.RunFollower`."""
        self.record("run", run.name, "", state="ends")

    def note_agent(self, agent: AssistantAgent) -> None:
        """See `hooks.RunFollower`."""

    def on_call(self, call: ClientCall) -> Tap | None:
        """See `_side_channel.Listener`."""
        return None


__all__ = ["FlashGroupChatRuntime"]
