"""Thoughts and tool calls of a server's answers, by the server's own parsers.

`/separate_reasoning` and `/parse_function_call` take whole texts; any SGLang server has them. What may be
part of a thought or a call is held back until they have been asked; the text before and after is shown as
it comes.
"""

from __future__ import annotations

import json
from typing import Any, Literal

import msgspec

from ..errors import EngineError
from ..schema_check import has_references, moved
from ..types import AnswerFormat, Delta, GenerateRequest, GenerateResult, ToolCall
from .http import Server
from .marks import CALLS, THOUGHTS, beginning_of

_FALLBACK_TOOL_PARSER = "hermes"


class RemoteAnswer:
    """One answer. `request` is what the server is to be asked."""

    def __init__(
        self, server: Server, request: GenerateRequest, tool_parser: str | None, reasoning_parser: str | None
    ) -> None:
        fmt = request.format or AnswerFormat()
        self._server = server
        self._format = fmt
        self._tool_parser = fmt.tool_parser or tool_parser or _FALLBACK_TOOL_PARSER
        # An enforced call is JSON and nothing else.
        wanted = request.format is not None and not fmt.call_required
        self._thought = _Thought(server, reasoning_parser, fmt.prompt_end) if wanted else None
        self._parts: list[str] = []  # all that is no thought, where calls are looked for
        self._shown = 0  # of it, characters that were shown already
        self._tail = ""  # what follows these, until a call begins
        self._begun = False
        sampling = request.sampling
        if fmt.tools:
            sampling = msgspec.structs.replace(sampling, skip_special_tokens=False)
        if fmt.call_required:
            sampling = msgspec.structs.replace(sampling, json_schema=json.dumps(_calls_schema(fmt)))
        self.request = msgspec.structs.replace(request, sampling=sampling, format=None)

    async def read(self, delta: Delta) -> Delta:
        """The delta with thoughts and calls taken out of its text."""
        thought, text, result = "", delta.text, delta.result
        if self._thought is not None:
            thought, text = await self._thought.take_out(text, last=result is not None)
        if self._format.tools:
            self._parts.append(text)
            text = self._showable(text) if result is None else ""
            if result is not None:
                text, result = await self._finish(result)
        return Delta(text, delta.token_ids, result, delta.logprobs, thought)

    def _showable(self, text: str) -> str:
        """What of the text so far cannot be part of a call, and was not shown yet; looks at no text twice."""
        mark = CALLS.get(self._tool_parser)
        if self._begun or self._format.call_required or mark is None:
            return ""
        self._tail += text
        at = beginning_of(mark, self._tail)
        self._begun = self._tail.startswith(mark, at)
        # White space before a call is the call's, not the text's.
        shown = self._tail[:at].rstrip()
        self._tail = self._tail[len(shown) :]
        self._shown += len(shown)
        return shown

    async def _finish(self, result: GenerateResult) -> tuple[str, GenerateResult]:
        """The last text and the result with its calls."""
        whole = "".join(self._parts)
        beside, calls, begun = await self._read_calls(whole)
        if not self._format.parallel_tool_calls:
            calls = calls[:1]
        if (begun or self._format.call_required) and not calls:
            return "", msgspec.structs.replace(result, broken_call=whole)
        if not calls:
            return whole[self._shown :], result
        # Parsers strip the text beside calls.
        before, beside = whole[: self._shown].lstrip(), beside.lstrip()
        rest = beside.removeprefix(before) if beside.startswith(before) else ""
        return rest, msgspec.structs.replace(result, tool_calls=calls)

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
                [beside] = _texts(parts, "normal_text")
                found = [(call["name"], call["parameters"]) for call in parts["calls"]]
            names = {tool.name for tool in self._format.tools}
            calls = [ToolCall(name=name, arguments=arguments) for name, arguments in found]
            if all(c.name in names and isinstance(json.loads(c.arguments), dict) for c in calls):
                # The server does not say whether a call was begun that its parser cannot read.
                mark = CALLS.get(self._tool_parser)
                return beside, calls, bool(calls) or (mark is not None and mark in text)
        except (ValueError, KeyError, TypeError, RecursionError):
            pass
        return beside, [], True


class _Thought:
    """Takes the thought off the beginning of an answer.

    ::

        undecided ──the mark that begins a thought──► inside ──the mark that ends it──► done
            └──────────────anything else──────────────────────────────────────────────►
    """

    def __init__(self, server: Server, parser: str | None, prompt_end: str) -> None:
        self._server = server
        self._parser = parser
        self._marks = None if parser is None else THOUGHTS.get(parser)
        self._held: list[str] = []
        self._tail = ""
        self._prefix = ""
        self._state: Literal["undecided", "inside", "done", "whole"] = "undecided"
        prompt_end = prompt_end.rstrip()
        if parser is None or (self._marks is not None and prompt_end.endswith(self._marks.end)):
            self._state = "done"  # nothing to read it with, or the prompt says that there is none
        elif self._marks is None:
            self._state = "whole"
        elif self._marks.forced or prompt_end.endswith(self._marks.start):
            self._state = "inside"
            self._prefix = "" if self._marks.forced else self._marks.start

    async def take_out(self, text: str, last: bool) -> tuple[str, str]:
        """(thought, text) that the answer's next text adds; both "" while it is held back."""
        if self._state == "done":
            return "", text
        self._held.append(text)
        marks = self._marks
        if self._state == "undecided":
            assert marks is not None
            self._held = ["".join(self._held)]
            bare = self._held[0].lstrip()
            if marks.start.startswith(bare) and not last:
                return "", ""
            if not bare.startswith(marks.start):
                self._state = "done"
                return "", self._held[0]
            self._state = "inside"
            text = self._held[0]
        if not last:
            if marks is None:
                return "", ""
            self._tail = self._tail[-len(marks.end) :] + text  # no text is searched twice
            if marks.end not in self._tail:
                return "", ""
        thought_text, end, after = "".join(self._held), "", ""
        if marks is not None:
            thought_text, end, after = thought_text.partition(marks.end)
        self._state = "done"
        text = thought_text + end
        if self._prefix and self._prefix not in text:
            text = self._prefix + text
        body = {"text": text, "reasoning_parser": self._parser}
        parts = await self._server.json("POST", "/separate_reasoning", body)
        thought, beside = _texts(parts, "reasoning_text", "text")
        return thought, beside + after


def _texts(parts: Any, *names: str) -> list[str]:
    """Texts of a parser's answer; EngineError where it has another form."""
    found = [parts.get(name) or "" for name in names] if isinstance(parts, dict) else []
    texts = [text for text in found if isinstance(text, str)]
    if len(texts) != len(names):
        raise EngineError(f"the server's parser did not answer with {' and '.join(names)}")
    return texts


def _calls_schema(fmt: AnswerFormat) -> dict[str, Any]:
    """A JSON array of calls: how SGLang itself enforces calls whose own form has no grammar."""
    entries, parts = [], {}
    for tool in fmt.tools:
        parameters = tool.parameters or {"type": "object"}
        if has_references(parameters):  # to parts of itself, which is no longer the whole
            parts[tool.name] = moved(parameters, f"#/$defs/{tool.name}")
            parameters = {"$ref": f"#/$defs/{tool.name}"}
        entries.append(
            {
                "type": "object",
                "properties": {"name": {"enum": [tool.name]}, "parameters": parameters},
                "required": ["name", "parameters"],
            }
        )
    schema: dict[str, Any] = {"type": "array", "minItems": 1, "items": {"anyOf": entries}}
    if parts:
        schema["$defs"] = parts
    if not fmt.parallel_tool_calls:
        schema["maxItems"] = 1
    return schema


__all__ = ["RemoteAnswer"]
