"""The documentation: links lead somewhere, the site has every page, the reference names what exists."""

from __future__ import annotations

import importlib.util
import re
import unicodedata
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *DOCS.rglob("*.md"),
        *(ROOT / "examples").rglob("*.md"),
        *(ROOT / "benchmarks").rglob("*.md"),
    ]
)
#: Pages that a report writes once its rows are there.
REPORTS = "".join(path.read_text() for path in (ROOT / "benchmarks").rglob("report.py"))
SITE = yaml.safe_load((ROOT / "mkdocs.yml").read_text())


def prose(page: Path) -> str:
    """A page without its code."""
    text = re.sub(r"^(```|~~~).*?^\1", "", page.read_text(), flags=re.S | re.M)
    return re.sub(r"`[^`\n]*`", "", text)


@cache
def anchors(page: Path) -> set[str]:
    """What `#...` may name: headings, as Python-Markdown and GitHub both make them of plain words."""
    text = re.sub(r"^(```|~~~).*?^\1", "", page.read_text(), flags=re.S | re.M)
    found = set()
    for title in re.findall(r"^#+ +(.*?)\s*#*$", text, flags=re.M):
        plain = unicodedata.normalize("NFKD", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title))
        found.add(re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower()))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for target in re.findall(r"\]\(<?([^)\s>]+)>?(?: \"[^\"]*\")?\)", prose(page)):
        if re.match(r"[a-z]+:", target):
            continue  # elsewhere
        path, _, anchor = unquote(target).partition("#")
        goal = (page.parent / path).resolve() if path else page
        if not goal.exists() and f'"docs/{goal.name}"' in REPORTS:
            continue
        if (
            not goal.exists()
            or not goal.is_relative_to(ROOT)
            or (anchor and goal.suffix == ".md" and anchor not in anchors(goal))
        ):
            broken.append(target)
    assert not broken


def leaves(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    parts = nav.values() if isinstance(nav, dict) else nav
    return [leaf for part in parts for leaf in leaves(part)]


def test_the_site_has_every_page_once() -> None:
    pages = leaves(SITE["nav"])
    assert len(pages) == len(set(pages))
    there = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    assert set(pages) <= there
    patterns = SITE["not_in_nav"].split()
    left_out = {page for page in there - set(pages) if not any(fnmatch(page, p) for p in patterns)}
    assert not left_out, "mkdocs.yml has no place for these"


def test_the_site_loads_nothing_from_elsewhere() -> None:
    assert SITE["theme"]["font"] is False
    assert "extra_javascript" not in SITE and "extra_css" not in SITE


WRITTEN = ("cli",)  # by a script


@pytest.mark.parametrize(
    "page",
    [page for page in sorted((DOCS / "reference").glob("*.md")) if page.stem not in WRITTEN],
    ids=lambda page: page.stem,
)
def test_the_reference_names_what_exists(page: Path) -> None:
    names = re.findall(r"^::: ([\w.]+)$", page.read_text(), flags=re.M)
    assert names
    for name in names:
        module, _, attribute = name.rpartition(".")
        found = getattr(importlib.import_module(module), attribute, None) or importlib.import_module(name)
        assert found.__doc__, f"{name} has no docstring"


def script(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_command_lines_page_is_new() -> None:
    cli_page = script("cli_page")
    assert cli_page.PAGE.read_text() == cli_page.page(), "run python scripts/cli_page.py"


def test_the_drawings_are_new_and_shown() -> None:
    drawings = script("drawings")
    pages = "".join(page.read_text() for page in DOCS.glob("*.md"))
    for name, make in drawings.DRAWINGS.items():
        assert (drawings.FOLDER / f"{name}.svg").read_text() == make().svg(), "run scripts/drawings.py"
        assert f"](drawings/{name}.svg)" in pages


def test_each_concept_has_one_drawing() -> None:
    (concepts,) = (part["Concepts"] for part in SITE["nav"] if "Concepts" in part)
    drawings = {page: (DOCS / page).read_text().count("](drawings/") for page in leaves(concepts)}
    assert drawings == dict.fromkeys(drawings, 1) and len(drawings) >= 8


def test_troubleshooting_quotes_real_messages() -> None:
    sources = [*(ROOT / "flashagents_autogen").rglob("*.py"), *(ROOT / "runtime").rglob("*.py")]
    joined = "\n".join(path.read_text() for path in sources)
    joined = re.sub(r'"\s*\n\s*f?"', "", joined)  # a message over several lines of source
    quoted = re.findall(r"^\| `([^`]+)` \|", (DOCS / "troubleshooting.md").read_text(), flags=re.M)
    assert len(quoted) > 15
    assert [message for message in quoted if message not in joined] == []
