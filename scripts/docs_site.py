"""For the documentation site: files of the repository that pages link to are pages too.

The pages of docs/ are read in two places: in the repository, where a link to `../examples/x.py` leads to the
file, and on the site, which has only what is in docs/. Here each file that is linked, and what those link to,
becomes a page under `repository/`: Markdown as it is, notebooks as text and code, other texts as one block of
code, a folder as its README. With `extra.repository` in mkdocs.yml (the environment's FLASHAGENTS_REPOSITORY,
such as `https://host/owner/name/blob/main`) links go there instead.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
_LINK = re.compile(r"\]\((?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)")
_FENCE = re.compile(r"^(```|~~~).*?^\1", re.DOTALL | re.MULTILINE)
_MOST_BYTES = 200_000
_HOME = "repository"

_origins: dict[str, Path] = {}  # generated pages: their place in the site -> the file


def on_files(files: Files, config: Any) -> Files:
    """mkdocs: add pages for the repository's files that pages link to, and for what those link to."""
    _origins.clear()
    if _address(config):
        return files
    waiting = [Path(file.abs_src_path) for file in files.documentation_pages()]
    while waiting:
        page = waiting.pop()
        for goal in _linked(page):
            place = _place(goal)
            if place not in _origins:
                _origins[place] = goal
                files.append(File.generated(config, place, content=_content(goal)))
                if goal.suffix == ".md":
                    waiting.append(goal)
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """mkdocs: links to the repository's files lead to their pages, or to the repository's address."""
    place = page.file.src_uri
    source = _origins.get(place) or DOCS / place
    home = _address(config)

    def other(match: re.Match[str]) -> str:
        goal = _goal(source, match["target"])
        if goal is None or (goal.is_relative_to(DOCS) and source.is_relative_to(DOCS)):
            return match[0]
        anchor = match["anchor"] or ""
        if goal.is_relative_to(DOCS):
            to = goal.relative_to(DOCS).as_posix()
        elif home:
            return f"]({home}/{goal.relative_to(ROOT).as_posix()}{anchor})"
        else:
            to = _place(goal)
        return f"]({os.path.relpath(to, PurePosixPath(place).parent)}{anchor})"

    return _outside_of_code(markdown, lambda text: _LINK.sub(other, text))


def _address(config: Any) -> str:
    return str(os.environ.get("FLASHAGENTS_REPOSITORY") or config["extra"].get("repository") or "").rstrip(
        "/"
    )


def _outside_of_code(markdown: str, change: Any) -> str:
    parts, last = [], 0
    for fence in _FENCE.finditer(markdown):
        parts += [change(markdown[last : fence.start()]), fence[0]]
        last = fence.end()
    return "".join([*parts, change(markdown[last:])])


def _goal(source: Path, target: str) -> Path | None:
    """The file that a link leads to, a folder's README; None for links elsewhere or to nothing."""
    if re.match(r"[a-z]+:", target):
        return None
    goal = (source.parent / target).resolve()
    if goal.is_dir():
        goal = next(iter([*goal.glob("README.md"), *sorted(goal.glob("*.py"))]), goal)
    return goal if goal.is_file() and goal.is_relative_to(ROOT) else None


def _linked(page: Path) -> list[Path]:
    """The files outside of docs/ that a Markdown file links to."""
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    goals = (_goal(page, match["target"]) for match in _LINK.finditer(text))
    return [goal for goal in goals if goal is not None and not goal.is_relative_to(DOCS)]


def _place(goal: Path) -> str:
    path = goal.relative_to(ROOT).as_posix()
    return f"{_HOME}/{path}" if goal.suffix == ".md" else f"{_HOME}/{path}.md"


def _content(goal: Path) -> str:
    text = goal.read_text(encoding="utf-8")
    name = goal.relative_to(ROOT).as_posix()
    if goal.suffix == ".md":
        return text
    if goal.suffix == ".ipynb":
        return f"*The notebook `{name}`, without its outputs.*\n\n" + "\n\n".join(_cells(text))
    if len(text) > _MOST_BYTES:
        text = text[:_MOST_BYTES].rpartition("\n")[0] + "\n... (the rest is left out)\n"
    language = {".py": "python", ".json": "json", ".sh": "bash"}.get(goal.suffix, "text")
    return f"# {goal.name}\n\n`{name}`\n\n````{language}\n{text}````\n"


def _cells(text: str) -> list[str]:
    out = []
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        out.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
    return out
