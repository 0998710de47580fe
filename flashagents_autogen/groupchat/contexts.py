"""What an agent's model context will hold once it has read some more: worked out, never tried out.

Only contexts, memories and workbenches of AutoGen whose behaviour is known are asked, and those on a
copy; a subclass, or anything of the user's own, may count, summarise or call a server.
"""

from __future__ import annotations

import copy
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from autogen_core.memory import ListMemory
from autogen_core.model_context import (
    BufferedChatCompletionContext,
    ChatCompletionContext,
    HeadAndTailChatCompletionContext,
    UnboundedChatCompletionContext,
)
from autogen_core.models import LLMMessage
from autogen_core.tools import StaticStreamWorkbench, StaticWorkbench, ToolSchema, Workbench

from .._transcript import TranscriptChatCompletionContext

T = TypeVar("T")

_UNBOUNDED = (UnboundedChatCompletionContext, TranscriptChatCompletionContext)
#: Contexts that depend on the number and the kind of messages alone.
KNOWN_CONTEXTS = (*_UNBOUNDED, BufferedChatCompletionContext, HeadAndTailChatCompletionContext)
_KNOWN_WORKBENCHES = (StaticWorkbench, StaticStreamWorkbench)


class WouldWait(RuntimeError):
    """A coroutine that should have run through at once has waited for something."""


def run_through(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that does not wait for anything; raises WouldWait where it does."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        value: T = stop.value
        return value
    coroutine.close()
    raise WouldWait(f"{coroutine} waits, so its result is not known beforehand")


def is_known(context: ChatCompletionContext) -> bool:
    """Whether what this context gives can be worked out."""
    return type(context) in KNOWN_CONTEXTS


def keeps_all(context: ChatCompletionContext) -> bool:
    """Whether this known context gives every message that it was given."""
    return type(context) in _UNBOUNDED


def grow(context: ChatCompletionContext, new: Sequence[LLMMessage]) -> ChatCompletionContext:
    """A copy of a known context that has read `new` as well."""
    grown = copy.copy(context)
    grown._messages = [*context._messages, *new]
    return grown


def messages_of(context: ChatCompletionContext) -> list[LLMMessage]:
    """What a known context gives to the model."""
    return list(run_through(context.get_messages()))


def remember(context: ChatCompletionContext, memories: Sequence[Any] | None) -> bool:
    """Let the memories add to a grown context as they will; False where that is not known.

    A memory that searches does so by what the agent has read, which nobody knows yet.
    """
    for memory in memories or ():
        if type(memory) is not ListMemory:
            return False
        run_through(memory.update_context(context))
    return True


def list_tools(workbenches: Sequence[Workbench]) -> list[ToolSchema] | None:
    """The tools of static workbenches; None where one of them has to be asked."""
    tools: list[ToolSchema] = []
    for workbench in workbenches:
        if type(workbench) not in _KNOWN_WORKBENCHES:
            return None
        tools += run_through(workbench.list_tools())
    return tools


__all__ = [
    "KNOWN_CONTEXTS",
    "WouldWait",
    "grow",
    "is_known",
    "keeps_all",
    "list_tools",
    "messages_of",
    "remember",
    "run_through",
]
