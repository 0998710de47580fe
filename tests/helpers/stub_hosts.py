"""Embedded engines whose host process is a stub, in a temporary folder of their own."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from flashagents_runtime.embedded import EmbeddedEngine, host_process
from helpers import stub_host

STUB = (sys.executable, stub_host.__file__)


@contextmanager
def stub_hosts(monkeypatch: pytest.MonkeyPatch, command: Sequence[str] = STUB) -> Iterator[Path]:
    """Engines start this command instead of the real host; where their folders are, of which none may stay.

    Args:
        command: gets the number of its socket's file descriptor as a further argument.
    """
    folder = Path(tempfile.mkdtemp(prefix="fa-test"))  # pytest's own is too long for a socket
    monkeypatch.setattr(host_process, "host_command", lambda fd: [*command, str(fd)])
    monkeypatch.setattr(EmbeddedEngine, "_resolve_model", lambda self: self.model)
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", None)
    try:
        yield folder
        left = [path.name for path in folder.iterdir()]
        assert left == [], "an engine's folder was left behind"
    finally:
        shutil.rmtree(folder)


__all__ = ["STUB", "stub_hosts"]
