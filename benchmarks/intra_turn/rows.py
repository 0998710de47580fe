"""Rows of `benchmarks/results/intra_turn.jsonl`."""

from __future__ import annotations

import json
import shlex
import statistics
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any


def quantile(values: Sequence[float], q: float) -> float:
    """Linear interpolation between the closest ranks."""
    ordered = sorted(values)
    at = q * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


class Rows:
    """Appends to a file, and knows which slices of this run it has already."""

    def __init__(self, path: Path, *, run: str, commit: str, device: str) -> None:
        self.path = path
        self.common = {
            "device": device,
            "commit": commit,
            "versions": {name: version(name) for name in ("sglang", "torch", "triton")},
            "command": shlex.join(
                ["python", f"benchmarks/intra_turn/{Path(sys.argv[0]).name}", *sys.argv[1:]]
            ),
            "run": run,
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        self.done = {self._key(r["variant"], r["case"]) for r in rows if r.get("run") == run}

    @staticmethod
    def _key(variant: str, case: dict[str, Any]) -> str:
        return json.dumps([variant, case], sort_keys=True)

    def has(self, variant: str, case: dict[str, Any]) -> bool:
        return self._key(variant, case) in self.done

    def add(self, variant: str, case: dict[str, Any], metric: str, values: Sequence[float]) -> None:
        """One row; p99 only where there are enough values for it to differ from the largest."""
        row: dict[str, Any] = {"experiment": "intra_turn", "variant": variant, "case": case, "metric": metric}
        row |= {f"p{int(100 * q)}": round(quantile(values, q), 4) for q in (0.2, 0.5, 0.8)}
        if metric == "ttft_ms":
            row["p99"] = round(quantile(values, 0.99), 4)
        row |= {"n": len(values), **self.common}
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        self.done.add(self._key(variant, case))


def median(values: Sequence[float]) -> float:
    return statistics.median(values)
