"""The cache folder: where it is, who may write, and how a folder appears in it in one piece.

A model is built in a hidden staging folder beside its final place and renamed there when it is whole, so
other processes see all of it or nothing. One process builds a model at a time (`build_once`); staging
folders that a killed process left behind are removed by the next one that builds the same model.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import filelock

from .errors import DiskFullError, ModelError
from .types import Progress, ProgressCallback

CACHE_VARIABLE = "FLASHAGENTS_CACHE"
_FULL = (errno.ENOSPC, errno.EDQUOT)
_NO_FOLDER = (errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP)


def cache_dir() -> Path:
    """The cache folder: `$FLASHAGENTS_CACHE`, else `flashagents` in the user's XDG cache. Not created."""
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen).expanduser().absolute()
    import platformdirs  # here, so that a model folder can be served where it is not installed

    return Path(platformdirs.user_cache_dir("flashagents"))


def models_dir() -> Path:
    """Where prepared models lie, one folder each. Not created."""
    return cache_dir() / "models"


def settled(model: str | Path) -> str:
    """A model's name, for later: a folder by its absolute path, since the application may change its own."""
    name = str(model)
    folder = os.path.expanduser(name)
    try:
        return os.path.abspath(folder) if os.path.isdir(folder) else name
    except ValueError:  # a null byte: who looks for it says so
        return name


def build_once(
    name: str,
    is_ready: Callable[[Path], bool],
    build: Callable[[Path], None],
    *,
    space: int,
    progress: ProgressCallback,
) -> Path:
    """Return the folder `models_dir() / name`, built by `build(folder)` where `is_ready(folder)` says no.

    Args:
        name: name of the folder.
        is_ready: cheap check of a finished folder; a folder that fails it is built anew.
        build: fills an empty staging folder. Whatever it raises leaves nothing behind.
        space: bytes that the building needs on the disk, checked before it begins.
        progress: told when another process is building and this one waits for it.

    Raises:
        DiskFullError: the disk has, or runs, out of space.
        ModelError: the cache folder cannot be written.
    """
    target = models_dir() / name
    with _disk_errors(target.parent):
        if is_ready(target):
            return target
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
        except FileNotFoundError as error:  # such as below /proc; what is built may raise it as well
            raise _unwritable(target.parent, error) from error
        with _lock(target.with_name(f".{name}.lock"), progress):
            if is_ready(target):  # another process built it while we waited
                return target
            prefix = f".{name}.partial-"
            for left_over in target.parent.glob(f"{prefix}*"):  # we hold the lock: nobody works in these
                shutil.rmtree(left_over, ignore_errors=True)
            check_space(target.parent, space)
            staging = Path(tempfile.mkdtemp(prefix=prefix, dir=target.parent))
            try:
                build(staging)
                staging.chmod(0o755)
                if target.exists():
                    shutil.rmtree(target)
                staging.rename(target)
            finally:
                shutil.rmtree(staging, ignore_errors=True)
    return target


def check_space(folder: Path, needed: int) -> None:
    """Raise DiskFullError where the file system of `folder` has fewer than `needed` bytes free."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise DiskFullError(
            f"preparing a model in {folder} needs {needed / 2**20:.0f} MiB of disk, {free / 2**20:.0f} MiB"
            f" are free: make room, or set {CACHE_VARIABLE} to a folder on another disk"
        )


def disk_full(folder: Path) -> DiskFullError:
    """The error for a disk that filled up while a model was prepared in `folder`."""
    return DiskFullError(
        f"the disk filled up while a model was prepared in {folder} (nothing half-made was left there):"
        f" make room, or set {CACHE_VARIABLE} to a folder on another disk"
    )


@contextlib.contextmanager
def _disk_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise disk_full(folder) from error
        if (
            isinstance(error, PermissionError | FileExistsError | NotADirectoryError)
            or error.errno in _NO_FOLDER
        ):
            raise _unwritable(folder, error) from error
        raise


def _unwritable(folder: Path, error: OSError) -> ModelError:
    return ModelError(
        f"the cache folder {folder} cannot be written ({error.strerror}: {error.filename}):"
        f" set {CACHE_VARIABLE} to a folder that can"
    )


@contextlib.contextmanager
def _lock(path: Path, progress: ProgressCallback) -> Iterator[None]:
    """Hold the lock file; the kernel lets go of it when the process dies, however it dies."""
    lock = filelock.FileLock(path)
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        progress(Progress("Waiting for another process that prepares the same model"))
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


__all__ = [
    "CACHE_VARIABLE",
    "build_once",
    "cache_dir",
    "check_space",
    "disk_full",
    "models_dir",
    "settled",
]
