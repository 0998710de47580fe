"""How a Flash team gets its agents to overlap: through the group-chat runtime."""

from __future__ import annotations

from typing import Any


def attach_overlap(team: Any, runtime: Any) -> bool:
    """Attach a team to a `FlashGroupChatRuntime`; True once it is attached."""
    return False


__all__ = ["attach_overlap"]
