"""Tool calls and JSON answers that a grammar enforces: a 135M model has to get them right."""

from __future__ import annotations

import asyncio
import json
from enum import StrEnum
from typing import Annotated, Any, Literal

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_core import FunctionCall
from autogen_core.tools import FunctionTool
from pydantic import BaseModel, Field

from flashagents_autogen import FlashAgentsChatCompletionClient
from flashagents_runtime import ToolCallError
from flashagents_runtime.embedded import EmbeddedEngine
from helpers.clients import collect, user


async def set_light(room: Literal["kitchen", "bath"], level: Literal[1, 2, 3]) -> str:
    """Set the brightness of a light."""
    return f"{room} is at {level}"


async def open_door(which: Literal["front", "back"]) -> str:
    """Open a door."""
    return f"{which} door is open"


LIGHT = FunctionTool(set_light, description="Set the brightness of a light.")
DOOR = FunctionTool(open_door, description="Open a door.")
ROOM = {"max_tokens": 200}  # the longest JSON of `Report` fits


@pytest.fixture
def client(real_engine: EmbeddedEngine) -> FlashAgentsChatCompletionClient:
    return FlashAgentsChatCompletionClient(engine=real_engine, temperature=0, max_tokens=80)


def arguments(call: FunctionCall) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(call.arguments)
    return parsed


@pytest.mark.parametrize("stream", [False, True])
async def test_a_required_call_is_made_and_valid(
    client: FlashAgentsChatCompletionClient, stream: bool
) -> None:
    args: dict[str, Any] = {"tools": [LIGHT, DOOR], "tool_choice": "required"}
    extra = {"parallel_tool_calls": False}
    if stream:
        chunks, result = await collect(client, [user("Hello.")], extra_create_args=extra, **args)
        assert chunks == []
    else:
        result = await client.create([user("Hello.")], extra_create_args=extra, **args)
    assert result.finish_reason == "function_calls"
    assert isinstance(result.content, list) and len(result.content) == 1
    [call] = result.content
    tool = {"set_light": LIGHT, "open_door": DOOR}[call.name]
    tool.args_type().model_validate(arguments(call))


@pytest.mark.parametrize("tool", [LIGHT, DOOR], ids=["light", "door"])
async def test_the_one_chosen_tool_is_called(client: FlashAgentsChatCompletionClient, tool: Any) -> None:
    prompts = [f"Please {verb} now." for verb in ("sing", "wait")]
    results = await asyncio.gather(
        *(client.create([user(p)], tools=[LIGHT, DOOR], tool_choice=tool) for p in prompts)
    )
    for result in results:
        assert isinstance(result.content, list)
        assert {call.name for call in result.content} == {tool.name}
        assert len({call.id for call in result.content}) == len(result.content)
        for call in result.content:
            tool.args_type().model_validate(arguments(call))


async def test_a_call_that_is_cut_off_is_an_error(client: FlashAgentsChatCompletionClient) -> None:
    with pytest.raises(ToolCallError, match="cut it off"):
        await client.create(
            [user("Hi.")], tools=[LIGHT], tool_choice=LIGHT, extra_create_args={"max_tokens": 4}
        )


async def test_a_free_choice_ends_in_text_or_valid_calls(client: FlashAgentsChatCompletionClient) -> None:
    result = await client.create([user("Say hello.")], tools=[LIGHT, DOOR])
    assert isinstance(result.content, str | list) and result.content


async def test_an_agent_calls_its_tool(client: FlashAgentsChatCompletionClient) -> None:
    forced = FlashAgentsChatCompletionClient(
        engine=client.engine, temperature=0, max_tokens=120, tool_choice="required", parallel_tool_calls=False
    )
    agent = AssistantAgent("home", forced, tools=[DOOR], model_client_stream=True)
    result = await agent.run(task="Open the front door.")
    assert "door is open" in str(result.messages[-1].content)  # type: ignore[union-attr]


class Mood(StrEnum):
    GOOD = "good"
    BAD = "bad"


class Leaf(BaseModel):
    kind: Literal["leaf"] = "leaf"
    value: Annotated[int, Field(ge=0, le=99)]


class Branch(BaseModel):
    kind: Literal["branch"] = "branch"
    child: Leaf


class Report(BaseModel):
    mood: Mood
    stars: int = Field(3, ge=1, le=5)
    note: Literal["none", "late"] | None = None
    node: Leaf | Branch
    flags: list[bool] = Field(default=[], max_length=3)


@pytest.mark.parametrize("prompt", ["How was the trip?", "Ünïcode, please."])
async def test_structured_output_reads_back_to_the_same_text(
    client: FlashAgentsChatCompletionClient, prompt: str
) -> None:
    chunks, result = await collect(
        client, [user(prompt)], json_output=Report, extra_create_args={"max_tokens": 200}
    )
    assert result.finish_reason == "stop"
    text = "".join(chunks)
    assert text == result.content
    assert Report.model_validate_json(text).model_dump_json() == text


async def test_json_mode_gives_an_object(client: FlashAgentsChatCompletionClient) -> None:
    result = await client.create([user("Give a JSON object with a name.")], json_output=True)
    assert isinstance(result.content, str) and result.content.startswith("{")
    if result.finish_reason == "stop":
        assert isinstance(json.loads(result.content), dict)


async def test_openais_response_format(client: FlashAgentsChatCompletionClient) -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    extra = {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}
    result = await client.create([user("Well?")], extra_create_args=extra)
    assert result.content in ('{"ok":true}', '{"ok":false}')


async def test_a_json_answer_or_a_tool_call(client: FlashAgentsChatCompletionClient) -> None:
    """With both, the model is free to call, and otherwise answers in the form."""
    result = await client.create(
        [user("Report.")], tools=[DOOR], json_output=Report, extra_create_args={"max_tokens": 200}
    )
    if isinstance(result.content, str):
        Report.model_validate_json(result.content)
    else:
        assert result.content[0].name == "open_door"
