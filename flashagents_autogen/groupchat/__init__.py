"""Teams whose agents overlap: `FlashGroupChatRuntime`, and `install` for a whole application.

While one agent of a team speaks, its text is streamed into the prompts of those that may speak next, so
that these are in the engine's KV cache when their turn comes. What agents say does not change: each
request is the ordinary one.
"""

from .shapes import AutoGenShapeError, check_shapes

check_shapes()  # before the modules below, which import what it checks

from ._install import current_runtime, default_runtime, install, uninstall  # noqa: E402
from .policy import GroupChatPolicy  # noqa: E402
from .runtime import FlashGroupChatRuntime  # noqa: E402
from .trace import Event  # noqa: E402
from .turns import HitRate, SlotCoverage, Turn  # noqa: E402

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
