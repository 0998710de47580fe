"""Tools and thoughts: what goes into the prompt and the request, and what comes back to AutoGen."""

from __future__ import annotations

import json
from typing import Any

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.messages import ThoughtEvent, ToolCallExecutionEvent, ToolCallRequestEvent
from autogen_core import FunctionCall
from autogen_core.models import (
    AssistantMessage,
    FunctionExecutionResult,
    FunctionExecutionResultMessage,
    ModelInfo,
)
from autogen_core.tools import FunctionTool, ToolSchema

from flashagents_autogen import FlashAgentsChatCompletionClient
from flashagents_autogen._messages import join_thought, split_thought
from flashagents_runtime import Reply, ScriptedEngine, ToolCall, ToolCallError
from flashagents_runtime.chat_template import JinjaTemplate
from helpers import chat_templates
from helpers.clients import collect, prompt, scripted, user


async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


ADD = FunctionTool(add, description="Add two numbers.")
LOOK: ToolSchema = {"name": "look", "description": "Look around.", "strict": True}
CALL = ToolCall(name="add", arguments='{"a": 1, "b": 2}')


async def test_a_call_comes_back_as_autogens() -> None:
    client, engine = scripted(Reply(tool_calls=[CALL, CALL]))
    result = await client.create([user("1 + 2?")], tools=[ADD, LOOK])
    assert result.finish_reason == "function_calls"
    first, second = result.content
    assert isinstance(first, FunctionCall) and isinstance(second, FunctionCall)
    assert (first.name, first.arguments) == ("add", '{"a": 1, "b": 2}')
    assert first.id != second.id and first.id.isalnum() and len(first.id) == 9
    assert result.thought is None
    fmt = engine.requests[0].format
    assert fmt is not None
    assert [(t.name, t.strict) for t in fmt.tools] == [("add", False), ("look", True)]
    assert set(fmt.tools[0].parameters["properties"]) == {"a", "b"}
    assert (fmt.call_required, fmt.parallel_tool_calls, fmt.tool_parser) == (False, True, "hermes")


async def test_text_beside_a_call_is_thought() -> None:
    client, _ = scripted(*[Reply(text="Let me add. ", tool_calls=[CALL])] * 2)
    assert (await client.create([user()], tools=[ADD])).thought == "Let me add."
    chunks, result = await collect(client, [user()], tools=[ADD])
    assert "".join(chunks) == "Let me add. "
    assert isinstance(result.content, list) and result.thought == "Let me add."


async def test_tools_are_in_the_prompt_and_count() -> None:
    client, engine = scripted("No need.")
    await client.create([user()], tools=[ADD])
    assert '"name": "add"' in prompt(engine) and "<tool_call>" in prompt(engine)
    assert client.count_tokens([user()], tools=[ADD]) == len(engine.requests[0].input_ids)
    assert client.count_tokens([], tools=[ADD]) > client.count_tokens([]) == 0


async def choice_of(tool_choice: Any, extra: dict[str, Any] | None = None) -> tuple[list[str], bool, bool]:
    client, engine = scripted("ok")
    await client.create([user()], tools=[ADD, LOOK], tool_choice=tool_choice, extra_create_args=extra or {})
    fmt = engine.requests[0].format
    assert fmt is not None
    return [t.name for t in fmt.tools], fmt.call_required, '"look"' in prompt(engine)


async def test_tool_choice() -> None:
    assert await choice_of("auto") == (["add", "look"], False, True)
    assert await choice_of("required") == (["add", "look"], True, True)
    assert await choice_of("none") == ([], False, False)
    assert await choice_of(ADD) == (["add"], True, True)  # the others stay in the prompt
    assert await choice_of("auto", {"tool_choice": "required"}) == (["add", "look"], True, True)
    named = {"type": "function", "function": {"name": "look"}}
    assert await choice_of("auto", {"tool_choice": named}) == (["look"], True, True)
    assert await choice_of("required", {"tool_choice": "auto"}) == (["add", "look"], True, True)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"tools": [LOOK], "tool_choice": ADD}, "'add' is not among the tools"),
        ({"tool_choice": ADD}, "'add' is not among the tools"),
        ({"tool_choice": "required"}, "there are no tools"),
        ({"tools": [LOOK], "tool_choice": "maybe"}, "unknown tool_choice 'maybe'"),
        ({"tools": [LOOK, LOOK]}, "must be unique"),
        ({"tools": [{"name": "bad name"}]}, "invalid tool name"),
        ({"tools": [LOOK], "extra_create_args": {"tool_choice": "always"}}, "unknown tool_choice 'always'"),
    ],
)
async def test_refusals(args: dict[str, Any], message: str) -> None:
    client, engine = scripted("no")
    with pytest.raises(ValueError, match=message):
        await client.create([user()], **args)
    assert engine.requests == []


async def test_a_model_that_is_said_to_know_no_tools() -> None:
    info = ModelInfo(
        vision=False, function_calling=False, json_output=False, structured_output=False, family="unknown"
    )
    client, _ = scripted("no", model_info=info)
    with pytest.raises(ValueError, match="function calling"):
        await client.create([user()], tools=[ADD])
    assert (await client.create([user()], tools=[ADD], tool_choice="none")).content == "no"


@pytest.mark.parametrize(("reason", "message"), [("length", "cut it off"), ("stop", "JSON object")])
async def test_a_broken_call_is_a_clear_error(reason: Any, message: str) -> None:
    broken = Reply(finish_reason=reason, broken_call='<tool_call>{"name": "ad')
    client, _ = scripted(broken, broken)
    with pytest.raises(ToolCallError, match=message) as error:
        await client.create([user()], tools=[ADD])
    assert '{"name": "ad' in str(error.value)
    with pytest.raises(ToolCallError):
        await collect(client, [user()], tools=[ADD])


def history(thought: str | None = None) -> list[Any]:
    return [
        user("1 + 2?"),
        AssistantMessage(
            content=[FunctionCall("call00001", CALL.arguments, "add")], thought=thought, source="me"
        ),
        FunctionExecutionResultMessage(
            content=[FunctionExecutionResult(content="3", name="add", call_id="call00001", is_error=False)]
        ),
    ]


def qwen(engine: ScriptedEngine) -> FlashAgentsChatCompletionClient:
    class Qwen(JinjaTemplate):
        def encode(self, text: str) -> list[int]:
            return list(text.encode())

        def decode(self, ids: Any, *, skip_special_tokens: bool = True) -> str:
            return bytes(ids).decode()

    return FlashAgentsChatCompletionClient(engine=engine, tokenizer=Qwen(chat_templates.SOURCES["qwen3"]))


async def test_calls_and_results_go_back_in_the_templates_form() -> None:
    engine = ScriptedEngine(["3."])
    await qwen(engine).create(history(), tools=[ADD])
    assert prompt(engine).endswith(
        "<|im_start|>user\n1 + 2?<|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
        "<|im_end|>\n<|im_start|>user\n<tool_response>\n3\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert engine.requests[0].format.tool_parser is None  # type: ignore[union-attr]


async def test_calls_and_results_go_back_as_text_where_the_template_knows_none() -> None:
    client, engine = scripted("3.")
    await client.create(history(), tools=[ADD])
    assert '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>' in prompt(engine)
    assert '<tool_response name="add">\n3\n</tool_response>' in prompt(engine)


async def test_a_failed_tool_says_so() -> None:
    client, engine = scripted("Oh.")
    failed = FunctionExecutionResult(content="no network", name="add", call_id="call00001", is_error=True)
    await client.create([*history()[:2], FunctionExecutionResultMessage(content=[failed])], tools=[ADD])
    assert "Error: no network" in prompt(engine)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_thought_is_taken_apart_from_the_answer(stream: bool) -> None:
    client, _ = scripted(Reply(thought="\nHm, <b>.\n", text="\n\nHello!\n"))
    if stream:
        chunks, result = await collect(client, [user()])
        assert "".join(chunks) == "Hello!\n"
    else:
        result = await client.create([user()])
    assert (result.content, result.thought) == ("Hello!\n", "Hm, <b>.")
    assert result.finish_reason == "stop"


async def test_white_space_without_a_thought_is_left_alone() -> None:
    client, _ = scripted("\n\nHello!")
    assert (await client.create([user()])).content == "\n\nHello!"


async def test_a_thought_before_a_call_goes_back_into_the_template() -> None:
    engine = ScriptedEngine([Reply(thought="\nHm.\n", text="\n\nI add.", tool_calls=[CALL]), "3."])
    client = qwen(engine)
    result = await client.create([user("1 + 2?")], tools=[ADD])
    assert result.thought == "<think>\nHm.\n</think>\n\nI add."
    await client.create(history(result.thought), tools=[ADD])
    assert "<|im_start|>assistant\n<think>\nHm.\n</think>\n\nI add.\n<tool_call>" in prompt(engine)
    # The second prompt starts with the whole first one.
    assert prompt(engine, 1).startswith(prompt(engine, 0))


@pytest.mark.parametrize("thought", [None, "Hm.", "two\nlines"])
@pytest.mark.parametrize("beside", ["", "I add.", "<think> me not"])
def test_thought_and_text_are_joined_and_split_again(thought: str | None, beside: str) -> None:
    assert split_thought(join_thought(thought, beside)) == (thought, beside)


async def test_an_agent_uses_a_tool_and_reflects() -> None:
    client, engine = scripted(Reply(thought="Easy.", tool_calls=[CALL]), "It is 3.")
    agent = AssistantAgent("solver", client, tools=[add], reflect_on_tool_use=True, model_client_stream=True)
    result = await agent.run(task="1 + 2?")
    kinds = [type(m) for m in result.messages]
    assert ThoughtEvent in kinds and ToolCallRequestEvent in kinds and ToolCallExecutionEvent in kinds
    assert result.messages[-1].content == "It is 3."  # type: ignore[union-attr]
    assert '<tool_response name="add">\n3\n' in prompt(engine)


async def test_handoffs_are_tools() -> None:
    client, engine = scripted(Reply(tool_calls=[ToolCall(name="transfer_to_expert", arguments="{}")]))
    agent = AssistantAgent("helper", client, handoffs=["expert"])
    result = await agent.run(task="Hard question.")
    assert result.messages[-1].target == "expert"  # type: ignore[union-attr]
    assert json.loads(json.dumps("transfer_to_expert")) in prompt(engine)
