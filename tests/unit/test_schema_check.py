"""Schemas that are to be enforced: what no grammar can be made of is refused by tool and place."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from autogen_core.tools import FunctionTool
from pydantic import BaseModel

from flashagents_runtime import AnswerFormat, SchemaError, ToolDefinition
from flashagents_runtime.remote.answers import _calls_schema
from flashagents_runtime.schema_check import check_schema, moved
from helpers.clients import scripted, user


def with_a(value: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": value}}


BROKEN = {
    "$.type": {"type": "objekt"},
    "$.properties.a.type": with_a({"type": "strin"}),
    "$.properties.a.type[1]": with_a({"type": ["string", "nul"]}),
    "$.properties.a": with_a(5),
    "$.properties": {"type": "object", "properties": 5},
    "$.required": {**with_a({}), "required": "a"},
    "$.properties.a.enum": with_a({"enum": "red"}),
    "$.properties.a.anyOf": with_a({"anyOf": []}),
    "$.properties.a.items": with_a({"type": "array", "items": 5}),
    "$.properties.a.minItems": with_a({"type": "array", "minItems": "2"}),
    "$.properties.a.exclusiveMinimum": with_a({"type": "number", "minimum": 1, "exclusiveMinimum": True}),
    "$.properties.a.$ref": with_a({"$ref": 5}),
    "$.$defs.A.type": {**with_a({"$ref": "#/$defs/A"}), "$defs": {"A": {"type": 7}}},
}
NOWHERE = {
    "$.properties.a": with_a({"$ref": "#/$defs/Missing"}),
    "$.properties.a.items": with_a({"type": "array", "items": {"$ref": "https://example.com/colour"}}),
    "$.properties.a.anyOf[1]": with_a({"anyOf": [{"type": "null"}, {"$ref": "#colour"}]}),
    "$.$defs.A.properties.b": {
        **with_a({"$ref": "#/$defs/A"}),
        "$defs": {"A": {"properties": {"b": {"$ref": "#/$defs/B"}}}},
    },
}


@pytest.mark.parametrize("place", [*BROKEN, *NOWHERE])
async def test_a_tool_that_must_be_called_is_refused_by_name_and_place(place: str) -> None:
    for parameters in (BROKEN.get(place), NOWHERE.get(place)):
        if parameters is None:
            continue
        client, engine = scripted("ok", "ok")
        tool: Any = {"name": "look", "parameters": parameters}
        enforced: list[dict[str, Any]] = [
            {"tools": [tool], "tool_choice": "required"},
            {"tools": [{**tool, "strict": True}]},
        ]
        for how in enforced:
            with pytest.raises(SchemaError) as error:
                await client.create([user()], **how)
            assert f"the schema of tool 'look' cannot be followed: at {place} " in str(error.value)
        assert engine.requests == []
        # Where no grammar is made of it, a tool may be described in whatever form.
        assert (await client.create([user()], tools=[tool])).content == "ok"


# What is required is filled in there.
@pytest.mark.parametrize("place", sorted({*BROKEN, *NOWHERE} - {"$.required"}))
async def test_so_is_the_schema_of_an_answer(place: str) -> None:
    schema = BROKEN.get(place, NOWHERE.get(place))
    client, engine = scripted("{}")
    with pytest.raises(SchemaError, match="schema of the answer cannot be followed: at"):
        await client.create(
            [user()],
            extra_create_args={"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}},
        )
    assert engine.requests == []


async def test_with_a_json_answer_free_tools_are_part_of_the_grammar() -> None:
    client, _ = scripted("{}", "{}")
    with pytest.raises(SchemaError, match="tool 'look'"):
        await client.create([user()], tools=[{"name": "look", "parameters": {"type": 7}}], json_output=True)


class Node(BaseModel):
    name: str
    children: list[Node] = []


SOUND = {
    "annotations of any kind": {"type": "string", "title": None, "examples": {"a": 1}, "description": 5},
    "keywords nobody knows": {"type": "string", "format": 5, "x-order": ["a"]},
    "names that are keywords": with_a({"type": "object", "properties": {"$ref": {}, "type": {}}}),
    "references in data": with_a({"enum": [{"$ref": "#/nowhere"}], "default": {"$ref": 1}}),
    "a tree": Node.model_json_schema(),
    "definitions": {**with_a({"$ref": "#/definitions/A"}), "definitions": {"A": {"type": "string"}}},
    "itself": with_a({"$ref": "#"}),
    "nothing": {},
    "true": True,
}


@pytest.mark.parametrize("name", SOUND)
def test_sound_schemas_are_taken(name: str) -> None:
    check_schema(SOUND[name], "it")


class Shade(BaseModel):
    dark: bool


async def test_tools_of_functions_are_taken() -> None:
    def paint(colour: str, first: Shade, shades: list[int] | None = None) -> str:
        return colour

    client, engine = scripted("ok")
    await client.create([user()], tools=[FunctionTool(paint, "Paint.")], tool_choice="required")
    assert engine.requests[0].format is not None


@pytest.mark.parametrize("depth", [10, 60, 250, 3000])
def test_schemas_without_bottom_are_taken_or_refused(depth: int) -> None:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(depth):
        schema = with_a(schema)
    if depth < 100:
        check_schema(schema, "it")
    else:
        with pytest.raises(SchemaError, match="nested too deeply"):
            check_schema(schema, "it")


def test_references_hold_in_the_schema_that_a_server_enforces_calls_by() -> None:
    """Two tools whose parts have the same names: each keeps its own."""
    tools = [
        ToolDefinition(
            name=name,
            parameters={
                **with_a({"$ref": "#/$defs/A"}),
                "required": ["a"],
                "$defs": {"A": {"enum": [name]}, "B": {"$ref": "#"}},
            },
        )
        for name in ("one", "two")
    ]
    schema = _calls_schema(AnswerFormat(tools=[*tools, ToolDefinition(name="plain")]))
    check_schema(schema, "it")
    valid = jsonschema.Draft202012Validator(schema).is_valid
    assert valid([{"name": "one", "parameters": {"a": "one"}}, {"name": "plain", "parameters": {}}])
    assert not valid([{"name": "one", "parameters": {"a": "two"}}])
    assert not valid([{"name": "two", "parameters": {}}])


def test_only_references_are_moved() -> None:
    schema = {
        **with_a({"$ref": "#/$defs/A"}),
        "$defs": {"A": {"const": {"$ref": "#/x"}}, "$ref": {"$ref": "#"}},
    }
    assert moved(schema, "#/$defs/t") == {
        **with_a({"$ref": "#/$defs/t/$defs/A"}),
        "$defs": {"A": {"const": {"$ref": "#/x"}}, "$ref": {"$ref": "#/$defs/t"}},
    }
