"""AutoGen's messages and tools as the runtime's, checked. The caller's objects are never changed."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import assert_never

from autogen_core import Image
from autogen_core.models import (
    AssistantMessage,
    FunctionExecutionResultMessage,
    LLMMessage,
    ModelInfo,
    SystemMessage,
    UserMessage,
)
from autogen_core.tools import Tool, ToolSchema

from flashagents_runtime import UnsupportedFeatureError
from flashagents_runtime.chat import ChatMessage, ImagePart, ToolCall, ToolDefinition
from flashagents_runtime.chat_normalise import LATE_SYSTEM

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def check_name(name: str, what: str) -> str:
    """The name itself of a function; ValueError where it is not one of AutoGen's."""
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"invalid {what}: {name!r}. Only the letters a to z and A to Z, digits, '_' and '-' are allowed, "
            "1 to 64 characters"
        )
    return name


_MARKUP = frozenset("<>[]")  # what special tokens are written with, in every chat template
_SYSTEM = LATE_SYSTEM.strip().rstrip(":").casefold()


def check_source(name: str) -> str:
    """The name of a speaker itself; ValueError where it could be taken for a part of the chat template.

    AutoGen's rule for sources (ASCII letters, digits, '_', '-', 64 at most) is that of OpenAI's API; agents'
    names are Python identifiers, in any script, and a prompt of our own takes them as they are.
    """
    if not name or not name.isprintable() or name != name.strip():
        why = "it has to be a text in one line, without control characters and without spaces around it"
    elif _MARKUP & set(name):
        why = f"{' '.join(sorted(_MARKUP))} are not allowed: special tokens are written with them"
    elif _SYSTEM in name.casefold():
        why = "it would look like an instruction of the system"
    else:
        return name
    raise ValueError(f"invalid source name: {name!r:.200}; {why}")


_MESSAGES = (SystemMessage, UserMessage, AssistantMessage, FunctionExecutionResultMessage)


def check_messages(messages: Sequence[LLMMessage]) -> None:
    """ValueError where there are none; TypeError where they are no AutoGen messages."""
    if isinstance(messages, str) or not all(isinstance(message, _MESSAGES) for message in messages):
        wrong = (
            messages
            if isinstance(messages, str)
            else next(m for m in messages if not isinstance(m, _MESSAGES))
        )
        raise TypeError(
            f"messages must be a list of AutoGen's messages, such as "
            f"[UserMessage(content=..., source='user')]; found {wrong!r:.80}"
        )
    if not messages:
        raise ValueError("there are no messages to answer")


def to_chat(messages: Sequence[LLMMessage], model_info: ModelInfo) -> list[ChatMessage]:
    """The conversation in the runtime's form.

    Raises:
        ValueError: a source or text that no prompt can hold; system messages apart from each other where
            `model_info` says `multiple_system_messages: False`.
        UnsupportedFeatureError: an image for a model without vision (also a ValueError).
    """
    if model_info.get("multiple_system_messages") is False:
        _check_system_messages(messages)
    out: list[ChatMessage] = []
    known = 0
    for i, message in enumerate(messages, 1):
        if isinstance(message, SystemMessage):
            out.append(ChatMessage(role="system", content=message.content))
        elif isinstance(message, UserMessage):
            out.append(_user(message, model_info))
        elif isinstance(message, AssistantMessage):
            out.append(_assistant(message))
        elif isinstance(message, FunctionExecutionResultMessage):
            out += _results(message)
        else:
            assert_never(message)
        for made in out[known:]:
            _check_text(made, f"message {i} of {len(messages)} (of {made.source or made.role!r})")
        known = len(out)
    return out


def _check_text(message: ChatMessage, what: str) -> None:
    calls = [text for call in message.tool_calls for text in (call.id, call.arguments)]
    for text in (message.text, message.thought, message.tool_call_id, message.source, *calls):
        check_unicode(text or "", what)


def check_unicode(text: str, what: str) -> None:
    """ValueError where a text cannot be written as UTF-8: no tokenizer and no engine takes it."""
    try:
        text.encode()
    except UnicodeEncodeError as e:
        raise ValueError(
            f"{what} holds half a surrogate pair ({text[e.start]!a}, at {e.start}), which is no text; "
            "text.encode(errors='replace').decode() frees it of those"
        ) from None


def _check_system_messages(messages: Sequence[LLMMessage]) -> None:
    places = [i for i, message in enumerate(messages) if isinstance(message, SystemMessage)]
    if places and places[-1] - places[0] != len(places) - 1:
        raise ValueError(
            "multiple and not consecutive system messages, but model_info says that the model takes only "
            "one (multiple_system_messages=False)"
        )


def _user(message: UserMessage, model_info: ModelInfo) -> ChatMessage:
    source = check_source(message.source)
    if isinstance(message.content, str):
        return ChatMessage(role="user", content=message.content, source=source)
    parts: list[str | ImagePart] = []
    for part in message.content:
        if not isinstance(part, Image):
            parts.append(part)
        elif model_info["vision"]:
            parts.append(ImagePart(part.data_uri))
        else:
            raise UnsupportedFeatureError(
                f"the message of {source!r} holds an image, but the model does not support vision"
            )
    if all(isinstance(part, str) for part in parts):
        return ChatMessage(role="user", content="\n".join(map(str, parts)), source=source)
    return ChatMessage(role="user", content=parts, source=source)


_SPAN = re.compile(r"<think>\n(.*?)\n</think>\s*", re.DOTALL)


def join_thought(thought: str | None, beside: str) -> str | None:
    """AutoGen's `thought` of a message with tool calls: the reasoning, and the text beside the calls.

    AutoGen keeps both in one place; a `<think>` span keeps them apart, so that `split_thought` can give
    each back to the chat template where it belongs.
    """
    span = f"<think>\n{thought}\n</think>" if thought else ""
    return "\n\n".join(part for part in (span, beside) if part) or None


def split_thought(joined: str | None) -> tuple[str | None, str]:
    """The opposite of `join_thought`."""
    match = _SPAN.match(joined or "")
    if match is None:
        return None, joined or ""
    return match.group(1), (joined or "")[match.end() :]


def _assistant(message: AssistantMessage) -> ChatMessage:
    source = check_source(message.source)
    if isinstance(message.content, str):
        return ChatMessage(role="assistant", content=message.content, source=source, thought=message.thought)
    calls = [
        ToolCall(id=call.id, name=check_name(call.name, "function name"), arguments=call.arguments)
        for call in message.content
    ]
    thought, beside = split_thought(message.thought)
    return ChatMessage(role="assistant", content=beside, source=source, thought=thought, tool_calls=calls)


def _results(message: FunctionExecutionResultMessage) -> list[ChatMessage]:
    return [
        ChatMessage(
            role="tool",
            content=result.content,
            source=result.name,
            tool_call_id=result.call_id,
            is_error=bool(result.is_error),
        )
        for result in message.content
    ]


def to_tools(tools: Sequence[Tool | ToolSchema]) -> list[ToolDefinition]:
    """Tool definitions in the runtime's form; ValueError for a missing, bad or repeated name."""
    out: list[ToolDefinition] = []
    for tool in tools:
        schema = tool.schema if isinstance(tool, Tool) else tool
        if not isinstance(schema, Mapping):
            raise TypeError(f"a tool is an autogen_core Tool or its schema, not {schema!r:.80}")
        if "name" not in schema:
            raise ValueError(f"a tool has no name: {dict(schema)!r:.200}; its schema needs 'name' at the top")
        given = schema.get("parameters") or {"type": "object", "properties": {}}
        if not isinstance(given, Mapping):
            raise ValueError(
                f"the parameters of tool {schema['name']!r:.80} should be a JSON schema, not {given!r:.80}"
            )
        parameters = dict(given)
        try:
            text = json.dumps(parameters, ensure_ascii=False)
        except (TypeError, ValueError, RecursionError) as e:
            raise ValueError(f"the parameters of tool {schema['name']!r:.80} are no JSON: {e}") from None
        description = schema.get("description") or ""
        for part in (text, description):
            check_unicode(str(part), f"tool {schema['name']!r:.80}")
        out.append(
            ToolDefinition(
                name=check_name(schema["name"], "tool name"),
                description=description,
                parameters=parameters,
                strict=bool(schema.get("strict")),
            )
        )
    names = [tool.name for tool in out]
    if len(set(names)) != len(names):
        raise ValueError(f"tool names must be unique: {names}")
    return out


__all__ = [
    "check_messages",
    "check_name",
    "check_source",
    "check_unicode",
    "join_thought",
    "split_thought",
    "to_chat",
    "to_tools",
]
