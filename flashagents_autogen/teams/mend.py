"""AutoGen's own team objects, mended in place: for `install(mend=True)`, and for teams that others build."""

from __future__ import annotations

from typing import Any

from autogen_agentchat.teams import (
    BaseGroupChat,
    GraphFlow,
    MagenticOneGroupChat,
    RoundRobinGroupChat,
    SelectorGroupChat,
    Swarm,
)

from ._fixes import TeamFixes
from ._graph import FlashGraphFlow
from ._sequential import (
    FlashMagenticOneGroupChat,
    FlashRoundRobinGroupChat,
    FlashSelectorGroupChat,
    FlashSwarm,
)
from ._team import FlashTeam


def _mended(stock: Any, flash: type[FlashTeam]) -> type[FlashTeam]:
    """A Flash team that goes by the stock one's name, also in what it dumps."""
    members = {
        "__doc__": stock.__doc__,
        "__module__": stock.__module__,
        "component_config_schema": stock.component_config_schema,
        "component_provider_override": stock.component_provider_override,
        "_flash_fields": lambda self: {},
    }
    return type(stock.__name__, (flash,), members)


_MENDED: dict[type, type[FlashTeam]] = {
    stock: _mended(stock, flash)
    for stock, flash in (
        (RoundRobinGroupChat, FlashRoundRobinGroupChat),
        (SelectorGroupChat, FlashSelectorGroupChat),
        (Swarm, FlashSwarm),
        (GraphFlow, FlashGraphFlow),
        (MagenticOneGroupChat, FlashMagenticOneGroupChat),
    )
}


def mend(team: Any, fixes: TeamFixes | None = None) -> bool:
    """Turn a team of AutoGen's own into one that ends at once when it is cancelled, and so on.

    The object stays the same one, under the same name, and dumps the same configuration; only what
    `TeamFixes` lists changes. Teams among its participants are mended too. It does not make agents overlap:
    `FlashGroupChatRuntime.attach` and `install` do.

    Args:
        team: any team. Subclasses of the user's own are left alone: nobody knows what they rely on.
        fixes: what is mended.

    Returns:
        Whether it is mended now. False for a team that has run (or loaded a state): its agents are in place.

    Example:
        >>> team = RoundRobinGroupChat([planner, critic])
        >>> mend(team)
        True
    """
    for participant in team._participants:
        if isinstance(participant, BaseGroupChat):
            mend(participant, fixes)
    if isinstance(team, FlashTeam):
        return True
    mended = _MENDED.get(type(team))
    if mended is None or team._initialized:
        return False
    team.__class__ = mended
    team._prepare_flash(fixes or TeamFixes())
    return True


__all__ = ["mend"]
