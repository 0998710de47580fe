"""Thoughts, tool calls and forms of answers: SGLang's own parsers and grammars, for one request.

The parsers live in the host process because SGLang does. They are given the answer's text as it
comes; what leaves the host has thoughts and calls taken out already.
"""

from __future__ import annotations

import json
import logging
from functools import lru_cache
from typing import Any

import msgspec

from .. import sglang_seams as seams
from ..types import AnswerFormat, Delta, GenerateRequest, GenerateResult, ToolCall

logger = logging.getLogger(__name__)

# The form of `flashagents_runtime.chat_tools`, and the commonest one among open models.
_FALLBACK_TOOL_PARSER = "hermes"
_TAIL_TOKENS = 64


class Parsers:
    """Which parsers the model needs; made once an engine.

    Args:
        tool_parser: SGLang's name of the function-call parser, None where none was recognised.
        reasoning_parser: the same for thoughts.
        tokenizer: the engine's tokenizer, with its chat template.
    """

    def __init__(self, tool_parser: str | None, reasoning_parser: str | None, tokenizer: Any) -> None:
        self._tool_parser = tool_parser
        self._reasoning_parser = reasoning_parser
        self._tokenizer = tokenizer
        template = getattr(tokenizer, "chat_template", None)
        detect = seams.symbol("sglang.srt.parser.template_detection.detect_reasoning_pattern")
        always, toggle = detect(template if isinstance(template, str) else None)
        self._thinks_unasked = bool(always or (toggle is not None and toggle.default_enabled))

    def plan(self, request: GenerateRequest) -> AnswerPlan | None:
        """How to serve a request with a `format`; None for one without.

        Raises:
            ValueError: a tool's schema, or the JSON schema, is none that a grammar can be made of.
        """
        if request.format is None:
            return None
        plan = AnswerPlan(request, request.format)
        if self._reasoning_parser is not None:
            self._plan_thoughts(plan)
        if request.format.tools:
            self._plan_tools(plan, request.format)
        elif request.sampling.json_schema is not None and request.format.compact_json:
            plan.change(json_schema=None, ebnf=_compact_grammar(request.sampling.json_schema))
        return plan

    def _plan_thoughts(self, plan: AnswerPlan) -> None:
        reasoning_parser = seams.symbol("sglang.srt.parser.reasoning_parser.ReasoningParser")
        detector = reasoning_parser(model_type=self._reasoning_parser).detector
        start, end = detector.think_start_token, detector.think_end_token
        tail = self._tokenizer.decode(plan.request.input_ids[-_TAIL_TOKENS:])
        opened = tail.rstrip().endswith(start)
        closed = tail.rstrip().endswith(end)
        if closed:  # the prompt says that there is nothing to think about
            return
        plan.reasoning = reasoning_parser(
            model_type=self._reasoning_parser,
            force_reasoning=opened or None,
            tokenizer=self._tokenizer,
            tool_call_parser_active=bool(plan.format.tools),
        )
        # A grammar begins where the thought ends.
        plan.require_reasoning = opened or self._thinks_unasked

    def _plan_tools(self, plan: AnswerPlan, fmt: AnswerFormat) -> None:
        # Calls that are enforced are held to the tools' schemas, whether the tools are strict or not.
        tools = _sglang_tools(fmt, strict=fmt.call_required)
        name = fmt.tool_parser or self._tool_parser or _FALLBACK_TOOL_PARSER
        function_call_parser = seams.symbol(
            "sglang.srt.function_call.function_call_parser.FunctionCallParser"
        )
        plan.calls = function_call_parser(tools, name, tokenizer=self._tokenizer)
        plan.visible_calls = function_call_parser(tools, name, tokenizer=self._tokenizer)
        plan.change(skip_special_tokens=False)  # some models mark calls with special tokens
        schema = plan.request.sampling.json_schema
        if schema is not None and not fmt.call_required:
            plan.change(json_schema=None, structural_tag=_json_or_calls(plan.calls, tools, schema, fmt))
            return
        choice = "required" if fmt.call_required else "auto"
        constraint = plan.calls.get_structure_constraint(choice, parallel_tool_calls=fmt.parallel_tool_calls)
        if constraint is None and fmt.call_required and not plan.calls.detector.parses_required_natively():
            array = seams.symbol("sglang.srt.function_call.utils.get_json_schema_constraint")
            constraint = (
                "json_schema",
                array(tools, choice, parallel_tool_calls=fmt.parallel_tool_calls),
            )
        if constraint is None:
            return
        kind, value = constraint
        if kind == "json_schema" and fmt.call_required:
            plan.as_array = True
        value = _plain(value)
        if fmt.call_required and isinstance(value, dict) and "structures" in value:
            # SGLang's older form lets the model call on and on; this one can end after the first call.
            value = {"type": "structural_tag", "format": _calls_format(plan.calls, tools, fmt)}
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        plan.change(**{"json_schema": None, kind: text})


class AnswerPlan:
    """One request's answer in the making. `request` is what the engine is to be asked."""

    def __init__(self, request: GenerateRequest, fmt: AnswerFormat) -> None:
        self.request = request
        self.format = fmt
        self.require_reasoning = False
        self.reasoning: Any = None
        self.calls: Any = None
        self.visible_calls: Any = None
        self.as_array = False
        self._whole = ""
        self._shown = ""

    def change(self, **sampling: Any) -> None:
        """Change how the request is sampled."""
        new = msgspec.structs.replace(self.request.sampling, **sampling)
        self.request = msgspec.structs.replace(self.request, sampling=new)

    def read(self, delta: Delta) -> Delta:
        """The delta with thoughts and calls taken out of its text."""
        thought, normal = self._split(delta.text, last=delta.result is not None)
        self._whole += normal
        text = self._show(normal)
        result = delta.result
        if result is not None and self.calls is not None:
            result, text = self._finish(result, text)
        return Delta(text, delta.token_ids, result, delta.logprobs, thought)

    def _split(self, text: str, last: bool) -> tuple[str, str]:
        if self.reasoning is None:
            return "", text
        thought, normal = self.reasoning.parse_stream_chunk(text) if text else ("", "")
        if last:
            more_thought, more_normal = self.reasoning.parse_stream_end()
            thought, normal = (thought or "") + (more_thought or ""), (normal or "") + (more_normal or "")
        return thought or "", normal or ""

    def _show(self, normal: str) -> str:
        """What of the text can be shown already: nothing that may turn out to be a call."""
        if self.calls is None:
            return normal
        if self.as_array or self.visible_calls is None or not normal:
            return ""
        if self.calls.has_tool_call(self._whole):  # from here on it is calls
            self.visible_calls = None
            return ""
        try:
            text: str = self.visible_calls.parse_stream_chunk(normal)[0] or ""
        except Exception:  # a parser stumbles over a model's odd text: show the rest at the end
            logger.warning("the streaming tool-call parser failed", exc_info=True)
            self.visible_calls = None
            return ""
        self._shown += text
        return text

    def _finish(self, result: GenerateResult, text: str) -> tuple[GenerateResult, str]:
        """The result with its calls, and the last text: all that was held back and is no call."""
        beside, calls, begun = self._read_calls()
        if not self.format.parallel_tool_calls:
            calls = calls[:1]
        if (begun or self.format.call_required) and not calls:
            return msgspec.structs.replace(result, broken_call=self._whole), ""
        before = self._shown.removesuffix(text)
        if calls:  # parsers strip the text beside calls
            before, beside = before.lstrip(), beside.lstrip()
        if beside.startswith(before):
            text = beside.removeprefix(before)
        return msgspec.structs.replace(result, tool_calls=calls), text

    def _read_calls(self) -> tuple[str, list[ToolCall], bool]:
        """Text beside the calls, the calls (none unless all are whole and valid), whether one was begun."""
        beside = self._whole
        try:
            if self.as_array:
                entries = json.loads(self._whole)
                beside, found = "", [(e["name"], json.dumps(e.get("parameters", {}))) for e in entries]
            elif self.calls.has_tool_call(self._whole):
                beside, items = self.calls.parse_non_stream(self._whole)
                if not items:
                    items = self._whole_calls()
                found = [(item.name, item.parameters) for item in items]
            else:
                return beside, [], False
            calls = [ToolCall(name=name, arguments=arguments) for name, arguments in found]
            names = {tool.name for tool in self.format.tools}
            if all(c.name in names and isinstance(json.loads(c.arguments), dict) for c in calls):
                return beside, calls, True
        except Exception:  # cut off, or no JSON: the caller is told, with the text
            logger.info("unreadable tool call: %r", self._whole[:500])
        return beside, [], True

    def _whole_calls(self) -> list[Any]:
        """The calls before one that was cut off; some parsers give none at all then."""
        end = getattr(self.calls.detector, "eot_token", "")
        if not end or end not in self._whole:
            return []
        before, _, _ = self._whole.rpartition(end)
        items: list[Any] = self.calls.parse_non_stream(before + end)[1]
        return items


def _sglang_tools(fmt: AnswerFormat, strict: bool) -> list[Any]:
    tool_class = seams.symbol("sglang.srt.entrypoints.openai.protocol.Tool")
    return [
        tool_class.model_validate(
            {
                "type": "function",
                "function": {**tool.as_openai()["function"], "strict": tool.strict or strict},
            }
        )
        for tool in fmt.tools
    ]


def _plain(value: Any) -> Any:
    """A constraint as JSON values: SGLang gives pydantic models or dictionaries."""
    return value.model_dump(by_alias=True) if hasattr(value, "model_dump") else value


def _calls_format(parser: Any, tools: list[Any], fmt: AnswerFormat) -> dict[str, Any]:
    """xgrammar's format of one call, or of several in a row, in the model's own form."""
    info = parser.detector.structure_info()
    tags = [
        {
            "type": "tag",
            "begin": info(tool.function.name).begin,
            "content": {"type": "json_schema", "json_schema": tool.function.parameters or {}},
            "end": info(tool.function.name).end,
        }
        for tool in tools
    ]
    return {
        "type": "tags_with_separator",
        "tags": tags,
        "separator": "\n",
        "at_least_one": True,
        "stop_after_first": not fmt.parallel_tool_calls,
    }


def _json_or_calls(parser: Any, tools: list[Any], schema: str, fmt: AnswerFormat) -> str:
    """A grammar for either the JSON of a schema or calls of the tools (free choice with a JSON answer)."""
    answer: dict[str, Any] = {"type": "json_schema", "json_schema": json.loads(schema)}
    if fmt.compact_json:
        answer = {"type": "grammar", "grammar": _compact_grammar(schema)}
    either = {"type": "or", "elements": [answer, _calls_format(parser, tools, fmt)]}
    return json.dumps({"type": "structural_tag", "format": either}, ensure_ascii=False)


@lru_cache(maxsize=256)
def _compact_grammar(schema: str) -> str:
    """The grammar of a JSON schema without any white space between the tokens of JSON."""
    from xgrammar import Grammar

    try:
        grammar = Grammar.from_json_schema(schema, any_whitespace=False, separators=(",", ":"))
    except RuntimeError as e:
        raise ValueError(f"no grammar can be made of this JSON schema: {e}") from e
    return str.__str__(str(grammar))  # xgrammar gives a subclass of str, which msgspec does not take


__all__ = ["AnswerPlan", "Parsers"]
