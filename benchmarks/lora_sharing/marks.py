"""What is to be reached, and whether it was."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from benchmarks.lora_sharing import reckon
from benchmarks.lora_sharing.cells import Cell
from benchmarks.lora_sharing.measured import Measured
from benchmarks.lora_sharing.shapes import SHAPES

TOLERANCE = 0.01

Found = Iterable[tuple[str, float]]


@dataclass(frozen=True)
class Mark:
    """One mark.

    Attributes:
        found: of all cells, where it was measured and what came out.
        least: to be reached; None where `within` says how far from 1 it may be.
    """

    name: str
    found: Callable[[list[Measured]], Found]
    least: float | None = None
    within: float | None = None

    @property
    def wanted(self) -> str:
        return (
            f"at least {self.least:.3g}"
            if self.least is not None
            else f"1 within {self.within:.3g}"
            if self.within
            else "1 exactly"
        )

    def distance(self, value: float) -> float:
        """How far from the mark; above 0 is short of it."""
        return self.least - value if self.least is not None else abs(value - 1) - (self.within or 0.0)

    def holds(self, value: float) -> bool:
        return self.distance(value) <= 1e-9


def name(cell: Measured) -> str:
    """The cell, in few words."""
    of = cell.case
    shared = "" if of["overlap"] == 100 else f", {of['overlap']}% shared"
    return f"{of['context']} x {of['trajectories']}, {of['roles']} roles{shared}"


def _fits(cell: Measured) -> bool:
    """Nothing of a shared cache had to be evicted."""
    of = cell.case
    return reckon.fits(Cell(of["context"], of["trajectories"], of["roles"], of["overlap"]), of["pool"])


def _shared(cells: list[Measured]) -> list[Measured]:
    """Cells in which sharing has something to give."""
    return [c for c in cells if c.case["roles"] > 1 and c.case["overlap"] > 0 and _fits(c)]


def _of(
    variant: str, other: str, metric: str, where: Callable[[Measured], bool] = lambda _: True
) -> Callable[[list[Measured]], Found]:
    """How many times better a variant is than another one."""

    def found(cells: list[Measured]) -> Found:
        for cell in _shared(cells):
            value = cell.gain(metric, variant, other, variant)
            if value is not None and where(cell):
                yield name(cell), value

    return found


def _large(cell: Measured) -> bool:
    return cell.case["trajectories"] >= 8 and cell.case["context"] in ("66.4k", "128k")


def _one_at_a_time(cell: Measured) -> bool:
    return bool(cell.case["trajectories"] == 1 and cell.case["overlap"] == 100)


def _precomputed(metric: str) -> Callable[[list[Measured]], Found]:
    """`precomputed` over `base_lr`, each over the floor that it was measured beside."""

    def found(cells: list[Measured]) -> Found:
        by_name: dict[str, dict[str, float]] = {}
        for cell in _shared(cells):
            for variant in ("precomputed", "base_lr"):
                value = cell.gain(metric, variant, "floor", variant)
                if value is not None:
                    by_name.setdefault(name(cell), {})[variant] = value
        for where, values in by_name.items():
            if len(values) == 2:
                yield where, values["precomputed"] / values["base_lr"]

    return found


def _tokens_kept(cells: list[Measured]) -> Found:
    """Tokens that `base_lr` keeps over the floor's, however many roles there are."""
    for cell in _shared(cells):
        ratio = cell.ratio("kv_tokens", "base_lr", "floor", "base_lr")
        if ratio is not None:
            yield name(cell), ratio


def _kv(variant: str) -> Callable[[list[Measured]], Found]:
    """Bytes kept over the floor's, over `1 + N r / (2 Hkv d)`: 1 is right."""

    def found(cells: list[Measured]) -> Found:
        for cell in _shared(cells):
            ratio = cell.ratio("kv_bytes", variant, "floor", variant)
            if ratio is not None:
                shape = SHAPES[cell.case["shape"]]
                width = 2 * shape["num_key_value_heads"] * shape["head_dim"]
                yield name(cell), ratio / (1 + cell.case["roles"] * cell.case["r"] / width)

    return found


def _alone(metric: str) -> Callable[[list[Measured]], Found]:
    """One role: every scheme over stock, over what the extend kernel's bound, 1 / (1 + r / (2 d)), leaves."""

    def found(cells: list[Measured]) -> Found:
        for cell in cells:
            if cell.case["roles"] != 1:
                continue
            bound = 1 / (1 + cell.case["r"] / (2 * SHAPES[cell.case["shape"]]["head_dim"]))
            for variant in ("full", "base_lr", "precomputed", "base"):
                value = cell.gain(metric, variant, "none", variant)
                if value is not None:
                    yield f"{variant}, {cell.case['context']}", value / (1 if variant == "full" else bound)

    return found


MARKS = (
    Mark("`base_lr`: TTFT, of the bound", _of("base_lr", "floor", "ttft_sum_ms"), 0.9),
    Mark("`base_lr`: tokens/s, of the bound", _of("base_lr", "floor", "throughput"), 0.95),
    Mark("`base_lr`: TTFT, of `full`", _of("base_lr", "full", "ttft_sum_ms"), 0.97),
    Mark("`base_lr`: tokens/s, of `full`", _of("base_lr", "full", "throughput"), 0.97),
    Mark("`base_lr`, 8 of 66k: TTFT over `none`", _of("base_lr", "none", "ttft_sum_ms", _large), 4.44),
    Mark("`base_lr`, 8 of 66k: tokens/s over `none`", _of("base_lr", "none", "throughput", _large), 2.46),
    Mark("`precomputed`: TTFT, of `base_lr`", _precomputed("ttft_sum_ms"), 0.95),
    Mark("`precomputed`: tokens/s, of `base_lr`", _precomputed("throughput"), 0.95),
    Mark(
        "`base`, one at a time: tokens/s over `none`", _of("base", "none", "throughput", _one_at_a_time), 1.42
    ),
    Mark("`base`: tokens/s over `none`", _of("base", "none", "throughput"), 1.0),
    Mark("`base_lr`: tokens kept, over one role's", _tokens_kept, within=0.0),
    Mark("`precomputed`: bytes kept, over `1 + N r/(2 Hkv d)`", _kv("precomputed"), within=TOLERANCE),
    Mark("`base`: bytes kept, over `1 + N r/(2 Hkv d)`", _kv("base"), within=TOLERANCE),
    Mark("one role: TTFT over stock, of the kernels' bound", _alone("ttft_sum_ms"), 0.99),
    Mark("one role: tokens/s over stock, of the kernels' bound", _alone("throughput"), 0.99),
)
