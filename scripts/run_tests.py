"""Run the checks and tests as `make test`, `make test-fast` and `make lint` do, and print one sum at the end.

The tests run in groups, each a pytest process of its own, two side by side where there are two cores: each
group keeps about one core busy. What a group prints is shown when it ends. Not pytest-xdist, whose
workers would each start the engine that all tests of a session share.

The kernel tests need a process of their own anyway: Triton decides at import whether it interprets its
kernels, and everything else is tested without the interpreter.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as ElementTree
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KERNEL_TESTS = "tests/kernels"
# Longest first.
LONG_GROUPS = ("tests/sched", "tests/engine")
# Not only deselected: to collect the tests of the scheduler imports torch.
FAST_TESTS = "tests/unit"
NOTHING_COLLECTED = 5
LANES = 2
NEWS_SECONDS = 60


@dataclass
class Group:
    """Tests that one pytest process runs."""

    name: str
    arguments: list[str]
    environment: dict[str, str] = field(default_factory=dict)


def groups(fast: bool, extra: list[str]) -> list[Group]:
    """All tests in groups, or one group of what the arguments name."""
    if any(argument.startswith("tests/") for argument in extra):
        interpret = any(argument.startswith(KERNEL_TESTS) for argument in extra)
        return [Group("tests", [], {"TRITON_INTERPRET": "1"} if interpret else {})]
    if fast:
        files = sorted(str(path.relative_to(ROOT)) for path in (ROOT / FAST_TESTS).rglob("test_*.py"))
        return [Group(f"{FAST_TESTS}, {i + 1} of {LANES}", files[i::LANES]) for i in range(LANES)]
    ignored = [f"--ignore={folder}" for folder in (*LONG_GROUPS, KERNEL_TESTS)]
    return [
        *(Group(folder, [folder]) for folder in LONG_GROUPS),
        Group("all other tests", ignored),
        Group(KERNEL_TESTS, [KERNEL_TESTS], {"TRITON_INTERPRET": "1"}),
    ]


def lint() -> bool:
    """ruff (rules and format) and mypy; True where all are content."""
    checks = [["ruff", "check", "--quiet", "."], ["ruff", "format", "--check", "--quiet", "."], ["mypy"]]
    ok = True
    for check in checks:
        start = time.monotonic()
        command = [sys.executable, "-m", *check]
        status = subprocess.run(command, cwd=ROOT, check=False).returncode
        print(f"{' '.join(check)}: {'ok' if status == 0 else 'FAILED'} ({time.monotonic() - start:.0f} s)")
        ok = ok and status == 0
    return ok


def run_pytest(group: Group, arguments: list[str], report: Path, output: Path | None) -> int:
    """One pytest process, which prints into `output` if given; its exit status, 0 also for no tests."""
    options = [f"--junitxml={report}", "--durations=25"]
    command = [sys.executable, "-m", "pytest", *options, *group.arguments, *arguments]
    environment = {**os.environ, **group.environment}
    if output is None:
        status = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
    else:
        with output.open("wb") as printed:
            status = subprocess.run(
                command, cwd=ROOT, env=environment, check=False, stdout=printed, stderr=subprocess.STDOUT
            ).returncode
    return 0 if status == NOTHING_COLLECTED else status


def side_by_side(todo: list[Group], arguments: list[str], folder: Path) -> list[int]:
    """Run the groups in lanes; their exit statuses. Reports and outputs are `folder`/0.xml, 0.txt, ..."""
    statuses = [1] * len(todo)
    running: set[int] = set()
    ended = threading.Event()

    def run(i: int) -> int:
        print(f"{todo[i].name}: begun", flush=True)
        running.add(i)
        try:
            return run_pytest(todo[i], arguments, folder / f"{i}.xml", folder / f"{i}.txt")
        finally:
            running.discard(i)

    def tell() -> None:
        while not ended.wait(NEWS_SECONDS):
            print(
                ", ".join(f"{todo[i].name}: {_percent(folder / f'{i}.txt')}" for i in sorted(running)),
                flush=True,
            )

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        with ThreadPoolExecutor(min(LANES, os.cpu_count() or 1)) as lanes:
            begun: dict[Future[int], int] = {lanes.submit(run, i): i for i in range(len(todo))}
            try:
                for future in as_completed(begun):
                    i = begun[future]
                    statuses[i] = future.result()
                    print(f"\n{todo[i].name}:", flush=True)
                    sys.stdout.buffer.write((folder / f"{i}.txt").read_bytes())
                    sys.stdout.flush()
            except KeyboardInterrupt:  # the terminal has interrupted pytest as well
                lanes.shutdown(wait=False, cancel_futures=True)
                raise
    finally:
        ended.set()
        teller.join()
    return statuses


def _percent(output: Path) -> str:
    found = re.findall(rb"\[ *(\d+%)\]", output.read_bytes()) if output.exists() else []
    return found[-1].decode() if found else "0%"


def count(reports: list[Path]) -> tuple[int, int, int]:
    """Passed, failed (with errors) and skipped tests over all reports."""
    total = failed = skipped = 0
    for report in reports:
        if report.exists():
            for suite in ElementTree.parse(report).getroot().iter("testsuite"):
                total += int(suite.get("tests", 0))
                failed += int(suite.get("failures", 0)) + int(suite.get("errors", 0))
                skipped += int(suite.get("skipped", 0))
    return total - failed - skipped, failed, skipped


def run_tests(fast: bool, extra: list[str]) -> bool:
    """All tests, or the fast ones; prints the sum as the last line. True where none failed.

    The fast ones get a model cache of their own, which they must leave empty: they fetch nothing.
    """
    selection = ["-m", "not engine and not gpu and not fetch and not long"] if fast else []
    todo = groups(fast, extra)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cache = folder / "cache"
        if fast:
            for group in todo:
                group.environment["FLASHAGENTS_CACHE"] = str(cache)
        if len(todo) == 1:
            statuses = [run_pytest(todo[0], [*selection, *extra], folder / "0.xml", None)]
        else:
            statuses = side_by_side(todo, [*selection, *extra], folder)
        passed, failed, skipped = count([folder / f"{i}.xml" for i in range(len(todo))])
        fetched = sorted(path.name for path in cache.glob("*"))
    if fetched:
        print(f"a fast test has fetched something ({fetched}): mark it `fetch`")
    for group, status in zip(todo, statuses, strict=True):
        if status:
            print(f"{group.name}: pytest's exit status was {status}")
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return not any(statuses) and passed > 0 and not fetched


def main() -> int:
    """0 where everything passed, 130 on Ctrl-C, else 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lint", action="store_true", help="ruff and mypy first")
    parser.add_argument("--fast", action="store_true", help="no engine, no Triton interpreter, no download")
    parser.add_argument("--no-tests", action="store_true", help="no pytest at all")
    parser.add_argument("pytest_arguments", nargs="*", help="after --: handed to pytest")
    options = parser.parse_args()
    try:
        ok = lint() if options.lint else True
        sys.stdout.flush()
        if not options.no_tests:
            ok = run_tests(options.fast, options.pytest_arguments) and ok
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
