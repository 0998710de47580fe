"""Agents that are called by hand, one after the other: who reads whose text, said or learnt."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary, ref

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.messages import TextMessage
from autogen_core.models import LLMMessage, UserMessage

from flashagents_runtime.chat import ToolDefinition
from flashagents_runtime.handoff import slot_marker

from .guess import Guess, Upstream, guess_agent

_RECENT = 16  # texts among which the beginning of a chain is looked for
_SHORTEST = 16  # characters; shorter texts are found anywhere


@dataclass(frozen=True)
class _Link:
    """`before + text + after` from `source` is what the reader reads."""

    reader: ref[AssistantAgent]
    source: str
    before: str = ""
    after: str = ""


class Chains:
    """Links between agents outside of teams; agents are held weakly."""

    def __init__(self) -> None:
        self._links: WeakKeyDictionary[AssistantAgent, list[_Link]] = WeakKeyDictionary()
        self._recent: deque[tuple[ref[AssistantAgent], str]] = deque(maxlen=_RECENT)

    def link(self, upstream: AssistantAgent, reader: AssistantAgent, source: str) -> None:
        """The reader reads what upstream says, as it is."""
        self._add(upstream, _Link(ref(reader), source))

    def said(self, agent: AssistantAgent, text: str) -> None:
        """An agent has spoken."""
        if len(text) >= _SHORTEST:
            self._recent.append((ref(agent), text))

    def seen(self, reader: AssistantAgent, messages: Sequence[LLMMessage]) -> None:
        """An agent is asked something: if it reads what another one said lately, it will do so again."""
        last = messages[-1] if messages else None
        if not isinstance(last, UserMessage) or not isinstance(last.content, str):
            return
        for known, text in reversed(self._recent):
            upstream = known()
            if upstream is not None and upstream is not reader and text in last.content:
                before, _, after = last.content.partition(text)
                self._add(upstream, _Link(ref(reader), last.source, before, after))
                return

    def guesses(
        self, agent: AssistantAgent, upstream: Upstream, tools: Mapping[Any, list[ToolDefinition]]
    ) -> list[Guess]:
        """What the readers of an agent will be asked."""
        out = []
        for link in self._links.get(agent, ()):
            reader = link.reader()
            if reader is None:
                continue
            message = TextMessage(content=link.before + slot_marker(0) + link.after, source=link.source)
            guess = guess_agent(reader, [message], [upstream], seen_tools=tools.get(reader))
            if guess is not None:
                out.append(guess)
        return out

    def _add(self, upstream: AssistantAgent, link: _Link) -> None:
        links = self._links.setdefault(upstream, [])
        links[:] = [other for other in links if other.reader() not in (link.reader(), None)]
        links.append(link)


__all__ = ["Chains"]
