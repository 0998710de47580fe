"""Random conversations for property tests; every text carries a mark that tells its place."""

from __future__ import annotations

import json

from hypothesis import strategies as st

from flashagents_runtime.chat import ChatMessage, ToolCall, ToolDefinition

SEARCH = ToolDefinition(
    name="search",
    description="Look something up.",
    parameters={"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
)

# Without "<" (templates cut thoughts and tool tags out of texts) and without marks of our own.
_words = st.text(
    st.characters(codec="utf-8", exclude_characters="<>[]", exclude_categories=["Cc"]), max_size=12
)
_sources = st.sampled_from(["user", "planner", "critic-2", "local_guide"])
_kinds = st.sampled_from(["system", "user", "user", "user", "assistant", "assistant", "call", "result"])


def mark(i: int) -> str:
    """The mark of message i."""
    return f"[{i}]"


@st.composite
def conversations(draw: st.DrawFn, min_size: int = 1, max_size: int = 7) -> list[ChatMessage]:
    """Any order of roles and sources, tool calls with and without results, results without calls."""
    kinds = draw(st.lists(_kinds, min_size=min_size, max_size=max_size))
    return [_message(i, kind, draw(_words), draw(_sources)) for i, kind in enumerate(kinds)]


def _message(i: int, kind: str, words: str, source: str) -> ChatMessage:
    text = f"{mark(i)}{words}".strip()
    if kind == "call":
        call = ToolCall(id=f"call{i:05d}", name="search", arguments=json.dumps({"query": mark(i)}))
        return ChatMessage(role="assistant", source=source, tool_calls=[call])
    if kind == "result":
        return ChatMessage(
            role="tool", content=text, source="search", tool_call_id=f"call{i - 1:05d}", is_error=i % 2 == 0
        )
    if kind == "system":
        return ChatMessage(role="system", content=text)
    return ChatMessage(role="user" if kind == "user" else "assistant", content=text, source=source)
