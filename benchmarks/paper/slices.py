"""Resumable slices: a run passes over what its file has, and starts no cell that would end too late."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil

from benchmarks.rows import append


class Slice:
    """The rows of one run, appended cell by cell.

    Args:
        path: the file.
        shared: what all rows have (`rows.common`).
        seconds: start no cell that would end so long after this process began, engines and all.
        again: measure what the file has, too.
    """

    def __init__(self, path: Path, shared: dict[str, Any], seconds: float, *, again: bool = False) -> None:
        self.shared = shared
        self._path = path
        self._end = time.monotonic() + seconds - (time.time() - psutil.Process().create_time())
        self._known = set() if again else set(_keys(path))
        self._pace: dict[str, float] = {}
        self._left: list[dict[str, Any]] = []

    @property
    def left(self) -> float:
        """Seconds until the end; engines that start when little is left have nothing to do."""
        return self._end - time.monotonic()

    def missing(self, case: dict[str, Any], variants: Iterable[str]) -> bool:
        """Whether the file lacks the case for any of these variants."""
        return any(_key(self.shared["device"], v, case) not in self._known for v in variants)

    @asynccontextmanager
    async def timed(self, case: dict[str, Any], repeats: int) -> AsyncGenerator[bool, None]:
        """Around the measuring of a case: whether there is time left for it.

        What a repeat takes is guessed from cases before: the dearest one, as long as nothing else is known.
        """
        kind = json.dumps([case.get("output"), case.get("concurrency")])
        guess = self._pace.get(kind, max(self._pace.values(), default=0.0))
        began = time.monotonic()
        fits = began + guess * repeats <= self._end
        if not fits:
            self._left.append(case)
        yield fits
        if fits:
            self._pace[kind] = (time.monotonic() - began) / repeats

    def add(self, rows: Sequence[dict[str, Any]], metrics: Collection[str] | None = None) -> None:
        """Append the rows of a case, and print a line of it: of these metrics, else of its times."""
        append(self._path, rows, show=False)
        shown: dict[str, dict[str, float]] = {}
        for r in rows:
            time_of_all = r["metric"].endswith(("_ms", "_s")) and not r["metric"].endswith("_last_ms")
            if time_of_all if metrics is None else r["metric"] in metrics:
                shown.setdefault(r["metric"], {})[r["variant"]] = r["p50"]
        print(json.dumps(rows[0]["case"]), json.dumps(shown), flush=True)

    def end(self) -> None:
        """Say what was left for the next run."""
        if self._left:
            print(f"no time for {len(self._left)} cells: run it again", flush=True)


def rotated(names: list[str], by: int) -> list[str]:
    """So that no variant is always the first."""
    by %= len(names)
    return names[by:] + names[:by]


def _keys(path: Path) -> Iterable[str]:
    lines = path.read_text().splitlines() if path.exists() else []
    return (_key(r["device"], r["variant"], r["case"]) for r in map(json.loads, lines))


def _key(device: str, variant: str, case: dict[str, Any]) -> str:
    return json.dumps([device, variant, case], sort_keys=True)
