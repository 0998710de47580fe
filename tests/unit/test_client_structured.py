"""JSON answers: the grammar that is asked for."""

from __future__ import annotations

import json
from typing import Any, Literal

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.messages import StructuredMessage
from autogen_core.models import ModelInfo
from autogen_core.tools import ToolSchema
from pydantic import BaseModel

from flashagents_autogen._structured import complete_schema
from flashagents_runtime import GenerateRequest, Reply, ToolCall
from helpers.clients import collect, scripted, user


class Node(BaseModel):
    default: int = 1
    children: list[Node] = []
    kind: Literal["a", "b"] = "a"
    note: str | None = None


async def request_of(**args: Any) -> GenerateRequest:
    client, engine = scripted("{}")
    await client.create([user()], **args)
    return engine.requests[0]


async def schema_of(**args: Any) -> Any:
    request = await request_of(**args)
    assert request.format is not None and request.format.compact_json
    return json.loads(request.sampling.json_schema or "null")


async def test_a_class_gives_its_schema() -> None:
    assert (await schema_of(json_output=Node))["$ref"] == "#/$defs/Node"


async def test_true_is_any_object_and_false_is_free_text() -> None:
    assert await schema_of(json_output=True) == {"type": "object"}
    for free in (None, False):
        request = await request_of(json_output=free)
        assert request.sampling.json_schema is None


async def test_openais_response_format() -> None:
    async def response_format(value: dict[str, Any]) -> Any:
        return await schema_of(extra_create_args={"response_format": value})

    assert await response_format({"type": "json_object"}) == {"type": "object"}
    inner = {"type": "object", "properties": {"x": {"type": "integer", "default": 3}}}
    expected = {
        "type": "object",
        "properties": {"x": {"type": "integer"}},
        "required": ["x"],
        "additionalProperties": False,
    }
    assert (
        await response_format({"type": "json_schema", "json_schema": {"name": "n", "schema": inner}})
        == expected
    )
    free = await request_of(extra_create_args={"response_format": {"type": "text"}})
    assert free.sampling.json_schema is None
    with pytest.raises(ValueError, match="unknown response_format"):
        await response_format({"type": "xml"})


async def test_autogens_argument_wins_over_the_extra() -> None:
    extra = {"response_format": {"type": "json_object"}}
    assert "$defs" in await schema_of(json_output=Node, extra_create_args=extra)


def test_every_field_is_required_in_the_order_of_the_class() -> None:
    node = complete_schema(Node.model_json_schema())["$defs"]["Node"]
    assert list(node["properties"]) == node["required"] == ["default", "children", "kind", "note"]
    assert node["additionalProperties"] is False
    assert "default" not in node["properties"]["kind"]  # a default, unlike the field of that name
    assert node["properties"]["kind"]["enum"] == ["a", "b"]


def test_the_callers_schema_is_not_changed() -> None:
    schema = Node.model_json_schema()
    before = json.dumps(schema)
    complete_schema(schema)
    assert json.dumps(schema) == before


async def test_tools_and_json_go_together() -> None:
    tool: ToolSchema = {"name": "look"}
    request = await request_of(json_output=Node, tools=[tool], tool_choice="required")
    assert request.format is not None and request.format.call_required
    assert request.sampling.json_schema is not None  # which of the two holds is the engine's to arrange


async def test_several_grammars_are_refused() -> None:
    with pytest.raises(ValueError, match="json_schema and regex"):
        await request_of(json_output=True, extra_create_args={"regex": "a"})


async def test_a_model_that_is_said_not_to_know_json() -> None:
    info = ModelInfo(
        vision=False, function_calling=True, json_output=False, structured_output=False, family="unknown"
    )
    client, _ = scripted("a", model_info=info)
    for json_output in (True, Node):
        with pytest.raises(ValueError, match="does not support"):
            await client.create([user()], json_output=json_output)


async def test_an_agent_gives_a_structured_message() -> None:
    client, _ = scripted('{"default":2,"children":[],"kind":"b","note":null}')
    agent = AssistantAgent("writer", client, output_content_type=Node)
    result = await agent.run(task="Go.")
    final = result.messages[-1]
    assert isinstance(final, StructuredMessage) and final.content.kind == "b"


async def test_two_descriptions_of_an_answer() -> None:
    """AutoGen's argument wins where the extra can give way; two classes, or two names, are refused."""

    async def both(json_output: Any, **extra: Any) -> Any:
        return await schema_of(json_output=json_output, extra_create_args=extra)

    assert await both(True, response_format="json_object") == {"type": "object"}
    assert await both(True, response_format="text") == {"type": "object"}
    for word in ("text", "json_object"):
        request = await request_of(json_output=False, extra_create_args={"response_format": word})
        assert request.sampling.json_schema is None
    assert "$defs" in await both(Node, response_format={"type": "json_object"})
    for extra in ({"response_format": Node}, {"format": Node.model_json_schema()}):
        with pytest.raises(ValueError, match="use json_output"):
            await both(Node, **extra)
    with pytest.raises(ValueError, match="two names for one thing"):
        await both(None, response_format="text", format="json")


async def test_ollamas_name_for_a_format() -> None:
    assert await schema_of(extra_create_args={"format": "json"}) == {"type": "object"}
    assert "$defs" in await schema_of(extra_create_args={"format": Node.model_json_schema()})
    with pytest.raises(ValueError, match="format"):
        await request_of(extra_create_args={"format": "xml"})


async def test_json_beside_a_call_is_its_thought() -> None:
    said = '{"default":2,"children":[],"kind":"b","note":null}'
    call = ToolCall(name="look", arguments="{}")
    client, _ = scripted(*[Reply(text=said, tool_calls=[call])] * 2)
    tools: list[ToolSchema] = [{"name": "look"}]
    result = await client.create([user()], json_output=Node, tools=tools)
    _, streamed = await collect(client, [user()], json_output=Node, tools=tools)
    for got in (result, streamed):
        assert got.finish_reason == "function_calls" and len(got.content) == 1
        assert Node.model_validate_json(got.thought or "").kind == "b"
