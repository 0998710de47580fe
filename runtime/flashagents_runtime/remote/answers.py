"""Thoughts and tool calls of a server's answers, by the server's own parsers.

The answer's text is held back where there is something to take out of it, and read at its end through
`/separate_reasoning` and `/parse_function_call`: any SGLang server has them.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from ..types import AnswerFormat, Delta, GenerateRequest, ToolCall
from .http import Server

_FALLBACK_TOOL_PARSER = "hermes"

#: What a call begins with, by the name of SGLang's parser (its `bot_token`); parsers without one are left
#: out. `/parse_function_call` does not say whether a call was begun that it could not read.
CALL_BEGINNINGS = {
    **dict.fromkeys(("deepseekv3", "deepseekv31"), "<\uff5ctool\u2581calls\u2581begin\uff5c>"),
    **dict.fromkeys(("glm", "glm45", "glm47", "hermes", "mimo", "qwen", "qwen25", "trinity"), "<tool_call>"),
    "cohere_command4": "<|START_ACTION|>",
    "deepseekv32": "<\uff5cDSML\uff5cfunction_calls>",
    "deepseekv4": "<\uff5cDSML\uff5ctool_calls>",
    "gpt-oss": "<|start|>assistant<|channel|>commentary",
    "hunyuan": "<tool_calls>",
    "inkling": "<|content_invoke_tool_json|>",
    "interns1": "<|action_start|> <|plugin|>",
    "kimi_k2": "<|tool_calls_section_begin|>",
    "kimi_k3": "<|open|>tools<|sep|>",
    "lfm2": "<|tool_call_start|>",
    "llama3": "<|python_tag|>",
    "minicpm5": "<function",
    "mistral": "[TOOL_CALLS]",
    "step3": "<\uff5ctool_calls_begin\uff5c>",
}


class RemoteAnswer:
    """One answer. `request` is what the server is to be asked."""

    def __init__(
        self, server: Server, request: GenerateRequest, tool_parser: str | None, reasoning_parser: str | None
    ) -> None:
        fmt = request.format or AnswerFormat()
        self._server = server
        self._format = fmt
        self._tool_parser = fmt.tool_parser or tool_parser or _FALLBACK_TOOL_PARSER
        self._reasoning_parser = reasoning_parser if request.format is not None else None
        self._held: list[str] = []
        sampling = request.sampling
        if fmt.tools:
            sampling = msgspec.structs.replace(sampling, skip_special_tokens=False)
        if fmt.call_required:
            sampling = msgspec.structs.replace(sampling, json_schema=json.dumps(_calls_schema(fmt)))
        self.request = msgspec.structs.replace(request, sampling=sampling, format=None)

    @property
    def _holds(self) -> bool:
        return bool(self._format.tools) or self._reasoning_parser is not None

    async def read(self, delta: Delta) -> Delta:
        """The delta with thoughts and calls taken out of its text."""
        if not self._holds:
            return delta
        self._held.append(delta.text)
        if delta.result is None:
            return Delta("", delta.token_ids, None, delta.logprobs)
        text, thought = "".join(self._held), ""
        # An enforced call is JSON and nothing else.
        if self._reasoning_parser is not None and not self._format.call_required:
            body = {"text": text, "reasoning_parser": self._reasoning_parser}
            parts = await self._server.json("POST", "/separate_reasoning", body)
            text, thought = parts.get("text") or "", parts.get("reasoning_text") or ""
        result = delta.result
        if self._format.tools:
            whole = text
            text, calls, begun = await self._read_calls(whole)
            if not self._format.parallel_tool_calls:
                calls = calls[:1]
            broken = whole if (begun or self._format.call_required) and not calls else None
            result = msgspec.structs.replace(result, tool_calls=calls, broken_call=broken)
        return Delta(text, delta.token_ids, result, delta.logprobs, thought)

    async def _read_calls(self, text: str) -> tuple[str, list[ToolCall], bool]:
        """The text beside the calls, the calls, whether one was begun."""
        beside = text
        try:
            if self._format.call_required:
                beside, found = "", [(e["name"], json.dumps(e["parameters"])) for e in json.loads(text)]
            else:
                tools = [tool.as_openai() for tool in self._format.tools]
                body = {"text": text, "tools": tools, "tool_call_parser": self._tool_parser}
                parts = await self._server.json("POST", "/parse_function_call", body)
                beside = parts["normal_text"]
                found = [(call["name"], call["parameters"]) for call in parts["calls"]]
            names = {tool.name for tool in self._format.tools}
            calls = [ToolCall(name=name, arguments=arguments) for name, arguments in found]
            if all(c.name in names and isinstance(json.loads(c.arguments), dict) for c in calls):
                marker = CALL_BEGINNINGS.get(self._tool_parser)
                return beside, calls, bool(calls) or (marker is not None and marker in text)
        except (ValueError, KeyError, TypeError):
            pass
        return beside, [], True


def _calls_schema(fmt: AnswerFormat) -> dict[str, Any]:
    """A JSON array of calls: how SGLang itself enforces calls whose own form has no grammar."""
    entries = [
        {
            "type": "object",
            "properties": {
                "name": {"enum": [tool.name]},
                "parameters": tool.parameters or {"type": "object"},
            },
            "required": ["name", "parameters"],
        }
        for tool in fmt.tools
    ]
    schema: dict[str, Any] = {"type": "array", "minItems": 1, "items": {"anyOf": entries}}
    if not fmt.parallel_tool_calls:
        schema["maxItems"] = 1
    return schema


__all__ = ["RemoteAnswer"]
