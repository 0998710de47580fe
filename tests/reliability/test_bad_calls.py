"""Client arguments, messages, tools and configs of any kind: an answer, or a typed error."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from autogen_core import FunctionCall
from autogen_core.models import (
    AssistantMessage,
    CreateResult,
    FunctionExecutionResult,
    FunctionExecutionResultMessage,
    SystemMessage,
    UserMessage,
)
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from flashagents_autogen import FlashAgentsChatCompletionClient
from flashagents_autogen._sampling import CreateArgs
from flashagents_runtime import Delta, FlashAgentsError, GenerateRequest, ScriptedEngine, wire
from flashagents_runtime.chat_template import JinjaTemplate
from flashagents_runtime.chat_tokenizer import ByteChatTokenizer
from flashagents_runtime.host.outputs import request_fields
from helpers.clients import user

ENOUGH = settings(
    max_examples=200, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
TYPED = (ValueError, TypeError, FlashAgentsError)
"""What the client documents; an AttributeError, KeyError or AssertionError would be an accident."""

texts = st.one_of(
    st.text(max_size=12),
    st.sampled_from(["", " ", "\0", "\ud800", "<|im_end|>", "{{ x }}", "a" * 5000, "é́", "user"]),
)
values = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), texts, st.binary(max_size=4)
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=5,
)


class Surrogates(ByteChatTokenizer):
    """Bytes for any text: a lone surrogate cannot be UTF-8, and real tokenizers replace it."""

    def encode(self, text: str) -> list[int]:
        return list(text.encode(errors="replace"))


class Sent(ScriptedEngine):
    """Each request is written as it would be for an engine's process and for a server."""

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        wire.encode(wire.Generate(request))
        json.dumps(request_fields(request), allow_nan=False).encode()
        async for delta in super().generate(request):
            yield delta


def client(**args: Any) -> FlashAgentsChatCompletionClient:
    engine = Sent(itertools.repeat("ok"))
    return FlashAgentsChatCompletionClient(engine=engine, tokenizer=Surrogates(), **args)


def call(messages: Any, **args: Any) -> CreateResult | Exception:
    """The answer, or one of the documented errors, after which the client still works."""
    it = client()

    async def work() -> CreateResult:
        try:
            return await it.create(messages, **args)
        finally:
            assert (await it.engine.state()).running == 0

    try:
        result: CreateResult | Exception = asyncio.run(work())
    except TYPED as e:
        assert str(e), "an error without words"
        result = e
    assert asyncio.run(it.create([user()])).content == "ok"
    return result


@ENOUGH
@example(args={"tool_choice": {}})  # found by `make fuzz`
@given(
    args=st.dictionaries(st.one_of(st.sampled_from(list(CreateArgs.model_fields)), texts), values, max_size=3)
)
def test_create_args_of_any_kind(args: dict[str, Any]) -> None:
    call([user()], extra_create_args=args)
    try:
        made = client(**args)
    except TYPED as e:
        assert str(e)
    else:
        try:
            assert asyncio.run(made.create([user()])).content
        except TYPED as e:  # a tool choice is looked at with its call's tools
            assert str(e)


known = st.one_of(
    st.builds(lambda c: SystemMessage(content=c), texts),
    st.builds(lambda c, s: UserMessage(content=c, source=s), texts, texts),
    st.builds(lambda c, s: UserMessage(content=[c, c], source=s), texts, st.just("user")),
    st.builds(lambda c, s, t: AssistantMessage(content=c, source=s, thought=t), texts, texts, texts),
    st.builds(
        lambda i, n, a: AssistantMessage(content=[FunctionCall(id=i, name=n, arguments=a)], source="a"),
        texts,
        texts,
        texts,
    ),
    st.builds(
        lambda i, c, n: FunctionExecutionResultMessage(
            content=[FunctionExecutionResult(call_id=i, content=c, name=n, is_error=False)]
        ),
        texts,
        texts,
        texts,
    ),
)


@ENOUGH
@given(messages=st.one_of(values, st.lists(st.one_of(values, known), max_size=4)))
def test_messages_of_any_kind(messages: Any) -> None:
    result = call(messages)
    assert messages or isinstance(result, Exception)


@ENOUGH
@given(messages=st.lists(known, min_size=1, max_size=5))
def test_conversations_in_any_order_are_answered_or_refused_by_type(messages: list[Any]) -> None:
    before = [message.model_dump() for message in messages]
    call(messages)
    assert [message.model_dump() for message in messages] == before, "the caller's messages were changed"


KEYWORDS = ("type", "properties", "required", "$defs")

schemas = st.one_of(
    values,
    st.fixed_dictionaries(
        {},
        optional={
            "name": st.one_of(texts, st.just("look"), values),
            "description": values,
            "strict": values,
            "parameters": st.one_of(
                values,
                st.fixed_dictionaries({}, optional=dict.fromkeys(KEYWORDS, values)),
            ),
        },
    ),
)


@ENOUGH
@given(
    tools=st.one_of(values, st.lists(schemas, max_size=3)),
    choice=st.one_of(st.sampled_from(["auto", "required", "none"]), values),
)
def test_tools_of_any_kind(tools: Any, choice: Any) -> None:
    call([user()], tools=tools, tool_choice=choice)


@ENOUGH
@given(output=values, response_format=values)
def test_json_output_of_any_kind(output: Any, response_format: Any) -> None:
    call([user()], json_output=output, extra_create_args={"response_format": response_format})


FIELDS = (
    "model",
    "engine_args",
    "engine_url",
    "api_key",
    "model_info",
    "lora",
    "cache_salt",
    "temperature",
    "stop",
)


@ENOUGH
@given(
    config=st.one_of(values, st.dictionaries(st.one_of(st.sampled_from(FIELDS), texts), values, max_size=3))
)
def test_configs_of_any_kind(config: Any) -> None:
    provider = "flashagents_autogen.FlashAgentsChatCompletionClient"
    try:
        FlashAgentsChatCompletionClient.load_component({"provider": provider, "config": config})
    except TYPED as e:
        assert str(e)


@ENOUGH
@given(template=st.one_of(texts, st.text(alphabet="{}%# aimsgefor[]'|.-", max_size=40)), content=texts)
def test_chat_templates_of_any_kind(template: str, content: str) -> None:
    from flashagents_runtime import TemplateError
    from flashagents_runtime.chat import ChatMessage

    try:
        text = JinjaTemplate(template).render([ChatMessage(role="user", content=content)])
    except TemplateError as e:
        assert str(e)
    else:
        assert isinstance(text, str)


@pytest.mark.parametrize("depth", [100, 5000])
def test_schemas_without_bottom(depth: int) -> None:
    inner: dict[str, Any] = {"type": "object"}
    for _ in range(depth):
        inner = {"type": "object", "properties": {"a": inner}}
    call([user()], tools=[{"name": "deep", "parameters": inner}])
    cyclic: dict[str, Any] = {"type": "object"}
    cyclic["properties"] = {"self": cyclic}
    call([user()], extra_create_args={"response_format": {"type": "json_schema", "json_schema": inner}})
    call([user()], tools=[{"name": "cycle", "parameters": cyclic}])
