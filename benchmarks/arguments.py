"""Arguments that several commands take."""

from __future__ import annotations

import argparse
import json
from typing import Any


def engine_argument(text: str) -> tuple[str, Any]:
    """NAME=VALUE; the value as JSON, else as it is. A `type` for argparse."""
    name, equals, value = text.partition("=")
    if not name.isidentifier() or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
