"""What a process and its engine hold over a long run, and whether that grows."""

from __future__ import annotations

import gc
import statistics
import tracemalloc
from dataclasses import dataclass, field

import psutil

LIMIT = 0.02
"""What may be held more at the end than after warm-up."""


def growth(samples: list[float]) -> tuple[float, float]:
    """Bytes after warm-up and at the end: the medians of the middle third and of the last one."""
    third = len(samples) // 3
    return statistics.median(samples[third : 2 * third]), statistics.median(samples[-third:])


@dataclass
class Samples:
    """What was held after each round, in bytes."""

    traced: list[float] = field(default_factory=list)
    """Allocated by Python in this process."""
    resident: list[float] = field(default_factory=list)
    """This process."""
    engine: list[float] = field(default_factory=list)
    """The engine's processes together, where it has some."""

    def take(self) -> None:
        """Add one of each."""
        gc.collect()
        process = psutil.Process()
        self.traced.append(tracemalloc.get_traced_memory()[0])
        self.resident.append(process.memory_info().rss)
        children = process.children(recursive=True)
        if children:
            self.engine.append(sum(child.memory_info().rss for child in children))

    def is_flat(self) -> bool:
        """No more than 2% of a process more at the end than after warm-up, in each of the three."""
        (early, late), (held_early, held_late) = growth(self.traced), growth(self.resident)
        flat = late - early <= LIMIT * held_early and held_late - held_early <= LIMIT * held_early
        if self.engine:
            engine_early, engine_late = growth(self.engine)
            flat = flat and engine_late - engine_early <= LIMIT * engine_early
        return flat

    def figures(self) -> dict[str, float]:
        """For a report."""
        (early, late), (held_early, held_late) = growth(self.traced), growth(self.resident)
        found = {
            "allocated_more_kib": round((late - early) / 1024, 1),
            "process_mib": round(held_early / 2**20, 1),
            "process_ratio": round(held_late / held_early, 5),
        }
        if self.engine:
            engine_early, engine_late = growth(self.engine)
            found["engine_mib"] = round(engine_early / 2**20, 1)
            found["engine_ratio"] = round(engine_late / engine_early, 5)
        return found
