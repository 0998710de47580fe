"""Which arguments are secrets, and how a text is freed of them before anyone sees it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

MASK = "**********"  # what pydantic writes for a SecretStr

_ENDINGS = (
    "api_key",
    "access_key",
    "secret_key",
    "private_key",
    "auth_token",
    "access_token",
    "hf_token",
    "password",
    "secret",
    "credentials",
)
_SHORTEST = 4  # characters; a shorter value is masked where it stands alone: it would eat ordinary text


def is_secret(name: str) -> bool:
    """Whether an argument of this name holds a secret, such as `api_key` or `ssl-keyfile-password`."""
    return name.replace("-", "_").lower().endswith(_ENDINGS)


def without_secrets(args: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments that may be written out: without keys and passwords, also those inside of values.

    A value that is the text of a JSON object, as some of SGLang's arguments are, is looked into as well.
    """
    return {name: _clean(value) for name, value in args.items() if not is_secret(name)}


def secret_values(args: Mapping[str, Any]) -> list[str]:
    """The secrets among arguments, as text, the longest first: what `masked` is to take out."""
    return sorted(set(_secrets(args)), key=len, reverse=True)


def masked(text: str, secrets: list[str]) -> str:
    """The text with every secret in it replaced by asterisks.

    A secret of less than 4 characters is replaced where it is a value of its own: in quotes, behind "=" or
    ": ", or the whole text. Inside of words it tells nobody that it is one.
    """
    for secret in secrets:
        if len(secret) >= _SHORTEST:
            text = text.replace(secret, MASK)
        elif secret:
            text = re.sub(_ALONE.replace("SECRET", re.escape(secret)), MASK, text, flags=re.MULTILINE)
    return text


_ALONE = (
    r"(?<=')SECRET(?=')|(?<=\")SECRET(?=\")|(?:(?<==)|(?<=Bearer ))SECRET(?=[\s,;)}\]]|$)"
    r"|(?:(?<=: )|^)SECRET(?=[,;)}\]]|\s*$)"
)


def _object(value: Any) -> dict[str, Any] | None:
    """A mapping, or the object that a JSON text holds; None for anything else."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            found = json.loads(value)
        except (ValueError, RecursionError):
            return None
        return found if isinstance(found, dict) else None
    return None


def _clean(value: Any) -> Any:
    inner = _object(value)
    if inner is None:
        return [_clean(entry) for entry in value] if isinstance(value, list) else value
    cleaned = without_secrets(inner)
    if cleaned == inner:
        return value
    return json.dumps(cleaned) if isinstance(value, str) else cleaned


def _secrets(args: Mapping[str, Any]) -> Iterator[str]:
    for name, value in args.items():
        inner = _object(value)
        if is_secret(name):
            if value is not None and str(value):
                yield str(value)
        elif inner is not None:
            yield from _secrets(inner)
        elif isinstance(value, list):
            for entry in value:
                yield from _secrets(_object(entry) or {})


__all__ = ["MASK", "is_secret", "masked", "secret_values", "without_secrets"]
