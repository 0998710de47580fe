"""The marks set for the kernels, each held against every cell that it speaks of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .cases import DIM, Cell

Rows = dict[tuple[str, int], dict[str, Any]]
LIBRARIES = "fa3", "sglang_triton"


def us(rows: Rows, variant: str, rank: int = 0) -> float | None:
    row = rows.get((variant, rank))
    return row["p50"] if row else None


def of_twin(rank: int) -> Callable[[Cell, Rows], float | None]:
    return lambda cell, rows: _over(us(rows, "no_lora_twin"), us(rows, "ours", rank))


def _over(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a / b


def copy_share(rank: int) -> Callable[[Cell, Rows], float | None]:
    """Bytes read over the time, as a share of the copy bandwidth measured in the same run."""

    def value(cell: Cell, rows: Rows) -> float | None:
        row = rows.get(("ours", rank))
        if row is None:
            return None
        size = cell.batch * cell.context * 2 * (2 * cell.heads[1] * DIM + rank)
        return float(size / row["p50"] / 1e3 / row["ceiling"]["copy_gbs"])

    return value


def extra(rank: int) -> Callable[[Cell, Rows], float | None]:
    """Microseconds over the twin, negated, so that larger is better."""

    def value(cell: Cell, rows: Rows) -> float | None:
        twin, ours = us(rows, "no_lora_twin"), us(rows, "ours", rank)
        return None if twin is None or ours is None else twin - ours

    return value


def against(other: str, variant: str, rank: int, other_rank: int = 0) -> Callable[[Cell, Rows], float | None]:
    return lambda cell, rows: _over(us(rows, other, other_rank), us(rows, variant, rank))


def decode_at(context: int, least: int, most: int = 1 << 20) -> Callable[[Cell], bool]:
    return lambda c: c.op == "decode" and c.context == context and least <= c.batch <= most


def any_decode(least: int, most: int = 1 << 20) -> Callable[[Cell], bool]:
    return lambda c: c.op == "decode" and least <= c.batch <= most


def extends(c: Cell) -> bool:
    return c.op == "extend"


def long_extends(c: Cell) -> bool:
    return c.op == "extend" and c.new == 8192


Mark = tuple[str, Callable[[Cell], bool], Callable[[Cell, Rows], float | None], float]
MARKS: list[Mark] = [
    *[(f"decode 32k, batch 8 up, r{r}: of the twin", decode_at(32768, 8), of_twin(r), 0.96) for r in (8, 16)],
    ("decode 32k, batch 8 up, r64: of the twin", decode_at(32768, 8), of_twin(64), 0.93),
    *[
        (f"decode 32k, batch 8 up, r{r}: of copy", decode_at(32768, 8), copy_share(r), 0.92)
        for r in (8, 16, 64)
    ],
    *[
        (f"decode 8k, batch 8 up, r{r}: of the twin", decode_at(8192, 8), of_twin(r), 0.93)
        for r in (8, 16, 64)
    ],
    *[(f"decode batch 1, r{r}: us from the twin", any_decode(1, 1), extra(r), -4.0) for r in (8, 16, 64)],
    ("decode batch 8 up, twin: FA3's speed", any_decode(8), against("fa3", "no_lora_twin", 0), 1.0),
    *[(f"extend, r{r}: of the twin", extends, of_twin(r), 0.94) for r in (8, 16)],
    ("extend, r64: of the twin", extends, of_twin(64), 0.85),
    ("extend, 8k new, twin: of FA3", long_extends, against("fa3", "no_lora_twin", 0), 0.75),
    *[(f"extend, 8k new, r{r}: of FA3", long_extends, against("fa3", "ours", r), 0.70) for r in (8, 16, 64)],
    ("all, twin: SGLang's triton kernels", lambda c: True, against("sglang_triton", "no_lora_twin", 0), 1.0),
    (
        "all, r16: SGLang's triton kernels without LoRA",
        lambda c: True,
        against("sglang_triton", "ours", 16),
        1.0,
    ),
    ("all, r16: reconstruct, then attend", lambda c: True, against("reconstruct", "ours", 16, 16), 1.0),
]


def table(cells: list[Cell], rows_of: dict[str, Rows]) -> list[str]:
    """A row a mark: how many cells reach it, the worst, and the cells that do not."""
    lines = ["| mark | at least | reached | worst | short of it |", "|---|---|---|---|---|"]
    for name, applies, value, least in MARKS:
        found = {c.key: value(c, rows_of[c.key]) for c in cells if applies(c) and c.key in rows_of}
        values = {k: v for k, v in found.items() if v is not None}
        if not values:
            continue
        short = {k: v for k, v in values.items() if round(v, 3) < least}
        missed = ", ".join(f"{_brief(k)} {v:.2f}" for k, v in sorted(short.items(), key=lambda x: x[1])[:6])
        more = f" and {len(short) - 6} more" if len(short) > 6 else ""
        worst = min(values.values())
        reached = f"{len(values) - len(short)} of {len(values)}"
        lines.append(f"| {name} | {least:g} | {reached} | {worst:.2f} | {missed}{more} |")
    return lines


def _brief(key: str) -> str:
    op, shape, *size = key.split("/")
    return " ".join([shape.split("-")[0].removesuffix(".1").removesuffix("2.5"), *size]) if op else key
