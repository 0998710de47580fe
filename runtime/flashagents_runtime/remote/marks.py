"""What thoughts and calls begin and end with, by the names of SGLang's parsers.

A server parses whole texts. To show an answer while it comes, the client has to know where something
begins that is not to be shown; what it *is* the server's parser says. Held against the installed SGLang by
a test; a parser that is not listed means that its answers are shown in one piece.
"""

from __future__ import annotations

from typing import NamedTuple


class ThinkMarks(NamedTuple):
    """`forced`: the answer begins inside the thought, whether it says so or not."""

    start: str
    end: str
    forced: bool


_THINK = ThinkMarks("<think>", "</think>", False)

THOUGHTS = {
    **dict.fromkeys(
        ("deepseek-v3", "deepseek-v4", "glm45", "hunyuan", "interns1", "kimi_k2", "mimo", "nemotron_3"),
        _THINK,
    ),
    **dict.fromkeys(("poolside_v1", "qwen3"), _THINK),
    **dict.fromkeys(
        ("deepseek-r1", "minimax", "qwen3-thinking", "step3", "step3p5"), _THINK._replace(forced=True)
    ),
    "kimi": ThinkMarks("\u25c1think\u25b7", "\u25c1/think\u25b7", False),
    "mistral": ThinkMarks("[THINK]", "[/THINK]", False),
}

CALLS = {
    **dict.fromkeys(("deepseekv3", "deepseekv31"), "<\uff5ctool\u2581calls\u2581begin\uff5c>"),
    **dict.fromkeys(("glm", "glm45", "glm47", "hermes", "mimo", "qwen", "qwen25", "trinity"), "<tool_call>"),
    "cohere_command4": "<|START_ACTION|>",
    "deepseekv32": "<\uff5cDSML\uff5cfunction_calls>",
    "deepseekv4": "<\uff5cDSML\uff5ctool_calls>",
    "hunyuan": "<tool_calls>",
    "interns1": "<|action_start|> <|plugin|>",
    "kimi_k2": "<|tool_calls_section_begin|>",
    "lfm2": "<|tool_call_start|>",
    "mistral": "[TOOL_CALLS]",
    "step3": "<\uff5ctool_calls_begin\uff5c>",
}


def beginning_of(mark: str, text: str) -> int:
    """Where in `text` the mark, or what may become it, begins; the text's length where neither is there."""
    found = text.find(mark)
    if found >= 0:
        return found
    for length in range(min(len(mark) - 1, len(text)), 0, -1):
        if text.endswith(mark[:length]):
            return len(text) - length
    return len(text)


__all__ = ["CALLS", "THOUGHTS", "ThinkMarks", "beginning_of"]
