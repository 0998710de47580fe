"""What is measured, and where its files lie below the work folder.

data/<task>/<role>.json, test.json, about.json       prepare
adapters/<task>/<seed>/<own|shared>/<role>/          train
records/<task>/<judge>/<variant>-<adapters>-<seed>.jsonl    evaluate, define; whole once it has its name
tops/<task>/<adapters>-<seed>.npz                    Non-Shared's distributions, for the divergence
similarity/<task>-<adapters>-<seed>.json             similarity
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .trajectories import ROLES

ADAPTERS = ("shared", "own")
"""With one `v_proj.lora_A` for all roles, or each with its own."""

ENGINE = ("none", "full", "base", "base_lr", "precomputed")
DEFINED = ("none", "full", "base", "base_lr", "precomputed", "base_lr_own", "droidspeak")


@dataclass(frozen=True)
class Cell:
    """One variant on one set of adapters.

    Attributes:
        judge: "engine" or "definition".
        variant: a scheme; of an engine also `none_again`, Non-Shared in other batches: the noise.
    """

    task: str
    judge: str
    variant: str
    adapters: str
    seed: int

    @property
    def scheme(self) -> str:
        return "none" if self.variant == "none_again" else self.variant

    @property
    def team(self) -> str:
        """A sharing group's name."""
        return f"{self.adapters}{self.seed}"

    def records(self, work: Path) -> Path:
        return work / "records" / self.task / self.judge / f"{self.variant}-{self.adapters}-{self.seed}.jsonl"

    def tops(self, work: Path) -> Path:
        return work / "tops" / self.task / f"{self.adapters}-{self.seed}.npz"

    def folders(self, work: Path) -> dict[str, Path]:
        """The adapters by role."""
        return adapter_folders(work, self.task, self.seed, self.adapters)


def adapter_folders(work: Path, task: str, seed: int, adapters: str) -> dict[str, Path]:
    """Where the adapters of one seed are, by role."""
    return {role: work / "adapters" / task / str(seed) / adapters / role for role in ROLES}


def cells(judge: str, task: str, seeds: list[int]) -> list[Cell]:
    """All cells of a judge, Non-Shared first. Without a shared A an engine refuses `base_lr`."""
    variants = [*ENGINE, "none_again"] if judge == "engine" else list(DEFINED)
    own_only, shared_only = {"base_lr_own"}, {"base_lr"}
    return [
        Cell(task, judge, variant, adapters, seed)
        for variant in variants
        for seed in seeds
        for adapters in ADAPTERS
        if variant not in (shared_only if adapters == "own" else own_only)
    ]


def due(work: Path, wanted: list[Cell]) -> list[Cell]:
    """Cells without records, whose adapters are there; says which adapters are not."""
    ready = [c for c in wanted if all(f.exists() for f in c.folders(work).values())]
    for missing in sorted({(c.task, c.team) for c in wanted if c not in ready}):
        print(f"{missing[1]} of {missing[0]} is not trained yet")
    return [c for c in ready if not c.records(work).exists()]


def about(work: Path, task: str) -> dict[str, Any]:
    """What `prepare` wrote of a task."""
    found: dict[str, Any] = json.loads((work / "data" / task / "about.json").read_text())
    return found


def tasks(work: Path) -> list[str]:
    """The tasks that are prepared."""
    return sorted(file.parent.name for file in (work / "data").glob("*/about.json"))
