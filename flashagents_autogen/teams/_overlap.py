"""How a Flash team gets its agents to overlap, or not: through the group-chat runtime."""

from __future__ import annotations

from typing import Any

from ..groupchat import FlashGroupChatRuntime, default_runtime
from ..groupchat.hooks import hook_team


class _Nobody:
    """Follows nothing: a team without overlap stays so where `install` follows all teams."""

    def begin_run(self, team: Any) -> None:
        """See `hooks.RunFollower`."""

    async def end_run(self, run: object) -> None:
        """See `hooks.RunFollower`."""

    def note_agent(self, agent: Any) -> None:
        """See `hooks.RunFollower`."""


_NOBODY = _Nobody()


def set_overlap(team: Any, overlap: bool, runtime: FlashGroupChatRuntime | None) -> None:
    """Have a team's runs followed by a runtime (None: the installed or the common one), or by nobody."""
    if overlap:
        (runtime or default_runtime()).attach(team)
    else:
        hook_team(team, _NOBODY)


__all__ = ["set_overlap"]
