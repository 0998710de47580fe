"""What somebody else needs to make a client's prompt before the client is asked for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from autogen_core.models import LLMMessage, ModelInfo
from autogen_core.tools import Tool, ToolSchema

from flashagents_runtime import Engine
from flashagents_runtime.chat import ChatMessage, ChatTokenizer, ToolDefinition

from ._messages import to_chat, to_tools
from ._sampling import CreateArgs
from ._structured import chosen_tools


@dataclass(frozen=True)
class PromptSide:
    """How a client turns AutoGen's messages into a prompt, and where that prompt goes.

    Attributes:
        engine: where its requests go.
        tokenizer: the model's own.
        info: what the model can do.
        args: arguments of every call.
        lora: adapter that it speaks through.
        cache_salt: namespace of the prefix cache.
    """

    engine: Engine
    tokenizer: ChatTokenizer
    info: ModelInfo
    args: CreateArgs
    lora: str | None
    cache_salt: str | None = field(repr=False)

    def chat(self, messages: Sequence[LLMMessage]) -> list[ChatMessage]:
        """The messages in the runtime's form; raises as a call would."""
        return to_chat(messages, self.info)

    def tools(self, tools: Sequence[Tool | ToolSchema]) -> list[ToolDefinition]:
        """The tools that the prompt shows where a call offers these; raises as a call would."""
        offered = to_tools(tools)
        usable, _ = chosen_tools(offered, "auto", self.args.tool_choice)
        return offered if usable else []

    def render(self, chat: Sequence[ChatMessage], tools: Sequence[ToolDefinition]) -> str:
        """The prompt's text."""
        return self.tokenizer.render(chat, tools=tools, template_args=self.args.chat_template_kwargs)


__all__ = ["PromptSide"]
