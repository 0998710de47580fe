"""The private folder of a host process, and what is left to clean when a host was killed.

SGLang puts sockets into the temporary folder and names shared memory after them, and leaves both
behind when it is killed. Each host gets a temporary folder of its own under a name that carries a
token, so that whoever survives it (the application, or the next one to start) can remove all of it.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

_PREFIX = "flashagents-"
_SHARED_MEMORY = Path("/dev/shm")
_MAX_SOCKET_PATH = 107  # sockaddr_un on Linux
_LONGEST_NAME = 40  # what SGLang and our token add to the folder's path


@dataclass(frozen=True)
class RunDir:
    """A host's folder. Locked (`flock`) by whoever made it for as long as the host is in use."""

    path: Path
    token: str
    lock_fd: int
    _gone: list[bool] = field(default_factory=list)

    def remove(self) -> None:
        """Delete the folder and the shared memory that carries its token; safe to call twice."""
        remove(self.path, self.token)
        if not self._gone:  # a second time the number may be somebody else's
            self._gone.append(True)
            os.close(self.lock_fd)


def remove(path: str | Path, token: str) -> None:
    """Delete a host's folder and the shared memory that carries its token."""
    for segment in _SHARED_MEMORY.glob(f"*{token}*"):
        segment.unlink(missing_ok=True)
    shutil.rmtree(path, ignore_errors=True)


def _base() -> Path:
    base = Path(tempfile.gettempdir())
    if len(str(base)) + _LONGEST_NAME + len(_PREFIX) > _MAX_SOCKET_PATH:
        return Path("/tmp")  # a Unix socket's path has to stay short
    return base


def make_run_dir() -> RunDir:
    """Make a private folder (mode 700), after removing those that killed applications have left."""
    base = _base()
    sweep(base)
    token = "fa" + secrets.token_hex(4)
    path = base / (_PREFIX + token)
    path.mkdir(mode=0o700)
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return RunDir(path, token, fd)


def sweep(base: Path | None = None) -> int:
    """Remove our own abandoned folders under `base`; returns how many. Locked ones are in use."""
    removed = 0
    for path in (base or _base()).glob(_PREFIX + "fa*"):
        try:
            if path.is_symlink() or path.stat().st_uid != os.getuid():
                continue
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
        except OSError:
            continue  # not ours, or gone meanwhile
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            continue
        else:
            remove(path, path.name.removeprefix(_PREFIX))
            removed += 1
        finally:
            os.close(fd)
    return removed


__all__ = ["RunDir", "make_run_dir", "remove", "sweep"]
