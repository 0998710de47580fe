"""A guess of an agent's next prompt: what is known of it, with a gap for what is being said."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.messages import BaseChatMessage, HandoffMessage, TextMessage
from autogen_core.models import LLMMessage

from flashagents_runtime.chat import ChatMessage, ToolDefinition
from flashagents_runtime.handoff import Handoff, PromptForecast, fill, forecast_prompt, slot_marker

from .._client import FlashAgentsChatCompletionClient
from .._prompt_side import PromptSide
from . import contexts

#: Comes after the conversation where something unknown will: the prompt's end is then no part of a guess.
_SOMETHING_ELSE = ChatMessage(role="system", content="Xq")


class Upstream:
    """What one agent is saying in one call, on its way to those who will read it.

    Attributes:
        source: the name that its message will carry.
        handoff: hands it on.
        text: what has been said.
        ended: the message is whole.
        ended_at: since when, seconds of the monotonic clock.
        feeds: readers may be told while it is written; False where they will read something else.
    """

    def __init__(self, source: str, *, feeds: bool = True) -> None:
        self.source = source
        self.handoff = Handoff()
        self.ended = False
        self.ended_at = 0.0
        self.feeds = feeds
        self._parts: list[str] = []

    @property
    def text(self) -> str:
        """What has been said so far."""
        return "".join(self._parts)

    def say(self, text: str) -> None:
        """More has been said."""
        self._parts.append(text)
        if self.feeds:
            self.handoff.feed(text)

    def end(self) -> None:
        """It is whole."""
        self.ended = True
        self.ended_at = monotonic()
        if self.feeds:
            self.handoff.done()

    def message(self, slot: int) -> TextMessage:
        """Its message to the group, with a gap for the text."""
        return TextMessage(content=slot_marker(slot), source=self.source)


@dataclass(frozen=True, eq=False)
class Guess:
    """What an agent, or the manager of a team, will be asked next.

    Attributes:
        key: the agent or manager object.
        name: of that agent.
        side: how its client makes prompts.
        chat: the conversation for given texts in the gaps.
        tools: shown to the model.
        sources: whose texts fill the gaps, in the order of the prompt.
        known: False where only the beginning is known: what comes after it is no guess.
        certain: False where somebody else may speak instead.
        open_end: something unknown comes after the last gap.
    """

    key: Any
    name: str
    side: PromptSide
    chat: Callable[[Sequence[str]], list[ChatMessage]]
    tools: list[ToolDefinition] = field(default_factory=list)
    sources: Sequence[Upstream] = ()
    known: bool = True
    certain: bool = True
    open_end: bool = False

    def forecast(self) -> PromptForecast:
        """Measure it; raises what rendering raises."""
        slots = max(len(self.sources), 0 if self.known else 1)
        found = forecast_prompt(lambda texts: self._render(self.chat(texts)), slots)
        if not self.known or not all(source.feeds for source in self.sources):
            return PromptForecast(found.head, reason="only the beginning is known")
        if self.open_end and found.complete:
            if found.slots:
                last = replace(found.slots[-1], after="")
                return replace(found, slots=(*found.slots[:-1], last), complete=False, reason="memory")
            other = self._render([*self.chat([]), _SOMETHING_ELSE])
            return PromptForecast(_common(found.head, other), reason="memory")
        return found

    def matches(self, messages: Sequence[ChatMessage], tools: Sequence[ToolDefinition]) -> bool:
        """Whether this was the conversation: message by message, with what was said in the gaps."""
        expected = self.chat([source.text for source in self.sources])
        if self.open_end:
            messages = messages[: len(expected)]
        return expected == list(messages) and self.tools == list(tools)

    def _render(self, chat: Sequence[ChatMessage]) -> str:
        return self.side.render(chat, self.tools)


def filled(chat: Sequence[ChatMessage]) -> Callable[[Sequence[str]], list[ChatMessage]]:
    """The function of a `Guess` for a conversation with `slot_marker`s in it."""
    gaps = {i for i, message in enumerate(chat) if _has_gap(message)}
    return lambda texts: [fill(m, texts) if i in gaps else m for i, m in enumerate(chat)]


def _has_gap(message: ChatMessage) -> bool:
    simple = isinstance(message.content, str) and not message.tool_calls
    return not simple or slot_marker(0)[0] in str(message.content)


def side_of(client: Any) -> PromptSide | None:
    """How a client makes prompts; None where it is not one of ours, or not ready."""
    return client._prompt_side() if isinstance(client, FlashAgentsChatCompletionClient) else None


def to_model(messages: Sequence[BaseChatMessage]) -> list[LLMMessage]:
    """Messages of a group as an agent's context takes them."""
    out: list[LLMMessage] = []
    for message in messages:
        if isinstance(message, HandoffMessage):
            out += message.context
        out.append(message.to_model_message())
    return out


def guess_agent(
    agent: AssistantAgent,
    incoming: Sequence[BaseChatMessage],
    sources: Sequence[Upstream] = (),
    *,
    seen_tools: Sequence[ToolDefinition] | None = None,
    known: bool = True,
    certain: bool = True,
) -> Guess | None:
    """What an assistant will be asked once it has read `incoming`.

    Args:
        agent: the assistant.
        incoming: what it has not read yet, with a `slot_marker` for each of the sources.
        sources: see `Guess`.
        seen_tools: tools that it offered last, where its workbench has to be asked for them.
        known: False where more messages than these will come before its turn.
        certain: see `Guess`.

    Returns:
        The guess; None where not even the beginning is known.
    """
    side = side_of(agent._model_client)
    if side is None:
        return None
    schemas = contexts.list_tools(agent._workbench)
    if schemas is not None:
        tools = side.tools([*schemas, *agent._handoff_tools])
    elif seen_tools is not None:
        tools = list(seen_tools)
    else:
        return None
    system: list[LLMMessage] = list(agent._system_messages)
    context = agent._model_context
    open_end = False
    if not contexts.is_known(context):
        known, history = False, []
    else:
        grown = contexts.grow(context, to_model(incoming))
        open_end = not contexts.remember(grown, agent._memory)
        bounded = not contexts.keeps_all(context)
        if open_end and bounded:
            known = False
        # Of a context that drops messages nothing is certain before all have come.
        history = [] if bounded and not known else contexts.messages_of(grown)
    chat = side.chat([*system, *history])
    if not known:
        # The gap stands for all that is not known; it is never filled.
        chat = [*chat, ChatMessage(role="user", content=slot_marker(0))]
        if sources and history:
            chat = chat[:-1]
    return Guess(agent, agent.name, side, filled(chat), tools, tuple(sources), known, certain, open_end)


def _common(a: str, b: str) -> str:
    n = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return a[:n]


__all__ = ["Guess", "Upstream", "filled", "guess_agent", "side_of", "to_model"]
