"""Rows of benchmarks/results/role_quality.jsonl from the records and similarities of a work folder.

    python -m benchmarks.role_quality.summarise --work WORK --device "NVIDIA H200" --note "..."

Only turns that read what another role has cached count. Metrics are means over questions and seeds with their
95% interval (both drawn anew, `metrics.interval`), and the percentiles that all rows have, over questions:
`f1` and `exact` in points, `nll` and `kl` in nats a token; `..._minus_none` is the difference from Non-Shared
with the same adapters, `..._minus_own_none` from Non-Shared with adapters that share nothing.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.rows import RESULTS, append, common, row

from . import arguments
from .cells import ADAPTERS, DEFINED, ENGINE, Cell, about
from .metrics import interval
from .trajectories import ROLES

Table = dict[str, dict[int, float]]
"""By question and seed."""


def read(cell: Cell, work: Path) -> list[dict[str, Any]]:
    """The crossed turns of a cell; empty where it is not measured."""
    file = cell.records(work)
    if not file.exists():
        return []
    return [r for r in map(json.loads, file.read_text().splitlines()) if r["crossed"]]


def by_question(records: list[dict[str, Any]], metric: str) -> dict[str, float]:
    """A question's value: points of the turns' mean, or nats a token."""
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for r in records:
        groups[r["question"]].append(r)
    if metric in ("f1", "exact"):
        return {q: 100 * sum(r[metric] for r in rs) / len(rs) for q, rs in groups.items()}
    return {
        q: sum(r[metric] for r in rs) / sum(r["tokens"] for r in rs)
        for q, rs in groups.items()
        if all(r[metric] is not None for r in rs)
    }


class Summary:
    """All tables of one task and judge."""

    def __init__(self, work: Path, task: str, judge: str, seeds: list[int]) -> None:
        variants = (*ENGINE, "none_again") if judge == "engine" else DEFINED
        self.work, self.task, self.judge, self.seeds = work, task, judge, seeds
        self.records = {
            (v, a, s): records
            for v in variants
            for a in ADAPTERS
            for s in seeds
            if (records := read(Cell(task, judge, v, a, s), work))
        }

    def table(self, variant: str, adapters: str, metric: str, role: str) -> Table:
        """Values by question and seed."""
        out: Table = defaultdict(dict)
        for seed in self.seeds:
            records = self.records.get((variant, adapters, seed), [])
            mine = [r for r in records if role in ("all", r["role"])]
            for question, value in by_question(mine, metric).items():
                out[question][seed] = value
        return out

    def difference(self, one: Table, other: Table) -> Table:
        """`one - other`, where both are."""
        return {
            q: {s: v - other[q][s] for s, v in values.items() if s in other.get(q, {})}
            for q, values in one.items()
        }

    def rows(self, case: dict[str, Any], shared: dict[str, Any]) -> list[dict[str, Any]]:
        """The rows of this task and judge."""
        out = []
        for variant, adapters in dict.fromkeys((v, a) for v, a, _ in self.records):
            for role in ("all", *ROLES):
                here = {**case, "judge": self.judge, "adapters": adapters, "role": role}
                for metric in ("f1", "exact", "nll", "kl"):
                    mine = self.table(variant, adapters, metric, role)
                    out += one_row(variant, here, metric, mine, shared)
                    if metric == "kl" or (variant == "none" and adapters == "own"):
                        continue
                    if variant != "none":
                        none = self.table("none", adapters, metric, role)
                        name = f"{metric}_minus_none"
                        out += one_row(variant, here, name, self.difference(mine, none), shared)
                    if adapters == "shared":
                        own = self.table("none", "own", metric, role)
                        name = f"{metric}_minus_own_none"
                        out += one_row(variant, here, name, self.difference(mine, own), shared)
        return out


def one_row(
    variant: str, case: dict[str, Any], metric: str, table: Table, shared: dict[str, Any]
) -> list[dict[str, Any]]:
    """A row with mean and interval, over the questions that all seeds have; none without values."""
    seeds = sorted({s for values in table.values() for s in values})
    whole = [values for values in table.values() if len(values) == len(seeds)]
    if not whole or not seeds:
        return []
    values = [[question[s] for s in seeds] for question in whole]
    mean, low, high = interval(values)
    case = {**case, "questions": len(values), "seeds": len(seeds)}
    averages = [sum(v) / len(v) for v in values]
    found = row("role_quality", variant, case, metric, averages, shared)
    digits = 3 if metric.startswith(("f1", "exact")) else 5
    return [found | {"mean": round(mean, digits), "low": round(low, digits), "high": round(high, digits)}]


def cross_check(engine: Summary, definition: Summary, case: dict[str, Any], shared: dict[str, Any]) -> Any:
    """How far the engine is from the definitions: nats a token of each turn that both have."""
    out = []
    for variant, adapters in dict.fromkeys((v, a) for v, a, _ in definition.records):
        differences = []
        for seed in definition.seeds:
            theirs = {
                (r["question"], r["turn"]): r for r in definition.records.get((variant, adapters, seed), [])
            }
            for r in engine.records.get((variant, adapters, seed), []):
                other = theirs.get((r["question"], r["turn"]))
                if other is not None:
                    differences.append(abs(r["nll"] - other["nll"]) / r["tokens"])
        if differences:
            here = {**case, "judge": "both", "adapters": adapters, "role": "all"}
            found = row("role_quality", variant, here, "nll_from_definition", differences, shared)
            out.append(found | {"mean": round(sum(differences) / len(differences), 6)})
    return out


def similarity_rows(
    work: Path, task: str, seeds: list[int], case: dict[str, Any], shared: dict[str, Any]
) -> Any:
    """A row a part and layer."""
    out = []
    for adapters in ADAPTERS:
        files = [work / "similarity" / f"{task}-{adapters}-{s}.json" for s in seeds]
        found = [json.loads(f.read_text()) for f in files if f.exists()]
        for part in found[0] if found else ():
            for layer, values in enumerate(zip(*(f[part] for f in found), strict=True)):
                here = {**case, "adapters": adapters, "part": part, "layer": layer}
                out.append(row("role_quality", "similarity", here, "cosine", values, shared))
    return out


def main(argv: Sequence[str] | None = None) -> None:
    parser = arguments.parser(__doc__, model=False)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="bfloat16", help="in which the engine computed")
    parser.add_argument("--note", default="", help="what else the rows are of, such as a small training")
    parser.add_argument("--out", type=Path, default=RESULTS / "role_quality.jsonl")
    args = arguments.parsed(parser, argv)
    shared = common("sglang", "torch", "transformers", "peft", device=args.device)
    given = (f"--{name} {','.join(map(str, getattr(args, name)))}" for name in ("seeds", "tasks"))
    shared["command"] = " ".join(["python -m benchmarks.role_quality.summarise --work WORK", *given])
    if args.note:
        shared["note"] = args.note
    for task in args.tasks:
        case = {"task": task, "dtype": args.dtype}
        engine, definition = (
            Summary(args.work, task, judge, args.seeds) for judge in ("engine", "definition")
        )
        found = engine.rows(case, shared)
        found += definition.rows({**case, "dtype": "float64"}, shared)
        found += cross_check(engine, definition, case, shared)
        found += similarity_rows(args.work, task, args.seeds, {"task": task}, shared)
        print(json.dumps(about(args.work, task)))
        append(args.out, found, show=False)
        for r in found:
            if r["case"].get("role") == "all" and "mean" in r:
                low, high = r.get("low", r["p20"]), r.get("high", r["p80"])
                print(
                    f"{task:7} {r['case']['judge']:10} {r['variant']:12} {r['case']['adapters']:6} "
                    f"{r['metric']:22} {r['mean']:9.4f} ({low:.4f} to {high:.4f})"
                )


if __name__ == "__main__":
    main()
