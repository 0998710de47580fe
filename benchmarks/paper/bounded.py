"""Run a command for so many seconds at most, and leave none of its processes behind.

    python benchmarks/paper/bounded.py 600 python benchmarks/paper/load/run.py ...

Engines and servers have sessions of their own and may outlive who started them: every process below the
command is noted while it runs (by id and start, so that none is mistaken for another), and ended afterwards.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import IO

import psutil

GRACE = 10.0  # seconds between the request to end and the end


def bounded(
    command: Sequence[str], seconds: float, *, every: float = 1.0, output: IO[bytes] | None = None
) -> tuple[int, list[int]]:
    """The command's exit status, 124 where it ran past `seconds`, and the ids of what was left of it.

    `output` takes all that it prints; None leaves it on this process's own.
    """
    end = time.monotonic() + seconds
    into = {} if output is None else {"stdout": output, "stderr": subprocess.STDOUT}
    process = subprocess.Popen(command, **into)  # type: ignore[call-overload]
    seen: set[psutil.Process] = set()
    try:
        code = _wait(psutil.Process(process.pid), process, seen, end, every)
    finally:
        left = [each for each in seen if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]
        for each in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        psutil.wait_procs(left, timeout=GRACE)
    return code, [each.pid for each in left]


def _wait(
    top: psutil.Process, process: subprocess.Popen[bytes], seen: set[psutil.Process], end: float, every: float
) -> int:
    while True:
        with contextlib.suppress(psutil.NoSuchProcess):
            seen.update(top.children(recursive=True))
        for known in list(seen):  # those that have lost their parent may have children too
            with contextlib.suppress(psutil.NoSuchProcess):
                seen.update(known.children(recursive=True))
        left = end - time.monotonic()
        if left <= 0:
            break
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(min(every, left))
    process.terminate()
    try:
        process.wait(GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    return 124


if __name__ == "__main__":
    status, ended = bounded(sys.argv[2:], float(sys.argv[1]))
    if ended:
        print(f"ended what was left: {ended}", file=sys.stderr)
    sys.exit(status)
