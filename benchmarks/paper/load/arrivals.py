"""Workflows that arrive as the requests of a trace did, at another rate."""

from __future__ import annotations

import csv
import random
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path


@dataclass(frozen=True)
class Arrival:
    """One workflow.

    Attributes:
        at: seconds after the first one, at a mean rate of one a second.
        task: tokens of its task.
        answer: tokens that each of its agents writes.
    """

    at: float
    task: int
    answer: int


def from_trace(path: Path, count: int, *, longest_task: int, longest_answer: int) -> list[Arrival]:
    """The first `count` requests of an Azure LLM trace (`TIMESTAMP,ContextTokens,GeneratedTokens`).

    Gaps are scaled to one a second on average, so that bursts stay bursts; lengths are cut. Raises ValueError
    where the file has too few rows.
    """
    with path.open(newline="") as file:
        rows = [row for row, _ in zip(csv.DictReader(file), range(count), strict=False)]
    if len(rows) < max(count, 2):
        raise ValueError(f"{path.name} has {len(rows)} requests, {max(count, 2)} are asked for")
    times = [datetime.fromisoformat(row["TIMESTAMP"][:26]) for row in rows]
    mean = (times[-1] - times[0]).total_seconds() / (len(times) - 1)
    return [
        Arrival(
            (time - times[0]).total_seconds() / mean,
            min(int(row["ContextTokens"]), longest_task),
            max(min(int(row["GeneratedTokens"]), longest_answer), 8),
        )
        for time, row in zip(times, rows, strict=True)
    ]


def made_up(count: int, seed: int, *, longest_task: int, longest_answer: int) -> list[Arrival]:
    """Poisson arrivals with log-normal lengths of the conversation trace's medians (1,041 and 217 tokens)."""
    rng = random.Random(seed)
    found, at = [], 0.0
    for _ in range(count):
        task, answer = rng.lognormvariate(6.95, 0.9), rng.lognormvariate(5.38, 0.7)
        found.append(Arrival(at, min(int(task), longest_task), min(max(int(answer), 8), longest_answer)))
        at += rng.expovariate(1.0)
    return found
