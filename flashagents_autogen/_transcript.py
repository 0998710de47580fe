"""A model context in which all agents of a team read the same conversation."""

from __future__ import annotations

from typing import Self

from autogen_core import Component
from autogen_core.model_context import ChatCompletionContext
from autogen_core.models import AssistantMessage, LLMMessage, UserMessage
from pydantic import BaseModel


class TranscriptContextConfig(BaseModel):
    """Configuration of a `TranscriptChatCompletionContext`."""

    initial_messages: list[LLMMessage] | None = None


class TranscriptChatCompletionContext(ChatCompletionContext, Component[TranscriptContextConfig]):
    """Keeps all messages, and shows an agent's own texts to its model as it shows those of others.

    With AutoGen's contexts an agent's own texts are the assistant's and all others the user's, so that the
    prompts of two agents part where the first of them has spoken. Here they are the same to the end, if the
    agents have the same system message and tools: one cache serves all of them, as role agents that are LoRA
    adapters want it (docs/lora-sharing.md). Calls of tools and their results stay the agent's own.

    Args:
        initial_messages: of the conversation, before anything is said.

    Example:
        >>> AssistantAgent("plan", client, model_context=TranscriptChatCompletionContext())
    """

    component_config_schema = TranscriptContextConfig
    component_provider_override = "flashagents_autogen.TranscriptChatCompletionContext"

    async def get_messages(self) -> list[LLMMessage]:
        """All messages, the agent's own texts as messages from its name."""
        return [_spoken(message) for message in self._messages]

    def _to_config(self) -> TranscriptContextConfig:
        return TranscriptContextConfig(initial_messages=self._initial_messages)

    @classmethod
    def _from_config(cls, config: TranscriptContextConfig) -> Self:
        return cls(initial_messages=config.initial_messages)


def _spoken(message: LLMMessage) -> LLMMessage:
    if isinstance(message, AssistantMessage) and isinstance(message.content, str):
        return UserMessage(content=message.content, source=message.source)
    return message


__all__ = ["TranscriptChatCompletionContext", "TranscriptContextConfig"]
