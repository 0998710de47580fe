"""Chat messages and chat tokenizers, for any framework: what a conversation is before it is tokens.

The way down is: messages -> `chat_normalise` (what this template can take) -> the model's own chat
template -> text -> canonical token ids. Nothing here knows an agent framework or an engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

import msgspec

from .chat_probe import TemplateCapabilities
from .types import ToolCall, ToolDefinition

Role = Literal["system", "user", "assistant", "tool"]


class ImagePart(msgspec.Struct, frozen=True):
    """An image inside a message; `data` is a URL, a path or a `data:` URI."""

    data: str


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True):
    """One message of a conversation.

    Attributes:
        role: who speaks, in the words of chat templates.
        content: the text, or texts and images in order.
        source: name of the agent or person that wrote it; for the role "tool", the tool's name.
        thought: the reasoning that came before an assistant's answer.
        tool_calls: calls that an assistant's message makes.
        tool_call_id: for the role "tool", the call that this is the result of.
        is_error: for the role "tool", the call failed and `content` says why.
    """

    role: Role
    content: str | list[str | ImagePart] = ""
    source: str | None = None
    thought: str | None = None
    tool_calls: list[ToolCall] = []
    tool_call_id: str | None = None
    is_error: bool = False

    @property
    def text(self) -> str:
        """The texts of the message without its images, joined by a newline."""
        if isinstance(self.content, str):
            return self.content
        return "\n".join(part for part in self.content if isinstance(part, str))

    @property
    def images(self) -> list[ImagePart]:
        """The images of the message, in order."""
        if isinstance(self.content, str):
            return []
        return [part for part in self.content if isinstance(part, ImagePart)]


@runtime_checkable
class ChatTokenizer(Protocol):
    """A model's tokenizer and its chat template. Safe to use from several threads."""

    @property
    def capabilities(self) -> TemplateCapabilities:
        """What the chat template can take (probed once a template)."""
        ...

    def encode(self, text: str) -> list[int]:
        """Token ids of a text; special tokens in the text are taken as such, none are added."""
        ...

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of token ids."""
        ...

    def render(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[ToolDefinition] = (),
        generation_prompt: bool = True,
        template_args: Mapping[str, Any] | None = None,
    ) -> str:
        """The text that the model is given for a conversation; "" for no messages and no tools.

        Args:
            messages: the conversation, in any order of roles.
            tools: tools that the assistant may call.
            generation_prompt: end with the cue that makes the model speak.
            template_args: further variables of the template, such as `enable_thinking`.

        Raises:
            TemplateError: the template cannot render it, however it is arranged.
        """
        ...


def encode_chat(
    tokenizer: ChatTokenizer,
    messages: Sequence[ChatMessage],
    *,
    tools: Sequence[ToolDefinition] = (),
    generation_prompt: bool = True,
    template_args: Mapping[str, Any] | None = None,
) -> list[int]:
    """Canonical token ids of a conversation: those of its whole rendered text, in one go."""
    text = tokenizer.render(
        messages, tools=tools, generation_prompt=generation_prompt, template_args=template_args
    )
    return tokenizer.encode(text)


__all__ = [
    "ChatMessage",
    "ChatTokenizer",
    "ImagePart",
    "Role",
    "ToolCall",
    "ToolDefinition",
    "encode_chat",
]
