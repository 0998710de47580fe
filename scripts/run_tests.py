"""Run the checks and tests as `make test`, `make test-fast` and `make lint` do, and print one sum at the end.

The kernel tests run in a process of their own: Triton decides at import whether it interprets its kernels,
and everything else is tested without the interpreter.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KERNEL_TESTS = "tests/kernels"
# Not only deselected: to collect the tests of the scheduler imports torch.
FAST_TESTS = "tests/unit"
NOTHING_COLLECTED = 5


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


def run_pytest(arguments: list[str], report: Path, environment: dict[str, str]) -> int:
    """One pytest process; its exit status, 0 also where it collected nothing."""
    command = [sys.executable, "-m", "pytest", f"--junitxml={report}", "--durations=25", *arguments]
    status = subprocess.run(command, cwd=ROOT, env={**os.environ, **environment}, check=False).returncode
    return 0 if status == NOTHING_COLLECTED else status


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
    runs: list[tuple[list[str], dict[str, str]]] = []
    if not any(argument.startswith("tests/") for argument in extra):
        if not fast and any((ROOT / KERNEL_TESTS).glob("**/test_*.py")):
            runs.append(([KERNEL_TESTS], {"TRITON_INTERPRET": "1"}))
        runs.append(([FAST_TESTS] if fast else [f"--ignore={KERNEL_TESTS}"], {}))
    else:
        interpret = any(argument.startswith(KERNEL_TESTS) for argument in extra)
        runs.append(([], {"TRITON_INTERPRET": "1"} if interpret else {}))
    statuses: list[int] = []
    with tempfile.TemporaryDirectory() as folder:
        reports = [Path(folder) / f"{i}.xml" for i in range(len(runs))]
        cache = Path(folder) / "cache"
        for report, (arguments, environment) in zip(reports, runs, strict=True):
            environment = {**environment, **({"FLASHAGENTS_CACHE": str(cache)} if fast else {})}
            statuses.append(run_pytest([*selection, *arguments, *extra], report, environment))
        passed, failed, skipped = count(reports)
        fetched = sorted(path.name for path in cache.glob("*"))
    if fetched:
        print(f"a fast test has fetched something ({fetched}): mark it `fetch`")
    if any(statuses) and not failed:
        print(f"pytest itself failed: exit status {max(statuses)}")
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return not any(statuses) and passed > 0 and not fetched


def main() -> int:
    """0 where everything passed, else 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lint", action="store_true", help="ruff and mypy first")
    parser.add_argument("--fast", action="store_true", help="no engine, no Triton interpreter, no download")
    parser.add_argument("--no-tests", action="store_true", help="no pytest at all")
    parser.add_argument("pytest_arguments", nargs="*", help="after --: handed to pytest")
    options = parser.parse_args()
    ok = lint() if options.lint else True
    sys.stdout.flush()
    if not options.no_tests:
        ok = run_tests(options.fast, options.pytest_arguments) and ok
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
