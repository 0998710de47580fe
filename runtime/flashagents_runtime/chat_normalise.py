"""Arrange a conversation so that a given chat template takes it, and nothing of it is lost.

A multi-agent conversation is not what chat templates were written for: several speakers in a row,
system messages in the middle, an assistant who spoke first. What is done here, by what the template
can take (`TemplateCapabilities`):

=====================  ===========================================================================
in the conversation    in the prompt
=====================  ===========================================================================
leading system         joined by a newline into one; without a system role: the first user turn
late system            in place; else in place as user text under `LATE_SYSTEM` (never moved to the
                       front: that would change the prompt's beginning, and with it every cached
                       token; never given more authority than it had)
source of a user turn  the template's `name`; else "{source} said:" before the text. A source "user"
                       (or none) that opens a turn stays without a tag
same role in a row     kept where the template allows it; else merged into one turn, each part with
                       its speaker
assistant first        kept; else after an empty user turn
assistant last         kept where the template still gives the cue to speak; else followed by a user
                       turn `CONTINUE`
tools                  the template's own form; else the forms of `chat_tools`
empty content          kept; else `EMPTY`
=====================  ===========================================================================

Every decision about a message depends on it and on earlier ones alone, so a longer conversation
renders to a longer text with the same beginning wherever the template itself allows that.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from . import chat_tools
from .chat import ChatMessage, ImagePart, ToolDefinition
from .chat_probe import TemplateCapabilities

SAID = "{source} said:\n"
LATE_SYSTEM = "System instruction:\n"  # the client lets no source name hold these words
CONTINUE = "Continue."
EMPTY = "(empty)"
JOIN = "\n\n"
UNNAMED = ("", "user")
"""Sources that are not worth a tag."""

TemplateMessages = list[dict[str, Any]]


@dataclass
class _Turn:
    """One turn of the prompt in the making.

    `parts` are texts and images in order; `spoken`: somebody has spoken in it, so the next speaker
    who is merged into it needs a tag.
    """

    role: str
    parts: list[str | ImagePart] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)
    spoken: bool = True

    def add(self, parts: Sequence[str | ImagePart], joint: str = JOIN) -> None:
        for i, part in enumerate(parts):
            last = self.parts[-1] if self.parts else None
            if i == 0 and isinstance(part, str) and isinstance(last, str):
                # An empty text leaves no blank lines behind.
                self.parts[-1] = last + joint + part if last and part else last or part
            else:
                self.parts.append(part)


def normalise(
    messages: Sequence[ChatMessage],
    can: TemplateCapabilities,
    *,
    tools: Sequence[ToolDefinition] = (),
    generation_prompt: bool = True,
) -> tuple[TemplateMessages, list[dict[str, Any]] | None]:
    """The messages and the tools to give to the template's render function."""
    turns: list[_Turn] = []
    native_tools = [tool.as_openai() for tool in tools] if tools and can.tools else None
    head, rest = _split_head(messages)
    if tools and not can.tools:
        head.append(chat_tools.instructions(tools))
    if head:
        turns.append(_Turn("system" if can.system else "user", ["\n".join(head)], spoken=False))
    for message in rest:
        _place(turns, message, can)
    _complete(turns, can, generation_prompt)
    return [_as_dict(turn, can) for turn in turns], native_tools


def _split_head(messages: Sequence[ChatMessage]) -> tuple[list[str], Sequence[ChatMessage]]:
    n = next((i for i, m in enumerate(messages) if m.role != "system"), len(messages))
    return [m.text for m in messages[:n]], messages[n:]


def _place(turns: list[_Turn], message: ChatMessage, can: TemplateCapabilities) -> None:
    if message.role == "system":
        _place_system(turns, message, can)
    elif message.role == "user":
        _place_user(turns, message, can)
    elif message.role == "assistant":
        _place_assistant(turns, message, can)
    else:
        _place_tool_result(turns, message, can)


def _place_system(turns: list[_Turn], message: ChatMessage, can: TemplateCapabilities) -> None:
    if not can.system_late:
        _append_user(turns, [LATE_SYSTEM + message.text], can)
    elif turns and turns[-1].role == "system":
        turns[-1].add([message.text], "\n")
    else:
        turns.append(_Turn("system", [message.text]))


def _place_user(turns: list[_Turn], message: ChatMessage, can: TemplateCapabilities) -> None:
    parts: list[str | ImagePart] = (
        [message.content] if isinstance(message.content, str) else list(message.content)
    )
    source = message.source or ""
    # With a name of its own it is a turn of its own, unless the template forbids two in a row.
    if can.name and source and (can.user_twice or not turns or turns[-1].role != "user"):
        turns.append(_Turn("user", parts, {"name": source}))
        return
    after_another = bool(turns) and turns[-1].role == "user" and turns[-1].spoken and not can.user_twice
    if source not in UNNAMED or after_another:
        parts = _tagged(parts, source or "user")
    _append_user(turns, parts, can)


def _tagged(parts: list[str | ImagePart], source: str) -> list[str | ImagePart]:
    tag = SAID.format(source=source)
    if parts and isinstance(parts[0], str):
        return [tag + parts[0], *parts[1:]]
    return [tag, *parts]


def _append_user(turns: list[_Turn], parts: list[str | ImagePart], can: TemplateCapabilities) -> None:
    if turns and turns[-1].role == "user" and not can.user_twice:
        turns[-1].add(parts)
        turns[-1].spoken = True
    else:
        turns.append(_Turn("user", parts))


def _place_assistant(turns: list[_Turn], message: ChatMessage, can: TemplateCapabilities) -> None:
    extra: dict[str, Any] = {}
    text = message.text
    if message.thought and can.thinking:
        extra["reasoning_content"] = message.thought
    if message.tool_calls and can.tool_calls:
        extra["tool_calls"] = [_call_dict(c, can) for c in message.tool_calls]
    elif message.tool_calls:
        calls = chat_tools.calls_text(message.tool_calls)
        text = f"{text}\n{calls}" if text else calls
    if not any(turn.role != "system" for turn in turns) and not can.assistant_first:
        _append_user(turns, [""], can)
    if turns and turns[-1].role == "assistant" and not can.assistant_twice:
        turns[-1].add([text])
        calls_before = turns[-1].extra.pop("tool_calls", [])
        turns[-1].extra.update(extra)
        if calls_before:
            turns[-1].extra["tool_calls"] = calls_before + extra.get("tool_calls", [])
    else:
        turns.append(_Turn("assistant", [text], extra))


def _call_dict(call: Any, can: TemplateCapabilities) -> dict[str, Any]:
    arguments: Any = call.arguments
    if can.tool_calls_dict:
        try:
            arguments = json.loads(call.arguments)
        except ValueError:
            arguments = {"arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def _place_tool_result(turns: list[_Turn], message: ChatMessage, can: TemplateCapabilities) -> None:
    text = chat_tools.result_content(message)
    # A result without its call (a trimmed context) would make strict templates raise.
    called = any(turn.role in ("assistant", "tool") and _calls(turns) for turn in turns[-1:])
    if can.tool_results and called:
        extra = {"name": message.source or "", "tool_call_id": message.tool_call_id or ""}
        turns.append(_Turn("tool", [text], extra))
    else:
        _append_user(turns, [chat_tools.result_text(message)], can)


def _calls(turns: list[_Turn]) -> bool:
    """Whether the last assistant turn, with nothing but results behind it, made native calls."""
    for turn in reversed(turns):
        if turn.role != "tool":
            return "tool_calls" in turn.extra
    return False


def _complete(turns: list[_Turn], can: TemplateCapabilities, generation_prompt: bool) -> None:
    if turns and all(turn.role == "system" for turn in turns) and not can.system_alone:
        turns.append(_Turn("user", [""]))
    if generation_prompt and turns and turns[-1].role == "assistant" and not can.after_assistant:
        turns.append(_Turn("user", [CONTINUE]))


def _as_dict(turn: _Turn, can: TemplateCapabilities) -> dict[str, Any]:
    content: Any
    if len(turn.parts) == 1 and isinstance(turn.parts[0], str):
        text = turn.parts[0]
        if not text and not can.empty_content and "tool_calls" not in turn.extra:
            text = EMPTY
        content = [{"type": "text", "text": text}] if can.text_parts else text
        if not text and "tool_calls" in turn.extra and can.tool_calls_content_none:
            content = None
    else:
        content = [
            {"type": "image"} if isinstance(part, ImagePart) else {"type": "text", "text": part}
            for part in turn.parts
        ]
    return {"role": turn.role, "content": content, **turn.extra}


__all__ = ["CONTINUE", "EMPTY", "JOIN", "LATE_SYSTEM", "SAID", "normalise"]
