"""Rows of `benchmarks/results/*.jsonl`: one a variant, case and metric, with what reproduces it."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def common(*packages: str, device: str = "cpu") -> dict[str, Any]:
    """What the rows of one run share: device, commit, versions, command and the run's name."""
    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    commit = (
        os.environ.get("COMMIT")
        or subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
        ).stdout.strip()
    )
    return {
        "device": device,
        "commit": commit or "unknown",
        "versions": found,
        "command": command(),
        "run": datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ"),
    }


def command() -> str:
    """What reproduces the rows: the command line, without where it wrote to and where files lay."""
    given = [os.path.basename(word) if os.path.isabs(word) else word for word in sys.argv[1:]]
    words = [os.path.relpath(sys.argv[0]), *given]
    if "--out" in words:
        at = words.index("--out")
        del words[at : at + 2]
    return " ".join(["python", *words])


def row(
    experiment: str,
    variant: str,
    case: dict[str, Any],
    metric: str,
    values: Sequence[float],
    shared: dict[str, Any],
) -> dict[str, Any]:
    """One row: the 20th, 50th and 80th percentile of `values`."""
    if len(values) == 1:
        low = mid = high = values[0]
    else:
        cuts = statistics.quantiles(values, n=10, method="inclusive")
        low, mid, high = cuts[1], cuts[4], cuts[7]
    head = {"experiment": experiment, "variant": variant, "case": case, "metric": metric}
    return {
        **head,
        "p20": round(low, 3),
        "p50": round(mid, 3),
        "p80": round(high, 3),
        "n": len(values),
        **shared,
    }


def append(path: Path, rows: Sequence[dict[str, Any]], *, show: bool = True) -> None:
    """Add rows to a file, and print them for whoever watches."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        for r in rows:
            file.write(json.dumps(r) + "\n")
            if not show:
                continue
            figures = f"{r['p50']} ({r['p20']} to {r['p80']})"
            print(f"{r['variant']:14} {r['metric']:22} {json.dumps(r['case'])}: {figures}")
