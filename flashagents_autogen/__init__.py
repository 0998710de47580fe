"""An AutoGen model client on an embedded SGLang engine.

`install()` lets the agents of AutoGen's teams overlap. Importing it imports no SGLang and no torch, and
AutoGen's teams only once they are asked for.
"""

from typing import TYPE_CHECKING, Any

from flashagents_runtime import __version__

from ._client import FlashAgentsChatCompletionClient
from ._config import FlashAgentsClientConfig
from ._sampling import CreateArgs
from ._transcript import TranscriptChatCompletionContext
from ._usage import FlashRequestUsage

if TYPE_CHECKING:
    from .groupchat import FlashGroupChatRuntime, GroupChatPolicy, current_runtime, install, uninstall
    from .teams import (
        FlashGraphFlow,
        FlashMagenticOneGroupChat,
        FlashMapReduce,
        FlashRoundRobinGroupChat,
        FlashSelectorGroupChat,
        FlashSwarm,
        TeamFixes,
    )

_GROUP_CHAT = ("FlashGroupChatRuntime", "GroupChatPolicy", "current_runtime", "install", "uninstall")
_TEAMS = (
    *("FlashGraphFlow", "FlashMagenticOneGroupChat", "FlashMapReduce", "FlashRoundRobinGroupChat"),
    *("FlashSelectorGroupChat", "FlashSwarm", "TeamFixes"),
)


def __getattr__(name: str) -> Any:
    if name in _GROUP_CHAT:
        from . import groupchat

        return getattr(groupchat, name)
    if name in _TEAMS:
        from . import teams

        return getattr(teams, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """All that is public, also what is imported at its first use."""
    return sorted({*__all__, "groupchat", "teams", *(name for name in globals() if name.startswith("__"))})


__all__ = [
    "CreateArgs",
    "FlashAgentsChatCompletionClient",
    "FlashAgentsClientConfig",
    "FlashGraphFlow",
    "FlashGroupChatRuntime",
    "FlashMagenticOneGroupChat",
    "FlashMapReduce",
    "FlashRequestUsage",
    "FlashRoundRobinGroupChat",
    "FlashSelectorGroupChat",
    "FlashSwarm",
    "GroupChatPolicy",
    "TeamFixes",
    "TranscriptChatCompletionContext",
    "__version__",
    "current_runtime",
    "install",
    "uninstall",
]
