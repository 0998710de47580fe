"""AutoGen's events of a model call, with our cache figures."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from autogen_core import EVENT_LOGGER_NAME
from autogen_core.logging import LLMCallEvent, LLMStreamEndEvent, LLMStreamStartEvent
from autogen_core.models import CreateResult

from flashagents_runtime import Usage
from flashagents_runtime.chat import ChatMessage, ToolDefinition

_logger = logging.getLogger(EVENT_LOGGER_NAME)


def log_call(
    messages: Sequence[ChatMessage], tools: Sequence[ToolDefinition], result: CreateResult, usage: Usage
) -> None:
    """Log a finished `create`."""
    if _logger.isEnabledFor(logging.INFO):
        _logger.info(
            LLMCallEvent(
                messages=message_dicts(messages),
                tools=_tools(tools),
                response=_response(result),
                **_figures(usage),
            )
        )


def log_stream_start(messages: Sequence[ChatMessage], tools: Sequence[ToolDefinition]) -> None:
    """Log the start of a `create_stream`."""
    if _logger.isEnabledFor(logging.INFO):
        _logger.info(LLMStreamStartEvent(messages=message_dicts(messages), tools=_tools(tools)))


def log_stream_end(result: CreateResult, usage: Usage) -> None:
    """Log the end of a `create_stream`."""
    if _logger.isEnabledFor(logging.INFO):
        _logger.info(LLMStreamEndEvent(response=_response(result), **_figures(usage)))


def message_dicts(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """Messages as JSON values; images are counted, not copied."""
    out: list[dict[str, Any]] = []
    for message in messages:
        entry: dict[str, Any] = {"role": message.role, "content": message.text}
        if message.images:
            entry["images"] = len(message.images)  # the images themselves would be megabytes in a log
        if message.source:
            entry["name"] = message.source
        if message.tool_calls:
            entry["tool_calls"] = [
                {"id": c.id, "name": c.name, "arguments": c.arguments} for c in message.tool_calls
            ]
        if message.tool_call_id:
            entry["tool_call_id"] = message.tool_call_id
        out.append(entry)
    return out


def _tools(tools: Sequence[ToolDefinition]) -> list[dict[str, Any]]:
    return [tool.as_openai() for tool in tools]


def _response(result: CreateResult) -> dict[str, Any]:
    return result.model_dump(mode="json", exclude={"logprobs", "usage"}, exclude_none=True)


def _figures(usage: Usage) -> dict[str, int]:
    return {name: getattr(usage, name) for name in Usage.__struct_fields__}


__all__ = ["log_call", "log_stream_end", "log_stream_start", "message_dicts"]
