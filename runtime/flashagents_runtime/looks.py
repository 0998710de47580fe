"""A look at an engine: what `flashagents top` shows, and where it comes from.

An embedded engine's application answers at a Unix socket in the engine's private folder
(`embedded/window.py`); whoever may enter that folder, its user alone, may look.
"""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from .errors import EngineError
from .plugin_figures import Figures
from .tally import Counts
from .types import EngineInfo, EngineState

SOCKET_NAME = "look"
FOLDERS = "flashagents-fa*"  # the private folders of engines' processes, see embedded/run_dir.py
BASES = (Path(tempfile.gettempdir()).resolve(), Path("/tmp"))  # where they may lie
_MOST_BYTES = 1 << 20
_SECONDS = 10.0


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """An engine at one moment.

    Attributes:
        info: what the engine is.
        state: its KV cache, and how many requests run and wait.
        plugin: what the plug-in counts, by feature (pins among it).
        counts: what its application has asked of it; None for a server, which others may ask too.
        pid: the application's process; 0 for a server.
    """

    info: EngineInfo
    state: EngineState
    plugin: Figures
    counts: Counts | None = None
    pid: int = 0


class Unanswered(msgspec.Struct, frozen=True, tag="error"):
    """Why there is no look."""

    message: str


class Answered(msgspec.Struct, frozen=True, tag="look"):
    """There is one."""

    look: Look


Answer = Answered | Unanswered


def windows() -> list[Path]:
    """The sockets of this user's running embedded engines; the oldest first.

    Looks in the temporary folder and in /tmp. Folders and sockets that belong to others, that others may
    enter, or that are links are passed over: anybody may make a folder of such a name in /tmp.
    """
    found = {}
    for folder in _folders():
        path = folder / SOCKET_NAME
        try:
            inside = path.lstat()
        except OSError:
            continue  # still starting, or gone meanwhile
        if stat.S_ISSOCK(inside.st_mode) and inside.st_uid == os.getuid():
            found[path] = inside.st_mtime
    return sorted(found, key=lambda path: (found[path], str(path)))


def _folders() -> Iterator[Path]:
    for base in dict.fromkeys(BASES):
        for folder in base.glob(FOLDERS):
            try:
                entry = folder.lstat()
            except OSError:
                continue
            private = stat.S_ISDIR(entry.st_mode) and not entry.st_mode & 0o077
            if private and entry.st_uid == os.getuid():
                yield folder


async def ask(window: Path) -> Look:
    """Look through a window.

    Raises:
        EngineError: nobody answers there, or not in time, or it is no engine of this user and version.
    """
    try:
        async with asyncio.timeout(_SECONDS):
            reader, writer = await asyncio.open_unix_connection(str(window), limit=_MOST_BYTES)
            try:
                if peer_uid(writer.get_extra_info("socket")) != os.getuid():
                    raise EngineError(f"{window} is answered by another user's process")
                text = await reader.readline()
            finally:
                writer.close()
    except TimeoutError as e:
        raise EngineError(f"the engine at {window} did not answer in {_SECONDS:.0f} s") from e
    except ValueError as e:
        raise EngineError(f"{window} is no engine's: it says more than an engine does") from e
    except OSError as e:
        raise EngineError(f"the engine at {window} has ended ({e.strerror or e})") from e
    if not text:
        raise EngineError(f"the engine at {window} did not answer: it is ending, or too many watch it")
    try:
        answer: Answer = msgspec.json.decode(text, type=Answer)
    except msgspec.DecodeError as e:
        raise EngineError(f"the engine at {window} is of another version: {e}") from e
    if isinstance(answer, Unanswered):
        raise EngineError(answer.message)
    return answer.look


def peer_uid(sock: socket.socket) -> int:
    """The user at the other end of a Unix socket."""
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, uid, _ = struct.unpack("3i", credentials)
    return int(uid)


__all__ = ["SOCKET_NAME", "Answer", "Answered", "Look", "Unanswered", "ask", "peer_uid", "windows"]
