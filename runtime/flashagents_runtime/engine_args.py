"""SGLang's engine arguments, their names and simple types, known without importing SGLang.

A misspelt name or a text where a number belongs is found when an engine object is built, not minutes later in
its host process. `engine_args.txt` is written by ``python -m flashagents_runtime.engine_args``; a test holds
it against the installed SGLang.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from .errors import UnsupportedFeatureError
from .sglang_seams import SGLANG_VERSION, symbol

OURS = frozenset({"lora_groups", "lora_sharing"})
"""Arguments of this project's own, which the host process takes out (`lora_sharing.arguments`)."""

FILE = Path(__file__).with_name("engine_args.txt")
FLAGS_FILE = Path(__file__).with_name("engine_flags.txt")
"""What SGLang's command line takes beyond a flag for each field: other names, old names."""

_TYPES: dict[str, tuple[type, ...]] = {"bool": (bool,), "float": (float, int), "int": (int,), "str": (str,)}
# As SGLang writes them: `A[Optional[int], ...]`. Other types are left to SGLang.
_SIMPLE = re.compile(r"A\[(?:Optional\[)?(bool|float|int|str)[\],]")

_FLAG = re.compile(r"--|-[a-zA-Z]")  # anything else is a value: "-1", "1", "{...}"


@cache
def known() -> Mapping[str, str | None]:
    """The fields of `sglang.srt.server_args.ServerArgs`, each with its type where that is a simple one."""
    found: dict[str, str | None] = {}
    for line in FILE.read_text().splitlines():
        name, _, kind = line.partition(" ")
        found[name] = kind or None
    return found


def check_arguments(arguments: Mapping[str, Any]) -> None:
    """Refuse what SGLang cannot take.

    Raises:
        UnsupportedFeatureError: a name that is none of SGLang's (also a ValueError).
        TypeError: a value of another type than the argument's; None and paths, where a text is asked for,
            are left alone.
    """
    names = {*known(), *OURS}
    for name, value in arguments.items():
        if name not in names:
            near = difflib.get_close_matches(name, names, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise UnsupportedFeatureError(f"SGLang {SGLANG_VERSION} has no engine argument {name!r}{hint}")
        kind = known().get(name)
        if kind is None or value is None or isinstance(value, Path):
            continue
        if not isinstance(value, _TYPES[kind]) or (isinstance(value, bool) and kind != "bool"):
            raise TypeError(f"engine argument {name!r} takes a value of type {kind}, not {value!r:.80}")


def check_flags(argv: Sequence[str], ours: Sequence[str] = ()) -> None:
    """Refuse a command line that SGLang's launcher cannot take: it would answer with hundreds of lines.

    Args:
        argv: the arguments; a flag may be shortened as long as it is the beginning of one.
        ours: flags that are taken out before, to be named where one of them was misspelt.

    Raises:
        UnsupportedFeatureError: a flag that is none of SGLang's, or a word before any (also a ValueError).
    """
    if argv and not argv[0].startswith("-"):
        raise UnsupportedFeatureError(f"{argv[0]!r:.80} belongs to no flag; give a model as --model")
    names = [*known(), *OURS, *FLAGS_FILE.read_text().split()]
    flags = {"--" + name.replace("_", "-") for name in names}
    flags |= {flag.replace("--", "--no-", 1) for flag in flags} | {"--help"}
    for arg in argv:
        flag = arg.partition("=")[0]
        if not _FLAG.match(arg) or arg == "-h" or (len(flag) > 2 and any(f.startswith(flag) for f in flags)):
            continue
        near = difflib.get_close_matches(flag, [*ours, *sorted(flags)], 1)
        hint = f"; did you mean {near[0]}?" if near else "; `flashagents serve --help` names ours"
        raise UnsupportedFeatureError(f"SGLang {SGLANG_VERSION}'s launcher has no argument {flag!r}{hint}")


def installed_lines() -> list[str]:
    """What `FILE` should hold for the installed SGLang, sorted; imports it."""
    server_args_class = symbol("sglang.srt.entrypoints.engine.Engine").server_args_class
    lines = []
    for field in dataclasses.fields(server_args_class):
        simple = _SIMPLE.match(str(field.type))
        lines.append(f"{field.name} {simple[1]}" if simple else field.name)
    return sorted(lines)


if __name__ == "__main__":
    from . import cpu_shims

    cpu_shims.install()
    FILE.write_text("\n".join(installed_lines()) + "\n")

__all__ = ["OURS", "check_arguments", "check_flags", "installed_lines", "known"]
