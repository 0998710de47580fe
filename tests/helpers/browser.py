"""A headless Chromium for tests of pages.

One that is installed is taken (`FLASHAGENTS_CHROMIUM`, else `chromium`, `chromium-browser` or `google-chrome`
on the PATH); else the build of the npm package `@sparticuz/chromium` is fetched once with `npm pack`, checked
against the hash below, unpacked under the project's cache folder (220 MB), and run with the few libraries
that it brings along. None of the package's own code is executed. In a test, which is then marked `fetch`::

    with open_page(path) as (page, complaints): ...
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from playwright.sync_api import sync_playwright

from helpers.npm_tokenizers import cache_folder

PACKAGE = "@sparticuz/chromium@153.0.0"
INTEGRITY = "sha512-jiGWqSvPMdu4+P9TilYqAR7yEGPEHINx+lCvE/NqNO/EHYzF/x1hUiI5T6ioVIt7dEy7n88byyT0vk+dnsgQwA=="
_UNPACK = (
    "const fs = require('fs'), zlib = require('zlib');"
    "fs.createReadStream(process.argv[1]).pipe(zlib.createBrotliDecompress())"
    ".pipe(fs.createWriteStream(process.argv[2]))"
)


def _fetch(target: Path) -> None:
    """Unpack the npm package's browser and libraries into `target`, which appears all at once."""
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        pytest.skip("no Chromium is installed, and no npm to fetch one with")
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".chromium-") as scratch:
        folder = Path(scratch)
        command = [npm, "pack", "--silent", "--ignore-scripts", PACKAGE]
        packed = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100, check=False)
        archives = list(folder.glob("*.tgz"))
        if packed.returncode != 0 or not archives:
            pytest.skip(f"no Chromium is installed, and {PACKAGE} cannot be fetched: {packed.stderr[-300:]}")
        found = "sha512-" + base64.b64encode(hashlib.sha512(archives[0].read_bytes()).digest()).decode()
        assert found == INTEGRITY, f"{PACKAGE} has another hash than the pinned one: {found}"
        with tarfile.open(archives[0]) as archive:
            archive.extractall(folder, filter="data")
        archives[0].unlink()
        ready = folder / "ready"
        ready.mkdir()
        for name, unpacked in (("chromium.br", ready / "chromium"), ("al2023.tar.br", folder / "al2023.tar")):
            source = folder / "package" / "bin" / name
            subprocess.run([node, "-e", _UNPACK, str(source), str(unpacked)], check=True, timeout=100)
        with tarfile.open(folder / "al2023.tar") as archive:
            archive.extractall(ready, filter="data")  # lib/*.so
        (ready / "chromium").chmod(0o755)
        ready.rename(target)


@cache
def chromium() -> tuple[str, dict[str, str]]:
    """The program, and environment variables that it needs; skips the test where there is none."""
    for name in (os.environ.get("FLASHAGENTS_CHROMIUM"), "chromium", "chromium-browser", "google-chrome"):
        if name and (found := shutil.which(name)):
            return found, {}
    folder = cache_folder() / "npm" / "sparticuz-chromium-153.0.0"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            _fetch(folder)
    return str(folder / "chromium"), {"LD_LIBRARY_PATH": str(folder / "lib")}


@contextlib.contextmanager
def open_page(path: Path, *, dark: bool = False, width: int = 1400) -> Iterator[tuple[Any, list[str]]]:
    """A file, opened without a network: playwright's page, and what the page complains about."""
    program, environment = chromium()
    complaints: list[str] = []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=program,
            env={**os.environ, **environment},
            args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-zygote"],
        )
        try:
            context = browser.new_context(
                viewport={"width": width, "height": 900},
                color_scheme="dark" if dark else "light",
                offline=True,
            )
            page = context.new_page()
            page.on(
                "console", lambda m: complaints.append(m.text) if m.type in ("error", "warning") else None
            )
            page.on("pageerror", lambda error: complaints.append(str(error)))
            page.on("request", lambda r: complaints.append(r.url) if r.url.startswith("http") else None)
            page.goto(path.resolve().as_uri())
            yield page, complaints
        finally:
            browser.close()


__all__ = ["chromium", "open_page"]
