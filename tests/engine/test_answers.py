"""SGLang's parsers as the host uses them, on texts of every kind of chunks; no engine runs."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashagents_runtime import (
    AnswerFormat,
    Delta,
    GenerateRequest,
    GenerateResult,
    SamplingParams,
    ToolDefinition,
    Usage,
)
from helpers import chat_templates

OBJECT = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
TOOLS = [
    ToolDefinition(name="search", parameters=OBJECT),
    ToolDefinition(name="add", parameters={"type": "object", "properties": {"a": {"type": "integer"}}}),
]
SEARCH = '<tool_call>\n{"name": "search", "arguments": {"query": "x < y"}}\n</tool_call>'
ADD = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
CUE = "<|im_start|>assistant\n"


class Tokenizer:
    """What the host asks of the model's tokenizer; tokens are bytes."""

    chat_template = chat_templates.SOURCES["qwen3"]

    def decode(self, ids: list[int]) -> str:
        return bytes(ids).decode()


@pytest.fixture(scope="module")
def parsers() -> Any:
    from flashagents_runtime import cpu_shims

    cpu_shims.install()
    from flashagents_runtime.host.answers import Parsers

    return Parsers("qwen", "qwen3", Tokenizer())


@pytest.fixture(scope="module")
def r1() -> Any:
    from flashagents_runtime import cpu_shims

    cpu_shims.install()
    from flashagents_runtime.host.answers import Parsers

    return Parsers(None, "deepseek-r1", Tokenizer())


def read(
    parsers: Any, text: str, *, chunk: int | list[int] = 1, prompt: str = CUE, **fmt: Any
) -> tuple[str, str, GenerateResult]:
    """Thought, text and result of an answer that comes in chunks of so many characters, or cut at places."""
    plan = parsers.plan(GenerateRequest(input_ids=list(prompt.encode()), format=AnswerFormat(**fmt)))
    places = chunk if isinstance(chunk, list) else range(0, len(text), chunk)
    ends = sorted({place for place in places if 0 < place < len(text)})
    pieces = [text[a:b] for a, b in itertools.pairwise([0, *ends, len(text)])]
    end = GenerateResult(finish_reason="stop", usage=Usage())
    deltas = [
        plan.read(Delta(piece, [i], end if i == len(pieces) - 1 else None)) for i, piece in enumerate(pieces)
    ]
    assert [d.token_ids for d in deltas] == [[i] for i in range(len(pieces))]
    result = deltas[-1].result
    assert result is not None
    return "".join(d.thought for d in deltas), "".join(d.text for d in deltas), result


@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 7, 1000])
@pytest.mark.parametrize("with_tools", [False, True])
class TestThoughts:
    def fmt(self, with_tools: bool) -> dict[str, Any]:
        return {"tools": TOOLS} if with_tools else {}

    def test_one_exact_span(self, parsers: Any, chunk: int, with_tools: bool) -> None:
        text = "<think>\nthink < that, thinker\n</think>\n\nHi, <b>thinker</b> <th"
        thought, rest, _ = read(parsers, text, chunk=chunk, **self.fmt(with_tools))
        assert thought == "\nthink < that, thinker\n"
        assert rest == "\n\nHi, <b>thinker</b> <th"

    def test_the_prompt_opened_it(self, parsers: Any, chunk: int, with_tools: bool) -> None:
        prompt = CUE + "<think>\n"
        got = read(parsers, "so be it</think>Yes.", chunk=chunk, prompt=prompt, **self.fmt(with_tools))
        assert got[:2] == ("so be it", "Yes.")

    def test_the_prompt_closed_it(self, parsers: Any, chunk: int, with_tools: bool) -> None:
        prompt = CUE + "<think>\n\n</think>\n\n"
        got = read(parsers, "<think> is a tag", chunk=chunk, prompt=prompt, **self.fmt(with_tools))
        assert got[:2] == ("", "<think> is a tag")

    def test_no_thought(self, parsers: Any, chunk: int, with_tools: bool) -> None:
        assert read(parsers, "think!", chunk=chunk, **self.fmt(with_tools))[:2] == ("", "think!")

    def test_a_thought_that_was_cut_off(self, parsers: Any, chunk: int, with_tools: bool) -> None:
        got = read(parsers, "<think>\nendless </thi", chunk=chunk, **self.fmt(with_tools))
        assert got[:2] == ("\nendless </thi", "")


PIECES = st.lists(st.sampled_from([*"<>/ \nx", "think", "</thin", "<th", "\u00e9"]), max_size=12).map("".join)
PLAIN = PIECES.filter(lambda text: "<think>" not in text and "</think>" not in text)
CUTS = st.lists(st.integers(1, 80), max_size=20)
PROPERTY = settings(max_examples=200, deadline=None, derandomize=True)


class TestThoughtsCutAnywhere:
    """SGLang's own streaming parsers: not a letter is lost, doubled, or on the wrong side."""

    @PROPERTY
    @given(thought=PLAIN, rest=PLAIN, cuts=CUTS)
    def test_qwen(self, parsers: Any, thought: str, rest: str, cuts: list[int]) -> None:
        got = read(parsers, f"<think>{thought}</think>{rest}", chunk=cuts)
        assert got[:2] == (thought, rest)

    @PROPERTY
    @given(thought=PLAIN, rest=PLAIN, cuts=CUTS)
    def test_deepseek_whose_prompt_opens_it(self, r1: Any, thought: str, rest: str, cuts: list[int]) -> None:
        got = read(r1, f"{thought}</think>{rest}", chunk=cuts, prompt="<\uff5cAssistant\uff5c><think>\n")
        assert got[:2] == (thought, rest)

    @PROPERTY
    @given(rest=PLAIN.filter(lambda text: text and not text.startswith("<")), cuts=CUTS)
    def test_no_thought(self, parsers: Any, rest: str, cuts: list[int]) -> None:
        assert read(parsers, rest, chunk=cuts)[:2] == ("", rest)


@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 7, 1000])
class TestCalls:
    def test_a_call_with_text_and_thought(self, parsers: Any, chunk: int) -> None:
        text = f"<think>\nHm.\n</think>\n\nLet me look.\n{SEARCH}"
        thought, rest, result = read(parsers, text, chunk=chunk, tools=TOOLS)
        assert (thought.strip(), rest.strip()) == ("Hm.", "Let me look.")
        [call] = result.tool_calls
        assert (call.name, json.loads(call.arguments)) == ("search", {"query": "x < y"})
        assert result.broken_call is None

    def test_two_calls(self, parsers: Any, chunk: int) -> None:
        _, rest, result = read(parsers, f"{SEARCH}\n{ADD}", chunk=chunk, tools=TOOLS)
        assert [c.name for c in result.tool_calls] == ["search", "add"] and rest == ""
        one = read(parsers, f"{SEARCH}\n{ADD}", chunk=chunk, tools=TOOLS, parallel_tool_calls=False)
        assert [c.name for c in one[2].tool_calls] == ["search"]

    @pytest.mark.parametrize(
        "text",
        [SEARCH[:45], SEARCH.replace("search", "nope"), SEARCH.replace("{", "")],
        ids=["cut", "unknown", "no-json"],
    )
    def test_a_call_that_cannot_be_read(self, parsers: Any, chunk: int, text: str) -> None:
        _, rest, result = read(parsers, text, chunk=chunk, tools=TOOLS)
        assert result.tool_calls == [] and result.broken_call == text
        assert rest == ""

    def test_whole_calls_stand_where_a_further_one_was_cut_off(self, parsers: Any, chunk: int) -> None:
        _, rest, result = read(parsers, f"{ADD}\n{SEARCH[:60]}", chunk=chunk, tools=TOOLS)
        assert [c.name for c in result.tool_calls] == ["add"] and rest == ""

    def test_no_call(self, parsers: Any, chunk: int) -> None:
        text = "Tools? <tool> <tool_cal"
        _, rest, result = read(parsers, text, chunk=chunk, tools=TOOLS)
        assert (rest, result.tool_calls, result.broken_call) == (text, [], None)


def sampling(parsers: Any, schema: str | None = None, **fmt: Any) -> SamplingParams:
    request = GenerateRequest(
        input_ids=list(CUE.encode()), format=AnswerFormat(**fmt), sampling=SamplingParams(json_schema=schema)
    )
    out: SamplingParams = parsers.plan(request).request.sampling
    return out


def accepts(grammar: Any, text: str) -> bool:
    from xgrammar.testing import _is_grammar_accept_string

    return bool(_is_grammar_accept_string(grammar, text))


CALLS = {
    "search": '<tool_call>\n{"name":"search", "arguments":{"query": "x"}}\n</tool_call>',
    "add": '<tool_call>\n{"name":"add", "arguments":{"a": 1}}\n</tool_call>',
    "wrong": '<tool_call>\n{"name":"add", "arguments":{"a": "one"}}\n</tool_call>',
}


def test_required_calls_are_held_to_their_schemas(parsers: Any) -> None:
    from xgrammar import Grammar

    several = Grammar.from_structural_tag(sampling(parsers, tools=TOOLS, call_required=True).structural_tag)
    one = Grammar.from_structural_tag(
        sampling(parsers, tools=TOOLS, call_required=True, parallel_tool_calls=False).structural_tag
    )
    for grammar in (several, one):
        assert accepts(grammar, CALLS["search"]) and accepts(grammar, CALLS["add"])
        assert not accepts(grammar, CALLS["wrong"])
        assert not accepts(grammar, "No.")
    assert accepts(several, CALLS["search"] + "\n" + CALLS["add"])
    assert not accepts(one, CALLS["search"] + "\n" + CALLS["add"])


def test_required_calls_of_a_form_without_grammar_are_an_array(parsers: Any) -> None:
    fmt: dict[str, Any] = {"tools": TOOLS, "call_required": True, "tool_parser": "pythonic"}
    schema = json.loads(sampling(parsers, json.dumps(OBJECT), **fmt).json_schema or "")
    assert (schema["type"], schema["minItems"]) == ("array", 1)
    text = '[{"name": "add", "parameters": {"a": 1}}]'
    for chunk in (1, 1000):
        _, rest, result = read(parsers, text, chunk=chunk, **fmt)
        assert [(c.name, c.arguments) for c in result.tool_calls] == [("add", '{"a": 1}')] and rest == ""
        assert read(parsers, text[:20], chunk=chunk, **fmt)[2].broken_call == text[:20]


def test_a_free_choice_is_free(parsers: Any) -> None:
    free = sampling(parsers, tools=TOOLS)
    assert (free.structural_tag, free.json_schema, free.skip_special_tokens) == (None, None, False)


def test_strict_tools_are_held_to_their_schema_also_in_a_free_choice(parsers: Any) -> None:
    strict = [ToolDefinition(name="search", parameters=OBJECT, strict=True)]
    tag = json.loads(sampling(parsers, tools=strict).structural_tag or "")
    assert "query" in json.dumps(tag)


def test_json_is_compact(parsers: Any) -> None:
    from xgrammar import Grammar

    schema = {"type": "object", "properties": {"a": {"type": "integer"}, "b": OBJECT}, "required": ["a", "b"]}
    compact = sampling(parsers, json.dumps(schema), compact_json=True)
    assert compact.json_schema is None and compact.ebnf is not None
    grammar = Grammar.from_ebnf(compact.ebnf)
    assert accepts(grammar, '{"a":1,"b":{"query":"é"}}')
    assert not accepts(grammar, '{"a": 1,"b":{"query":"x"}}')
    assert not accepts(grammar, '{"b":{"query":"x"},"a":1}')


def test_json_or_a_call(parsers: Any) -> None:
    from xgrammar import Grammar

    tag = sampling(parsers, json.dumps(OBJECT), tools=TOOLS, compact_json=True).structural_tag
    grammar = Grammar.from_structural_tag(tag)
    assert accepts(grammar, '{"query":"x"}')
    assert accepts(grammar, CALLS["add"])
    assert not accepts(grammar, "free text")


def test_a_schema_that_is_none_is_refused(parsers: Any) -> None:
    with pytest.raises(ValueError, match="JSON schema"):
        sampling(parsers, '{"type": "nonsense"}', compact_json=True)


def test_a_request_without_a_format_is_left_alone(parsers: Any) -> None:
    assert parsers.plan(GenerateRequest(input_ids=[1])) is None
