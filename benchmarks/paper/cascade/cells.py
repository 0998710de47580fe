"""The 240 settings of the two-agent cascade, and the ablation's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

PREFIX = (500, 1000, 2000, 4000)
OUTPUT = (128, 256, 512, 1024, 2048)
CONCURRENCY = (1, 2, 4, 8)
CORE_PREFIX = (500, 2000, 4000)
CORE_OUTPUT = (128, 512)


@dataclass(frozen=True)
class Setup:
    """Where A and B are.

    Attributes:
        shape: B's model.
        rate: tokens a second that A is held to, on no engine; None where it decodes.
        two_gpus: A decodes on a second GPU.
    """

    shape: str
    rate: float | None = None
    two_gpus: bool = False


SETUPS = {
    "7b-shared": Setup("qwen2.5-7b"),
    "7b-two-gpus": Setup("qwen2.5-7b", two_gpus=True),
    "7b-rate50": Setup("qwen2.5-7b", rate=50),
    "32b-rate200": Setup("qwen2.5-32b", rate=200),
    "32b-rate50": Setup("qwen2.5-32b", rate=50),
    "235b-rate200": Setup("qwen3-235b-a22b", rate=200),  # with --tp 4 or 8
    "235b-rate50": Setup("qwen3-235b-a22b", rate=50),
    "tiny-shared": Setup("tiny"),  # for a CPU
    "tiny-rate200": Setup("tiny", rate=200),
}


@dataclass(frozen=True)
class Cell:
    """Token counts before scaling; `repeats` of the whole cell."""

    prefix: int
    output: int
    concurrency: int
    repeats: int = 1


def cascade(repeats: int) -> Iterator[Cell]:
    """The core of 24 cells with all repeats, then the rest once."""
    core = [Cell(p, o, c, repeats) for o in CORE_OUTPUT for p in CORE_PREFIX for c in CONCURRENCY]
    yield from core
    for o in OUTPUT:
        for p in PREFIX:
            for c in CONCURRENCY:
                if Cell(p, o, c, repeats) not in core:
                    yield Cell(p, o, c)


def ablation(repeats: int) -> Iterator[Cell]:
    """Prefix 2,000 at one and at eight conversations; A writes for five seconds at 50 tokens/s."""
    yield from (Cell(2000, 256, c, repeats) for c in (1, 8))
