"""Show `Progress` to people: bars on a terminal, one plain line a stage elsewhere."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress

from .types import Progress, ProgressCallback


@contextlib.contextmanager
def show_progress(console: Console | None = None, *, quiet: bool = False) -> Iterator[ProgressCallback]:
    """Yield a progress callback that draws on the terminal for as long as the block runs.

    It may be called from any thread. Where `console` (standard error, if None) is no terminal there are no
    bars: each stage is one line, with the seconds since the block began. `quiet` shows nothing.
    """
    out = console or Console(stderr=True)
    if quiet:
        yield lambda progress: None
    elif out.is_terminal:
        with _bars(out) as callback:
            yield callback
    else:
        yield _lines(out)


@contextlib.contextmanager
def _bars(console: Console) -> Iterator[ProgressCallback]:
    columns = (SpinnerColumn(finished_text="✓"), TextColumn("{task.description}", markup=False), BarColumn())
    tasks: dict[str, TaskID] = {}
    lock = threading.Lock()
    with RichProgress(*columns, TaskProgressColumn(), TimeElapsedColumn(), console=console) as bars:

        def finish() -> None:
            for task in bars.tasks:
                if not task.finished:
                    bars.update(task.id, total=1.0, completed=1.0)

        def callback(progress: Progress) -> None:
            with lock:
                if progress.stage not in tasks:
                    finish()  # a new stage ends the one before
                    tasks[progress.stage] = bars.add_task(progress.stage, total=None)
                if progress.fraction is not None:
                    bars.update(tasks[progress.stage], total=1.0, completed=progress.fraction)

        yield callback
        finish()


def _lines(console: Console) -> ProgressCallback:
    start = time.monotonic()
    seen: set[str] = set()
    lock = threading.Lock()

    def callback(progress: Progress) -> None:
        with lock:
            if progress.stage in seen:
                return
            seen.add(progress.stage)
        console.print(f"[{time.monotonic() - start:5.1f} s] {progress.stage}", markup=False, highlight=False)

    return callback


__all__ = ["show_progress"]
