"""Thinking models: what of the template and the prompt says so, and thoughts cut at any place.

SGLang's own parsers on the same cuts: tests/engine/test_answers.py.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from typing import Any

import pytest
from autogen_core import FunctionCall
from autogen_core.models import FunctionExecutionResult, FunctionExecutionResultMessage
from hypothesis import given, settings
from hypothesis import strategies as st

from flashagents_runtime import (
    AnswerFormat,
    Delta,
    GenerateRequest,
    GenerateResult,
    Reply,
    ToolDefinition,
    Usage,
)
from flashagents_runtime.chat_template import JinjaTemplate
from flashagents_runtime.remote.answers import RemoteAnswer
from helpers import chat_templates
from helpers.clients import assistant, collect, prompt, user
from helpers.engine_kinds import Rig
from helpers.sglang_server import FakeSGLang

TOOLS: Any = [{"name": "add", "description": "Add.", "parameters": {"type": "object", "properties": {}}}]


class Bytes(JinjaTemplate):
    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Any, *, skip_special_tokens: bool = True) -> str:
        return bytes(ids).decode(errors="replace")


# R1's template is V3's, but that its cue opens the thought and that earlier thoughts are dropped.
R1 = (
    chat_templates.SOURCES["deepseek_v3"]
    .replace("{{'<\uff5cAssistant\uff5c>'}}", "{{'<\uff5cAssistant\uff5c><think>\\n'}}")
    .replace("+ message['content'] + '<\uff5cend", "+ message['content'].split('</think>')[-1] + '<\uff5cend")
)
QWEN = Bytes(chat_templates.SOURCES["qwen3"])
DEEPSEEK = Bytes(R1, chat_templates.SPECIAL)


def prompt_end(rig: Rig) -> str:
    fmt = rig.scripted.requests[-1].format
    assert fmt is not None
    return fmt.prompt_end


# ---- the request


async def test_an_answer_with_and_without_a_thought(rig: Rig) -> None:
    client = await rig.client(*[Reply(text=" Another Hello", thought=" Hello")] * 2, "Hello", "Hello")
    result, (_, streamed) = await client.create([user()]), await collect(client, [user()])
    for got in (result, streamed):
        assert (got.content, got.thought, got.finish_reason) == ("Another Hello", "Hello", "stop")
    result, (_, streamed) = await client.create([user()]), await collect(client, [user()])
    for got in (result, streamed):
        assert (got.content, got.thought) == ("Hello", None)


async def test_the_chunks_hold_no_thought(rig: Rig) -> None:
    client = await rig.client(Reply(text="Yes, <b>now</b>.", thought="Hm."))
    chunks, result = await collect(client, [user()])
    assert "".join(chunks) == result.content == "Yes, <b>now</b>."
    assert len(chunks) > 5, "the answer is streamed, thought or not"


async def test_a_qwen_template_with_thinking_switched_off(rig: Rig) -> None:
    client = await rig.client(
        "<think> is a tag.", tokenizer=QWEN, chat_template_kwargs={"enable_thinking": False}
    )
    if rig.kind == "remote":
        result = await client.create([user()])
        assert (result.content, result.thought) == ("<think> is a tag.", None)
        assert prompt(rig.scripted).endswith("<think>\n\n</think>\n\n")
    else:
        await client.create([user()])
        assert prompt_end(rig).endswith("</think>\n\n")


async def test_a_deepseek_template_that_opens_the_thought(rig: Rig) -> None:
    rig.fake.parsers["reasoning_parser"] = "deepseek-r1"
    reply = "It is.</think>\n\nYes." if rig.kind == "remote" else Reply(text="Yes.", thought="It is.")
    client = await rig.client(reply, tokenizer=DEEPSEEK)
    chunks, result = await collect(client, [user()])
    assert (result.content, result.thought) == ("Yes.", "It is.") and "".join(chunks) == "Yes."
    assert prompt(rig.scripted).endswith("<\uff5cAssistant\uff5c><think>\n")
    if rig.kind == "embedded":
        assert prompt_end(rig).endswith("<think>\n")


async def test_an_earlier_thought_is_dropped_or_kept_as_the_template_says(rig: Rig) -> None:
    for template in (QWEN, DEEPSEEK):
        client = await rig.client("ok", tokenizer=template)
        said = assistant("Four.")
        said.thought = "2 + 2"
        await client.create([user("2 + 2?"), said, user("Sure?")])
        assert "2 + 2\n" not in prompt(rig.scripted) and prompt(rig.scripted).count("Four.") == 1


async def test_the_prefix_stays_the_same_through_a_qwen_tool_loop(rig: Rig) -> None:
    """Thoughts since the last question stay: each prompt begins with the one before and its answer."""
    client = await rig.client(*["ok"] * 3, tokenizer=QWEN)
    history: list[Any] = [user("1 + 2 + 3?")]
    prompts = []
    for step in range(3):
        await client.create(history, tools=TOOLS)
        prompts.append(prompt(rig.scripted))
        call = FunctionCall(f"call0000{step}", '{"a": 1}', "add")
        said = assistant([call])  # type: ignore[arg-type]
        said.thought = f"<think>\nstep {step}\n</think>"
        result = FunctionExecutionResult(content="3", name="add", call_id=call.id, is_error=False)
        history += [said, FunctionExecutionResultMessage(content=[result])]
    for step, (before, after) in enumerate(itertools.pairwise(prompts)):
        answer = f'<think>\nstep {step}\n</think>\n\n<tool_call>\n{{"name": "add"'
        assert after.startswith(before + answer)


# ---- cuts


class OneServer:
    """The two parsers of a server, without HTTP; texts that were asked about."""

    async def json(self, method: str, path: str, body: dict[str, Any]) -> Any:
        class Request:
            async def json(self) -> dict[str, Any]:
                return body

        fake = FakeSGLang.__new__(FakeSGLang)
        handler = fake._separate if path == "/separate_reasoning" else fake._parse
        return json.loads((await handler(Request())).body)  # type: ignore[arg-type]


async def read(
    text: str, cuts: list[int], parser: str, prompt: str, tools: bool
) -> tuple[str, str, Any, list[str]]:
    fmt = AnswerFormat(prompt_end=prompt, tools=[ToolDefinition(name="add")] if tools else [])
    answer = RemoteAnswer(OneServer(), GenerateRequest(input_ids=[1], format=fmt), "hermes", parser)  # type: ignore[arg-type]
    ends = sorted({min(cut, len(text)) for cut in cuts} | {len(text)})
    pieces = [text[a:b] for a, b in zip([0, *ends], ends, strict=False)]
    deltas = []
    for i, piece in enumerate(pieces):
        last = GenerateResult(finish_reason="stop", usage=Usage()) if i == len(pieces) - 1 else None
        deltas.append(await answer.read(Delta(piece, [i], last)))
    texts = [delta.text for delta in deltas]
    return "".join(d.thought for d in deltas), "".join(texts), deltas[-1].result, texts


TEXT = st.text(st.sampled_from("<>/thinktool_call \n{}x\u00e9"), max_size=30)
PLAIN = TEXT.filter(lambda text: not re.search("</?think>|<tool_call>", text))
CUTS = st.lists(st.integers(0, 90), max_size=20)
PROPERTY = settings(max_examples=150, deadline=None, derandomize=True)


@PROPERTY
@given(thought=PLAIN, rest=PLAIN, cuts=CUTS, tools=st.booleans())
def test_a_thought_that_is_cut_anywhere(thought: str, rest: str, cuts: list[int], tools: bool) -> None:
    text = f"<think>{thought}</think>{rest}"
    got = asyncio.run(read(text, cuts, "qwen3", "assistant\n", tools))
    assert got[0] == thought and got[1] == rest


@PROPERTY
@given(thought=PLAIN, rest=PLAIN, cuts=CUTS, parser=st.sampled_from(["deepseek-r1", "qwen3"]))
def test_a_thought_that_the_prompt_opened(thought: str, rest: str, cuts: list[int], parser: str) -> None:
    got = asyncio.run(read(f"{thought}</think>{rest}", cuts, parser, "assistant\n<think>\n", False))
    assert got[:2] == (thought, rest)


@pytest.mark.long
@PROPERTY
@given(rest=PLAIN.filter(lambda text: not text.lstrip().startswith("<think")), cuts=CUTS)
def test_no_thought_is_no_thought(rest: str, cuts: list[int]) -> None:
    assert asyncio.run(read(rest, cuts, "qwen3", "assistant\n", False))[:2] == ("", rest)
    opened = f"<think>{rest}"
    closed = asyncio.run(read(opened, cuts, "qwen3", "<think>\n\n</think>\n\n", False))
    assert closed[:2] == ("", opened)


@PROPERTY
@given(before=PLAIN, n=st.integers(1, 3), cuts=CUTS)
def test_calls_that_are_cut_anywhere(before: str, n: int, cuts: list[int]) -> None:
    call = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    _, text, result, texts = asyncio.run(read(before + call * n, cuts, "qwen3", "", True))
    assert [c.name for c in result.tool_calls] == ["add"] * n
    assert text.strip() == before.strip()
    assert not any("tool_call>" in shown for shown in texts)


async def test_text_is_shown_as_soon_as_it_cannot_be_a_thought() -> None:
    _, _, _, texts = await read("<b>Hello</b> there", list(range(1, 40)), "qwen3", "", False)
    assert texts[:3] == ["", "<b", ">"], "held while it may become the mark, and no longer"
    _, _, _, texts = await read("<think>x</think>Hello", list(range(1, 40)), "qwen3", "", False)
    assert [text for text in texts if text] == list("Hello")
    _, _, _, texts = await read("Hello <tool", list(range(1, 40)), "qwen3", "", True)
    assert texts == ["H", "e", "l", "l", "o", "", "", "", "", "", " <tool"]
