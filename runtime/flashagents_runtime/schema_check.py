"""JSON schemas that a grammar is to be made of, checked where their author can still be told.

A grammar is made in the engine, and says of a schema that it cannot follow no more than a line of its own
source code. Here the keywords that it reads are held against JSON Schema 2020-12 (`jsonschema`), and
references are followed as it does. Annotations (`title`, `examples`, ...) may be anything.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache, lru_cache
from typing import Any

from .errors import SchemaError

_META = "https://json-schema.org/draft/2020-12/meta/"
_READ_BY_GRAMMARS = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "$id": "urn:flashagents:schema",
    "$dynamicAnchor": "meta",
    "type": ["object", "boolean"],
    "allOf": [
        {"$ref": f"{_META}{vocabulary}"} for vocabulary in ("core", "applicator", "unevaluated", "validation")
    ],
    "properties": {"definitions": {"type": "object", "additionalProperties": {"$dynamicRef": "#meta"}}},
}
_BY_NAME = ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions")
_SMALL = 1 << 16
"""Characters of a schema that is worth remembering."""
_DATA = ("enum", "const", "default", "examples")


def check_schema(schema: Any, whose: str) -> None:
    """Refuse a schema that no grammar can be made of.

    Args:
        schema: JSON values.
        whose: what it belongs to, the beginning of the message.

    Raises:
        SchemaError: a keyword with a value that it cannot have, or a `$ref` to nowhere; names the place.
    """
    try:
        text = json.dumps(schema)
        fault = _known_fault(text) if len(text) <= _SMALL else _fault(text)
    except RecursionError:
        fault = "it is nested too deeply"
    if fault is not None:
        raise SchemaError(f"{whose} cannot be followed: {fault}")


@lru_cache(maxsize=256)
def _known_fault(text: str) -> str | None:
    return _fault(text)


def _fault(text: str) -> str | None:
    from jsonschema.exceptions import best_match

    schema = json.loads(text)
    error = best_match(_validator().iter_errors(schema))
    if error is not None:
        steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in error.absolute_path)
        return f"at ${''.join(steps)} {error.message:.300}"
    for place, ref in _references(schema, "$"):
        if not _leads_somewhere(schema, ref):
            return (
                f"at {place} $ref {ref!r:.100} leads nowhere: only parts of the same schema can be named "
                "('#/$defs/...'). Put them in, or resolve the references first (jsonref.replace_refs)"
            )
    return None


@cache
def _validator() -> Any:
    from jsonschema import Draft202012Validator

    return Draft202012Validator(_READ_BY_GRAMMARS)


def _references(schema: Any, place: str) -> Iterator[tuple[str, str]]:
    """(place, `$ref`) of all references in a schema that is otherwise sound."""
    if isinstance(schema, list):
        for i, entry in enumerate(schema):
            yield from _references(entry, f"{place}[{i}]")
    elif isinstance(schema, dict):
        if "$ref" in schema:
            yield place, schema["$ref"]
        for key, value in schema.items():
            if key in _BY_NAME and isinstance(value, dict):
                for name, entry in value.items():
                    yield from _references(entry, f"{place}.{key}.{name}")
            elif key not in _DATA:
                yield from _references(value, f"{place}.{key}")


def _leads_somewhere(schema: Any, ref: str) -> bool:
    """As xgrammar reads a reference: names between slashes, of objects alone, without escapes."""
    if ref == "#":
        return True
    if not ref.startswith("#/"):
        return False
    at = schema
    for name in ref[2:].split("/"):
        if not isinstance(at, dict) or name not in at:
            return False
        at = at[name]
    return isinstance(at, (dict, bool))


def moved(schema: Any, to: str) -> Any:
    """A schema whose references hold within another one that has it at `to`, such as "#/$defs/look"."""
    if isinstance(schema, list):
        return [moved(entry, to) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    out: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "$ref" and isinstance(value, str) and value.startswith("#"):
            out[key] = to + value[1:]
        elif key in _BY_NAME and isinstance(value, dict):
            out[key] = {name: moved(entry, to) for name, entry in value.items()}
        else:
            out[key] = value if key in _DATA else moved(value, to)
    return out


def has_references(schema: Any) -> bool:
    """Whether a schema names parts of itself."""
    return next(_references(schema, "$"), None) is not None


__all__ = ["check_schema", "has_references", "moved"]
