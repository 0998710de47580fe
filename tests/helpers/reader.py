"""A reader of the documentation, who types its commands in a checkout of his own.

Bash runs what he types. The programs that it names are recorded instead of started, so `make` runs its
recipes, and a script its lines, without installing or measuring anything. Then each recorded call is run in
this process as the program would run it, or only as far as its own parser of arguments.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

from helpers.doc_blocks import ROOT

PROGRAMS = (
    *("python", "python3", "python3.11", "python3.12", "pip", "uv", "flashagents"),
    *("mkdocs", "pre-commit", "ruff", "pip-audit", "nvidia-smi"),
)
_RECORDER = """#!{python} -IS
import json, os, sys
stdin = sys.stdin.read() if sys.argv[1:2] == ["-"] else ""
call = {{"words": [os.path.basename(sys.argv[0]), *sys.argv[1:]], "stdin": stdin}}
with open({log!r}, "a") as log:
    log.write(json.dumps(call) + "\\n")
"""
_COPIED = ("benchmarks", "docs", "examples", "scripts")  # may be written to; the rest is linked
_LINKED = ("flashagents_autogen", "kernels", "requirements", "runtime", "tests")


@dataclass(frozen=True)
class Call:
    """A program that was to be started: its name and arguments, and what it was given on standard input."""

    words: tuple[str, ...]
    stdin: str = ""

    def __str__(self) -> str:
        return " ".join(self.words)


class Parsed(BaseException):
    """The arguments were understood; no Exception, so that no program catches it."""


class Reader:
    """See the module.

    Args:
        folder: an empty one; the checkout is made in it.
    """

    def __init__(self, folder: Path) -> None:
        self.checkout = folder / "checkout"
        self._log = folder / "calls"
        for name in _COPIED:
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, self.checkout / name, ignore=ignored)
        for path in [*(ROOT / name for name in _LINKED), *(p for p in ROOT.iterdir() if p.is_file())]:
            (self.checkout / path.name).symlink_to(path)
        recorder = _RECORDER.format(python=sys.executable, log=str(self._log))
        for bin_folder in (folder / "bin", self.checkout / ".venv" / "bin"):
            bin_folder.mkdir(parents=True)
            for name in PROGRAMS:
                program = bin_folder / name
                program.write_text(recorder)
                program.chmod(0o755)
        self._environment = {
            "PATH": f"{folder / 'bin'}:/usr/bin:/bin",
            "PYTHON": "python3",  # of the Makefile
            "PARTS": "1",  # of benchmarks/role_quality/gpu.sh
            "HOME": str(folder),
            "LC_ALL": "C.UTF-8",
        }

    def type(self, commands: Sequence[str]) -> tuple[list[Call], dict[str, str]]:
        """Let bash run these lines; the calls that they made, and the variables that they exported."""
        self._log.write_text("")
        variables = self._log.with_suffix(".env")
        script = "\n".join(["set -e", *commands, f"env -0 > {variables}"])
        done = subprocess.run(
            ["/bin/bash", "-c", script],
            cwd=self.checkout,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
        calls = [json.loads(line) for line in self._log.read_text().splitlines()]
        exported = dict(pair.split("=", 1) for pair in variables.read_text().split("\0") if pair)
        new = {
            k: v for k, v in exported.items() if k not in {*self._environment, "PWD", "SHLVL", "_", "OLDPWD"}
        }
        return [Call(tuple(call["words"]), call["stdin"]) for call in calls], new

    def python(self, call: Call, *, parse_only: bool = False, more: Sequence[str] = ()) -> None:
        """Run `python FILE ...` or `python -m MODULE ...` as the interpreter would, in this process.

        Args:
            call: what to run.
            parse_only: no further than to where the program has understood its arguments.
            more: further arguments.
        """
        _, first, *rest = call.words
        if first == "-":
            compile(call.stdin, "stdin", "exec")
            return
        arguments = [*(rest[1:] if first == "-m" else rest), *more]
        name = rest[0] if first == "-m" else str((self.checkout / first).resolve())
        start = self.checkout if first == "-m" else Path(name).parent
        with self._interpreter([name, *arguments], start), _parser(stop=parse_only):
            try:
                if first == "-m":
                    runpy.run_module(name, run_name="__main__", alter_sys=True)
                else:
                    runpy.run_path(name, run_name="__main__")
            except Parsed:
                pass
            except SystemExit as end:
                assert not end.code, f"{call}: exit status {end.code}"

    @contextmanager
    def _interpreter(self, argv: list[str], start: Path) -> Iterator[None]:
        """As in a new process: none of the repository's scripts is imported. Nothing of it stays."""
        here = os.getcwd()
        kept = {name: module for name, module in list(sys.modules.items()) if self._is_a_script(module)}
        for name in kept:
            del sys.modules[name]
        try:
            os.chdir(self.checkout)
            path = [str(start), str(self.checkout), *sys.path]
            with patch.object(sys, "argv", argv), patch.object(sys, "path", path), patch.dict(os.environ):
                yield
        finally:
            os.chdir(here)
            for name in [name for name, module in list(sys.modules.items()) if self._is_a_script(module)]:
                del sys.modules[name]
            sys.modules.update(kept)

    def _is_a_script(self, module: ModuleType) -> bool:
        known = vars(module)  # to ask some libraries' modules for what they lack imports much
        places = [known.get("__file__") or "", *(known.get("__path__") or ())]
        folders = [
            str(root / name)
            for root in (ROOT, self.checkout)
            for name in ("benchmarks", "examples", "scripts")
        ]
        return any(str(place).startswith(folder) for place in places for folder in folders)


@contextmanager
def _parser(*, stop: bool) -> Iterator[None]:
    parse, parse_known = argparse.ArgumentParser.parse_args, argparse.ArgumentParser.parse_known_args

    def parse_and_stop(self: argparse.ArgumentParser, *args: Any, **kwargs: Any) -> Any:
        with patch.object(argparse.ArgumentParser, "parse_known_args", parse_known):
            parse(self, *args, **kwargs)
        raise Parsed

    def parse_known_and_stop(self: argparse.ArgumentParser, *args: Any, **kwargs: Any) -> Any:
        parse_known(self, *args, **kwargs)
        raise Parsed

    if stop:
        ours = {"parse_args": parse_and_stop, "parse_known_args": parse_known_and_stop}
        with patch.multiple(argparse.ArgumentParser, **ours):
            yield
    else:
        yield


__all__ = ["Call", "Reader"]
