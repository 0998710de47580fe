"""Write docs/reference/cli.md, the page of the command line, from the commands themselves.

python scripts/cli_page.py
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from flashagents_runtime.cli import app

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "cli.md"

HEAD = """# The command line

Written by `python scripts/cli_page.py`. Errors are one line on standard error and exit status 1 (2 where
the command line itself is wrong); Ctrl-C is 130. Progress goes to standard error: bars on a terminal, a
line a stage elsewhere.
"""


def commands(group: Any, name: str) -> Iterator[tuple[str, Any]]:
    """All commands below a group, by their whole names."""
    for word, command in sorted(group.commands.items()):
        if hasattr(command, "commands"):
            yield from commands(command, f"{name} {word}")
        else:
            yield f"{name} {word}", command


def page() -> str:
    """The page's text."""
    parts = [HEAD]
    for name, command in commands(typer.main.get_command(app), "flashagents"):
        rows = []
        for parameter in command.params:
            argument = parameter.param_type_name == "argument"
            shown = parameter.name.upper() if argument else ", ".join(parameter.opts)
            default = parameter.default
            after = "" if default in (None, False, "") or callable(default) else f" (default: {default})"
            rows.append(f"| `{shown}` | {parameter.help or ''}{after} |")
        parts.append(f"## {name}\n\n{command.help.strip()}\n")
        if command.epilog:
            parts.append(f"{command.epilog}\n")
        if rows:
            parts.append("\n".join(["| | |", "|---|---|", *rows]) + "\n")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE.name}")
