"""Whether an agent's message is what its model says."""

from __future__ import annotations

import asyncio
from typing import Any
from weakref import WeakKeyDictionary

from autogen_agentchat.agents import AssistantAgent, SocietyOfMindAgent

from .guess import Upstream
from .scope import Speaker

_PUBLISHED = 0.05  # seconds after which a message is in its team's thread


class Trust:
    """AutoGen's own agents say it as it is. Those of the user's own are believed once they were seen to."""

    def __init__(self) -> None:
        self._seen: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()

    def believes(self, speaker: Speaker) -> bool:
        """Whether what the speaker's model says may be taken for its message."""
        return not _unknown(speaker) or self._seen.get(speaker.key, False)

    def learn(self, speaker: Speaker, upstream: Upstream) -> None:
        """Its model has spoken: see what its message will be."""
        if _unknown(speaker):
            speaker.scope.spawn(self._compare(speaker, upstream))

    async def _compare(self, speaker: Speaker, upstream: Upstream) -> None:
        await asyncio.sleep(_PUBLISHED)
        thread = getattr(speaker.scope.manager, "_message_thread", ())
        mine = [message for message in thread if message.source == speaker.name]
        self._seen[speaker.key] = bool(mine) and mine[-1].to_text() == upstream.text


def _unknown(speaker: Speaker) -> bool:
    return speaker.role == "member" and not isinstance(speaker.key, AssistantAgent | SocietyOfMindAgent)


__all__ = ["Trust"]
