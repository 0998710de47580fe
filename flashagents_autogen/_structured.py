"""`json_output` and tool choices: what the answer has to look like."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from autogen_core.tools import Tool
from pydantic import BaseModel

from flashagents_runtime.chat import ToolDefinition

_ANY_OBJECT: dict[str, Any] = {"type": "object"}


def json_schema(
    json_output: bool | type[BaseModel] | None, response_format: Mapping[str, Any] | None
) -> str | None:
    """The JSON schema that the answer follows, as text; None for a free answer.

    Args:
        json_output: AutoGen's argument: a pydantic class, True for any JSON object, False for free text.
        response_format: OpenAI's form of the same, used where `json_output` is None.

    Raises:
        ValueError: a `response_format` of an unknown form.
    """
    if isinstance(json_output, type):
        return json.dumps(complete_schema(json_output.model_json_schema()))
    if json_output:
        return json.dumps(_ANY_OBJECT)
    if json_output is False or not response_format or response_format.get("type") == "text":
        return None
    if response_format.get("type") == "json_object":
        return json.dumps(_ANY_OBJECT)
    inner = response_format.get("json_schema")
    if response_format.get("type") == "json_schema" and isinstance(inner, Mapping):
        try:
            return json.dumps(complete_schema(inner.get("schema", inner)))
        except (TypeError, ValueError, RecursionError) as e:
            raise ValueError(f"the schema of response_format is no JSON: {e}") from None
    raise ValueError(
        f"unknown response_format {dict(response_format)!r:.200}: its type is one of 'text', 'json_object', "
        "'json_schema'"
    )


def complete_schema(schema: Any) -> Any:
    """The schema with every field of every object required and no others allowed.

    The answer then holds all fields, in the order of the class, so that reading it into the class and
    writing it out again gives the same text: the next agent's prompt is what was streamed.
    """
    if isinstance(schema, list):
        return [complete_schema(entry) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    out: dict[str, Any] = {}
    for key, value in schema.items():
        if key in ("properties", "$defs", "definitions") and isinstance(value, dict):
            out[key] = {name: complete_schema(entry) for name, entry in value.items()}
        elif key in ("enum", "const", "required"):
            out[key] = value
        elif key != "default":
            out[key] = complete_schema(value)
    if isinstance(out.get("properties"), dict):
        out["required"] = list(out["properties"])
        out.setdefault("additionalProperties", False)
    return out


def check_forms(
    tool_choice: str | Mapping[str, Any] | None, response_format: Mapping[str, Any] | None
) -> None:
    """ValueError where one of OpenAI's two arguments is of an unknown form, whatever a call adds to it."""
    _choice("auto", tool_choice)
    json_schema(None, response_format)


def chosen_tools(
    tools: Sequence[ToolDefinition],
    tool_choice: Tool | Literal["auto", "required", "none"],
    extra: str | Mapping[str, Any] | None,
) -> tuple[list[ToolDefinition], bool]:
    """The tools that may be called now, and whether one has to be.

    Args:
        tools: all tools of the call.
        tool_choice: AutoGen's argument.
        extra: OpenAI's argument of the same name, used where AutoGen's is "auto".

    Raises:
        ValueError: the chosen tool is not among the tools, or there is none to choose.
    """
    choice, name = _choice(tool_choice, extra)
    if choice == "none":
        return [], False
    if choice == "auto":
        return list(tools), False
    if choice == "required":
        if not tools:
            raise ValueError("tool_choice is 'required', but there are no tools")
        return list(tools), True
    named = [tool for tool in tools if tool.name == name]
    if not named:
        raise ValueError(f"tool_choice {name!r} is not among the tools: {[t.name for t in tools]}")
    return named, True


def _choice(tool_choice: Any, extra: str | Mapping[str, Any] | None) -> tuple[str, str | None]:
    """(auto, required, none or tool; the tool's name)."""
    if isinstance(tool_choice, Tool):
        return "tool", tool_choice.schema["name"]
    value = extra if tool_choice == "auto" and extra is not None else tool_choice
    if isinstance(value, Mapping) and isinstance(value.get("function"), Mapping):
        return "tool", str(value["function"].get("name"))
    if value not in ("auto", "required", "none"):
        raise ValueError(f"unknown tool_choice {value!r}: 'auto', 'required', 'none', or one tool")
    return str(value), None


__all__ = ["check_forms", "chosen_tools", "complete_schema", "json_schema"]
