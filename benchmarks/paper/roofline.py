"""How little time a headline could take: its decode steps, the tokens that must be computed, one last chunk.

Rates are those that `overhead` has measured on the same GPU, with a model of the same shape and prefill
graphs. Nothing else is counted: no queue, no tokenizer, no process in between.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from benchmarks.paper.cascade.cells import SETUPS

Row = dict[str, Any]
RESIDUAL = 128  # tokens of the last chunk


@dataclass(frozen=True)
class Rates:
    """Of one shape on one GPU.

    Attributes:
        prefill: tokens a second in one large pass.
        residual: seconds of a chunk of `RESIDUAL` tokens.
        step: seconds of a decode step of one request.
        step8: of eight.
    """

    prefill: float
    residual: float
    step: float
    step8: float

    def decode(self, tokens: float, batch: int) -> float:
        """Seconds for so many steps; between one request and eight, and beyond, on a straight line."""
        return tokens * (self.step + (self.step8 - self.step) * (batch - 1) / 7)

    def compute(self, tokens: float) -> float:
        """Seconds for so many prompt tokens."""
        return tokens / self.prefill

    def last(self, batch: int) -> float:
        """Seconds from A's last token to B's first, for so many at once: the last chunks, and a step."""
        return max(self.residual, self.compute(RESIDUAL * batch)) + self.decode(1, batch)


def rates(rows: Iterable[Row], device: str, shape: str) -> Rates | None:
    """From the rows of `overhead`; None where one is missing."""
    found: dict[str, Row] = {}
    for row in rows:
        case = row["case"]
        if (row["experiment"], row["device"], row["variant"]) != ("paper_overhead", device, "graphs"):
            continue
        if case["shape"] != shape:
            continue
        if row["metric"] == "decode_step_ms":
            found[f"step {case['batch']}"] = row
        elif row["metric"] == "sum_ms" and case["cached"] <= RESIDUAL:
            found[case["chunk"]] = row
    if not {"one pass", str(RESIDUAL), "step 1", "step 8"} <= found.keys():
        return None
    whole, small = found["one pass"], found[str(RESIDUAL)]
    return Rates(
        1e3 * whole["case"]["new"] / whole["p50"],
        small["p50"] / 1e3 * RESIDUAL / small["case"]["new"],
        found["step 1"]["p50"] / 1e3,
        found["step 8"]["p50"] / 1e3,
    )


def cascade(case: dict[str, Any], metric: str, of: Rates) -> float | None:
    """Milliseconds; None for other metrics and for set-ups that are not reckoned here."""
    setup, batch = SETUPS[case["setup"]], case["concurrency"]
    if metric == "handoff_ms":
        return 1e3 * of.last(batch)
    if metric != "first_to_first_ms":
        return None
    heads = case["prefix"] * (1 if case["prefixes"] == "shared" else batch)
    computing = of.compute(heads + case["output"] * batch)
    if setup.rate is not None:
        writing = (case["output"] - 1) / setup.rate
        return 1e3 * (max(writing, computing) + of.last(batch))
    writing = of.decode(case["output"] - 1, batch)
    together = max(writing, computing) if setup.two_gpus else writing + computing
    return 1e3 * (together + of.last(batch))


def workflow(case: dict[str, Any], metric: str, of: Rates) -> float | None:
    """Milliseconds from end to end, where one engine serves all; `workflows/teams.py` has the lengths."""
    if metric != "end_ms" or case["upstream"] != case["downstream"] or case["scale"] != 1:
        return None
    n = case["concurrency"]
    if case["workflow"] == "chain":
        # The guide once; then each of four agents reads its own words, the task and all answers before.
        tokens = 2500 + n * sum(60 + 40 + 256 * before for before in range(4))
        seconds = of.compute(tokens) + of.decode(4 * 256, n) + 3 * of.residual
    elif case["workflow"] == "map_reduce":
        # A reviewer's own words stand before the paper: nothing is shared but among the N users.
        tokens = n * (4 * (60 + 3000) + 3 * 256)
        seconds = of.compute(tokens) + of.decode(256, 3 * n) + of.decode(256, n) + of.residual
    elif case["workflow"] == "slides":
        # Slides are written while the outline is: what is left is the last item's.
        tokens = n * (60 + 2 * 3013 + 12 * 300)
        seconds = of.compute(tokens) + of.decode(12 * 25, n) + of.decode(100, n) + of.residual
    else:
        return None
    return 1e3 * seconds


def lower_bound(rows: list[Row], row: Row) -> float | None:
    """The floor of a row's median, in milliseconds; None where it cannot be reckoned."""
    case = row["case"]
    if row["experiment"] == "paper_cascade":
        of = rates(rows, row["device"], SETUPS[case["setup"]].shape)
        return None if of is None else cascade(case, row["metric"], of)
    if row["experiment"] == "paper_workflows":
        of = rates(rows, row["device"], case["upstream"])
        return None if of is None else workflow(case, row["metric"], of)
    return None


def _headline(row: Row) -> bool:
    case = row["case"]
    if row["experiment"] == "paper_cascade":
        whole = case["cells"] == "cascade" and (case["prefix"], case["output"]) == (2000, 512)
        return whole and row["variant"] == "ours"
    return row["variant"] in ("flash, ours", "flash, with its item")


def table(rows: list[Row]) -> list[str]:
    """Floors of the headlines beside what was measured; empty where there is none."""
    lines = []
    for row in rows:
        if not _headline(row) or (floor := lower_bound(rows, row)) is None:
            continue
        case = row["case"]
        what = f"{case['setup']}, 2,000 + 512" if "setup" in case else case["workflow"]
        lines.append(
            f"| {what} | {case['concurrency']} | `{row['metric']}` | {floor:,.1f} | {row['p50']:,.1f} "
            f"| {100 * floor / row['p50']:.0f}% |"
        )
    if not lines:
        return []
    head = ["", "| what | at once | metric | floor | ours | of the floor |", "|---|---|---|---|---|---|"]
    return [*head, *lines]
