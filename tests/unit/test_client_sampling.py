"""OpenAI-named arguments reach the engine, from the constructor and from a single call."""

from __future__ import annotations

from typing import Any

import pytest

from flashagents_autogen import FlashAgentsChatCompletionClient
from flashagents_runtime import SamplingParams, ScriptedEngine
from flashagents_runtime.chat_template import Template
from helpers.clients import prompt, scripted, user


async def sampled(call: dict[str, Any] | None = None, **client_args: Any) -> SamplingParams:
    client, engine = scripted("a", **client_args)
    await client.create([user()], extra_create_args=call or {})
    return engine.requests[0].sampling


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ({}, {}),
        ({"temperature": 0}, {"temperature": 0.0}),
        ({"top_p": 0.9, "top_k": 40, "min_p": 0.1}, {"top_p": 0.9, "top_k": 40, "min_p": 0.1}),
        ({"max_tokens": 7}, {"max_new_tokens": 7}),
        ({"max_completion_tokens": 7}, {"max_new_tokens": 7}),
        ({"min_tokens": 2}, {"min_new_tokens": 2}),
        ({"stop": "END"}, {"stop": ["END"]}),
        ({"stop": ["A", "B"], "stop_token_ids": [5]}, {"stop": ["A", "B"], "stop_token_ids": [5]}),
        ({"seed": 11}, {"sampling_seed": 11}),
        (
            {"presence_penalty": 0.5, "frequency_penalty": -0.5, "repetition_penalty": 1.1},
            {"presence_penalty": 0.5, "frequency_penalty": -0.5, "repetition_penalty": 1.1},
        ),
        ({"logit_bias": {"42": -100}}, {"logit_bias": {"42": -100.0}}),
        ({"logit_bias": {42: -100, "7": 1}}, {"logit_bias": {"42": -100.0, "7": 1.0}}),
        ({"ignore_eos": True}, {"ignore_eos": True}),
        ({"regex": "[ab]+"}, {"regex": "[ab]+"}),
        ({"n": 1, "user": "me", "stream_options": {"include_usage": True}, "tool_choice": "auto"}, {}),
    ],
)
async def test_arguments(args: dict[str, Any], expected: dict[str, Any]) -> None:
    assert await sampled(**args) == SamplingParams(**expected)
    assert await sampled(call=args) == SamplingParams(**expected)


async def test_a_call_wins_over_the_client_and_none_is_the_models_default() -> None:
    args = {"temperature": 0.5, "max_tokens": 5, "stop": "X"}
    assert await sampled({"temperature": 0.1, "stop": None}, **args) == SamplingParams(
        temperature=0.1, max_new_tokens=5
    )


async def test_the_other_fields_of_a_request() -> None:
    client, engine = scripted("a", lora="planner", cache_salt="tenant", logprobs=True, top_logprobs=3)
    await client.create([user()], extra_create_args={"priority": 4})
    request = engine.requests[0]
    assert (request.lora, request.cache_salt, request.priority) == ("planner", "tenant", 4)
    assert (request.logprobs, request.top_logprobs) == (True, 3)


async def test_template_arguments_reach_the_template() -> None:
    class Thinking(Template):
        def _render(self, messages: list[dict[str, Any]], **variables: Any) -> str:
            return f"thinking={variables.get('enable_thinking')}"

        def encode(self, text: str) -> list[int]:
            return list(text.encode())

        def decode(self, ids: Any, *, skip_special_tokens: bool = True) -> str:
            return bytes(ids).decode()

    engine = ScriptedEngine(["a"])
    client = FlashAgentsChatCompletionClient(
        engine=engine, tokenizer=Thinking(), chat_template_kwargs={"enable_thinking": False}
    )
    await client.create([user()])
    assert prompt(engine) == "thinking=False"
