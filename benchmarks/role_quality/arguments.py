"""What the programs of this folder are asked alike."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from .cells import tasks


def parser(doc: str | None, *, model: bool = True) -> argparse.ArgumentParser:
    """A parser with `--work`, `--tasks` and `--seeds`, and `--model` where one is loaded."""
    form = argparse.RawDescriptionHelpFormatter
    found = argparse.ArgumentParser(description=doc, formatter_class=form)
    found.add_argument("--work", type=Path, required=True, help="where prepare.py has put the data")
    if model:
        found.add_argument("--model", help="left out: the default small model")
    found.add_argument("--tasks", type=_names, default=(), help="left out: all that are prepared")
    found.add_argument("--seeds", type=_numbers, default="0,1,2", help="of the adapters (%(default)s)")
    return found


def parsed(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> argparse.Namespace:
    """The arguments; `tasks` are those that were named, or all that are prepared."""
    args = parser.parse_args(argv)
    args.tasks = args.tasks or tasks(args.work)
    return args


def _names(text: str) -> list[str]:
    return text.split(",")


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


__all__ = ["parsed", "parser"]
