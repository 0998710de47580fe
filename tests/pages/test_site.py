"""The documentation site: it builds without a warning, and every link and picture of it is there."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType, SimpleNamespace
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "FLASHAGENTS_REPOSITORY": ""}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


class Page(HTMLParser):
    """What a page links to, what it loads, and what it can be entered at."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if found.get("id"):
            self.ids.add(str(found["id"]))
        if tag == "a" and found.get("href"):
            self.links.append(str(found["href"]))
        elif tag in ("img", "script") and found.get("src"):
            self.loads.append(str(found["src"]))
        elif tag == "link" and found.get("rel") in ("stylesheet", "icon"):
            self.loads.append(str(found["href"]))


def test_links_and_pictures_are_there(site: Path) -> None:
    pages = {path: Page(path.read_text()) for path in site.rglob("*.html") if path.name != "404.html"}
    assert len(pages) > 40
    broken = []
    for path, page in pages.items():
        for target in [*page.links, *page.loads]:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                if target in page.loads:
                    broken.append(f"{path.name} loads {target}")
                continue
            goal = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            goal = goal / "index.html" if goal.is_dir() else goal
            anchor = unquote(parts.fragment)
            if not goal.exists() or (anchor and goal in pages and anchor not in pages[goal].ids):
                broken.append(f"{path.relative_to(site)} -> {target}")
    assert broken == []


def test_the_repositorys_files_are_pages(site: Path) -> None:
    notebook = (site / "repository/examples/notebooks/04_role_loras.ipynb.html").read_text()
    assert "Role LoRAs on one cache" in notebook and "lora_sharing" in notebook
    readme = (site / "repository/index.html").read_text()
    assert "performance-handoff.svg" in readme
    assert "<code" in (site / "repository/runtime/flashagents_runtime/remote/marks.py.html").read_text()


@pytest.fixture
def hook() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_site", ROOT / "scripts" / "docs_site.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_links_may_lead_to_the_repositorys_address(hook: ModuleType) -> None:
    page = SimpleNamespace(file=SimpleNamespace(src_uri="howto/teams.md"))
    config = {"extra": {"repository": "https://example.org/blob/main/"}}
    text = "[a](../../examples/slides/) [b](../teams.md#timelines) [c](https://x.org)\n```\n[d](../../README.md)\n```\n"
    assert hook.on_page_markdown(text, page, config, None) == text.replace(
        "../../examples/slides/", "https://example.org/blob/main/examples/slides/README.md"
    )
