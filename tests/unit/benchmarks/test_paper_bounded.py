"""A slice ends on time and leaves nothing behind."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil
import pytest

from benchmarks.paper.bounded import bounded

pytestmark = pytest.mark.long

# A child in a session of its own, which outlives its parent; its id goes to a file.
ORPHAN = """
import pathlib, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
pathlib.Path(sys.argv[1]).write_text(str(child.pid))
time.sleep(float(sys.argv[2]))
sys.exit(3)
"""


@pytest.mark.parametrize(("sleeps", "seconds", "code"), [("2", 60.0, 3), ("600", 3.0, 124)])
def test_what_a_slice_leaves_behind_is_ended(sleeps: str, seconds: float, code: int, tmp_path: Path) -> None:
    file = tmp_path / "pid"
    command = [sys.executable, "-c", ORPHAN, str(file), sleeps]
    assert bounded(command, seconds, every=0.1)[0] == code
    if file.exists():  # on a very slow machine it was ended before it had a child
        assert not psutil.pid_exists(int(file.read_text()))


def test_the_commands_own_status_comes_back() -> None:
    assert bounded([sys.executable, "-c", "raise SystemExit(7)"], 60.0) == (7, [])
