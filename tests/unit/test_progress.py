"""The progress display: bars on a terminal, plain lines elsewhere, nothing when quiet."""

from __future__ import annotations

import io
import threading

from rich.console import Console

from flashagents_runtime.progress import show_progress
from flashagents_runtime.types import Progress

STEPS = [
    Progress("Download", 0.0),
    Progress("Download", 0.5),
    Progress("Check [a]"),
    Progress("Convert", 1.0),
]


def shown(*, terminal: bool, quiet: bool = False) -> str:
    out = io.StringIO()
    with show_progress(Console(file=out, force_terminal=terminal, width=100), quiet=quiet) as progress:
        for step in STEPS:
            progress(step)
    return out.getvalue()


def test_without_a_terminal_each_stage_is_one_plain_line() -> None:
    lines = shown(terminal=False).splitlines()
    assert [line.partition("] ")[2] for line in lines] == ["Download", "Check [a]", "Convert"]
    assert "\x1b" not in "".join(lines)


def test_on_a_terminal_there_are_bars() -> None:
    text = shown(terminal=True)
    assert "\x1b" in text
    assert all(stage in text for stage in ("Download", "Check [a]", "Convert"))
    assert "100%" in text, "a stage is done when the next begins"


def test_quiet_is_silent() -> None:
    assert shown(terminal=True, quiet=True) == ""


def test_it_may_be_called_from_any_thread() -> None:
    out = io.StringIO()
    with show_progress(Console(file=out)) as progress:
        threads = [threading.Thread(target=progress, args=(step,)) for step in STEPS]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(out.getvalue().splitlines()) == 3
