"""Tools for models whose chat template knows none: the Hermes form, as text.

The form of Nous Hermes and Qwen, which many models have seen and SGLang has a parser for:
definitions in the system message, calls as JSON in `<tool_call>`, results as JSON-free text in
`<tool_response>` in a user turn.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from .chat import ChatMessage, ToolCall, ToolDefinition

TOOL_PARSER = "hermes"
"""SGLang's name of the function-call parser that reads this form."""

_INSTRUCTIONS = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within \
<tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""


def instructions(tools: Sequence[ToolDefinition]) -> str:
    """The system text that tells a model of its tools."""
    return _INSTRUCTIONS.format(
        tools="\n".join(json.dumps(tool.as_openai(), ensure_ascii=False) for tool in tools)
    )


def calls_text(calls: Sequence[ToolCall]) -> str:
    """An assistant's calls as text."""
    return "\n".join(
        f'<tool_call>\n{{"name": {json.dumps(c.name)}, "arguments": {c.arguments or "{}"}}}\n</tool_call>'
        for c in calls
    )


def result_content(message: ChatMessage) -> str:
    """What a tool said; a failure is called one."""
    return f"Error: {message.text}" if message.is_error else message.text


def result_text(message: ChatMessage) -> str:
    """A tool's result as user text."""
    name = f' name="{message.source}"' if message.source else ""
    return f"<tool_response{name}>\n{result_content(message)}\n</tool_response>"


__all__ = ["TOOL_PARSER", "calls_text", "instructions", "result_content", "result_text"]
