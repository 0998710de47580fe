"""Names of SGLang's engine arguments, known without importing SGLang.

A misspelt name is found when an engine object is built, not a quarter of a minute later in its host
process. `engine_args.txt` is written by ``python -m flashagents_runtime.engine_args``; a test holds it
against the installed SGLang.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from .errors import UnsupportedFeatureError
from .sglang_seams import SGLANG_VERSION, symbol

OURS = frozenset({"lora_groups", "lora_sharing"})
"""Arguments of this project's own, which the host process takes out (`lora_sharing.arguments`)."""

FILE = Path(__file__).with_name("engine_args.txt")


@cache
def known_names() -> frozenset[str]:
    """The fields of `sglang.srt.server_args.ServerArgs`."""
    return frozenset(FILE.read_text().split())


def check_names(names: Iterable[str]) -> None:
    """Raise UnsupportedFeatureError (also a ValueError) for a name that is none of SGLang's."""
    known = known_names() | OURS
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise UnsupportedFeatureError(f"SGLang {SGLANG_VERSION} has no engine argument {name!r}{hint}")


def installed_names() -> list[str]:
    """The names of the installed SGLang, sorted; imports it."""
    server_args_class = symbol("sglang.srt.entrypoints.engine.Engine").server_args_class
    return sorted(field.name for field in dataclasses.fields(server_args_class))


if __name__ == "__main__":
    from . import cpu_shims

    cpu_shims.install()
    FILE.write_text("\n".join(installed_names()) + "\n")

__all__ = ["OURS", "check_names", "installed_names", "known_names"]
