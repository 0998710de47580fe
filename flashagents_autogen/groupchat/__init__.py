"""Teams whose agents overlap: `FlashGroupChatRuntime`, and `install` for a whole application.

While one agent of a team speaks, its text is streamed into the prompts of those that may speak next, so
that these are in the engine's KV cache when their turn comes. What agents say does not change: each
request is the ordinary one.
"""

from ._install import current_runtime, default_runtime, install, uninstall
from .policy import GroupChatPolicy
from .runtime import FlashGroupChatRuntime
from .shapes import AutoGenShapeError
from .trace import Event
from .turns import HitRate, SlotCoverage, Turn

__all__ = [
    "AutoGenShapeError",
    "Event",
    "FlashGroupChatRuntime",
    "GroupChatPolicy",
    "HitRate",
    "SlotCoverage",
    "Turn",
    "current_runtime",
    "default_runtime",
    "install",
    "uninstall",
]
