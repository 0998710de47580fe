"""The code blocks of the documentation, and the commands that its pages name."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("docs", "examples", "benchmarks", "tests", ".ci", "scripts")

_FENCE = re.compile(
    r"^(?P<indent> *)(?P<fence>```+|~~~+)(?P<language>[^\n]*)\n(?P<text>.*?)^(?P=indent)(?P=fence) *$",
    re.MULTILINE | re.DOTALL,
)
_SPAN = re.compile(r"(?<!`)`(?!`)([^`]+)`(?!`)")
_PROGRAM = re.compile(
    r"(?:[A-Z_]+=\S+ )*(?:(?:\.venv/bin/)?(?:python3?|flashagents|pip|uv)|make|[\w./]+\.(?:py|sh)) [^|]+"
)


@dataclass(frozen=True)
class Block:
    """A fenced block: where its text begins, the language that its fence names ("" for none), the text."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def commands(self) -> list[str]:
        """What a console block has after its prompts, continued lines in one, comments still there."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return [line[2:] for line in lines if line.startswith("$ ")]


def pages() -> list[Path]:
    """All Markdown of the repository."""
    found = [*ROOT.glob("*.md"), *(path for name in FOLDERS for path in (ROOT / name).rglob("*.md"))]
    return sorted(found)


def texts() -> Iterator[tuple[str, str]]:
    """Each page's name and text; of a notebook its Markdown cells."""
    for page in pages():
        yield page.relative_to(ROOT).as_posix(), page.read_text(encoding="utf-8")
    for notebook in sorted((ROOT / "examples").rglob("*.ipynb")):
        cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        prose = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]
        yield notebook.relative_to(ROOT).as_posix(), "\n\n".join(prose)


def blocks() -> list[Block]:
    """All fenced blocks."""
    return [
        Block(name, text.count("\n", 0, match.start()) + 2, match["language"].strip(), match["text"])
        for name, text in texts()
        for match in _FENCE.finditer(text)
    ]


def inline_commands() -> list[str]:
    """Commands with arguments in running text and tables, each once."""
    found = []
    for _, text in texts():
        for span in _SPAN.findall(_FENCE.sub("", text)):
            command = " ".join(span.split())
            if _PROGRAM.fullmatch(command):
                found.append(command)
    return sorted(set(found))


__all__ = ["ROOT", "Block", "blocks", "inline_commands", "pages"]
