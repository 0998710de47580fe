"""Make docs/quality.md and its figures from benchmarks/results/role_quality.jsonl:

python -m benchmarks.role_quality.report
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
ROWS = ROOT / "benchmarks/results/role_quality.jsonl"
PAGE = ROOT / "docs/quality.md"
TEXT = Path(__file__).parent / "page.txt"
"""The words of the page; figures and tables come where it says `<!-- results -->`."""

ORDER = ("none", "none_again", "full", "droidspeak", "base", "precomputed", "base_lr", "base_lr_own")
NAMES = {
    "none": "Non-Shared",
    "none_again": "Non-Shared, other batches",
    "droidspeak": "DroidSpeak (a third of the layers)",
    "base_lr_own": "`base_lr` without a shared A",
}
MARKS = (
    ("full", "shared", "f1_minus_none", "Non-Shared minus `full` is significant", "below"),
    ("base", "shared", "f1_minus_none", "`base` within 0.7 points of Non-Shared", -0.7),
    ("precomputed", "shared", "f1_minus_none", "`precomputed` within 1.5 points of Non-Shared", -1.5),
    ("base_lr", "shared", "f1_minus_none", "`base_lr`, shared A, within 1.5 points of Non-Shared", -1.5),
    ("base_lr", "shared", "f1_minus_own_none", "the same, of Non-Shared with adapters of their own A", -1.5),
)

Key = tuple[str, str, str, str]
"""Variant, judge, adapters, metric."""


def load(file: Path) -> list[dict[str, Any]]:
    """The newest row of each device, variant, case and metric; question and seed counts may have grown."""
    newest: dict[str, dict[str, Any]] = {}
    for line in file.read_text().splitlines() if file.exists() else ():
        r = json.loads(line)
        case = {k: v for k, v in r["case"].items() if k not in ("questions", "seeds")}
        newest[json.dumps([r["device"], r["variant"], case, r["metric"]])] = r
    return list(newest.values())


def name(variant: str) -> str:
    return NAMES.get(variant, f"`{variant}`")


def found_of(rows: Sequence[dict[str, Any]], role: str = "all") -> dict[Key, dict[str, Any]]:
    """Rows of one device and task by what they measure."""
    return {
        (r["variant"], r["case"]["judge"], r["case"]["adapters"], r["metric"]): r
        for r in rows
        if r["case"].get("role") == role
    }


def cell(r: dict[str, Any] | None, digits: int) -> str:
    if r is None:
        return ""
    sign = "+" if "minus" in r["metric"] else ""
    return f"{r['mean']:{sign}.{digits}f} ({r['low']:.{digits}f} to {r['high']:.{digits}f})"


def table(found: dict[Key, dict[str, Any]], judge: str) -> list[str]:
    """A line a variant and set of adapters."""
    lines = [
        "| | v_proj A | F1 | minus Non-Shared | exact | minus Non-Shared | NLL, nats a token | KL |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for adapters in ("shared", "own"):
        for variant in ORDER:
            get = {m: found.get((variant, judge, adapters, m)) for m in
                   ("f1", "f1_minus_none", "exact", "exact_minus_none", "nll", "kl")}  # fmt: skip
            if get["f1"] is None:
                continue
            cells = [cell(get[m], 2) for m in ("f1", "f1_minus_none", "exact", "exact_minus_none")]
            cells += [cell(get["nll"], 3), cell(get["kl"], 4)]
            lines.append(f"| {name(variant)} | {adapters} | " + " | ".join(cells) + " |")
    return lines


def roles_table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """F1 minus Non-Shared, a column a role."""
    roles = ("plan", "action", "reflect")
    by_role = {role: found_of(rows, role) for role in roles}
    lines = ["| F1 minus Non-Shared, shared A | plan | action | reflect |", "|---|---|---|---|"]
    for variant in ORDER[1:]:
        cells = [cell(by_role[role].get((variant, "engine", "shared", "f1_minus_none")), 2) for role in roles]
        if any(cells):
            lines.append(f"| {name(variant)} | " + " | ".join(cells) + " |")
    return lines


def marks_table(found: dict[Key, dict[str, Any]]) -> list[str]:
    """What was to be reached, and whether it was."""
    lines = ["| mark | measured | reached |", "|---|---|---|"]
    for variant, adapters, metric, text, bound in MARKS:
        r = found.get((variant, "engine", adapters, metric))
        if r is None:
            lines.append(f"| {text} | not measured | |")
            continue
        if bound == "below":
            reached = "yes" if r["high"] < 0 else "no"
        else:
            reached = "yes" if r["low"] >= bound else "the mean is, its interval is not"
            reached = reached if r["mean"] >= bound else "no"
        lines.append(f"| {text} | {cell(r, 2)} | {reached} |")
    own = found.get(("base_lr_own", "definition", "own", "f1_minus_none"))
    shared = found.get(("base_lr", "definition", "shared", "f1_minus_none"))
    if own is not None and shared is not None:
        worse = "yes" if own["mean"] < shared["mean"] else "no"
        text = f"{cell(own, 2)}, with it {cell(shared, 2)}"
        lines.append(f"| `base_lr` without a shared A is worse, by definition | {text} | {worse} |")
    return lines


def check_line(found: dict[Key, dict[str, Any]]) -> str:
    """The largest distance of engine and definition."""
    each = {v: r for (v, judge, _, m), r in found.items() if m == "nll_from_definition"}
    if not each:
        return ""
    parts = ", ".join(f"{name(v)} {each[v]['mean']:.4f}" for v in ORDER if v in each)
    return f"\nEngine against definition, mean distance of a turn's NLL in nats a token: {parts}.\n"


def figure(groups: dict[str, dict[Key, dict[str, Any]]], file: Path) -> None:
    """F1 minus Non-Shared with its interval, a panel a task."""
    from matplotlib.figure import Figure

    drawing = Figure(figsize=(5.5 * len(groups), 3.4), layout="constrained")
    for axes, (title, found) in zip(
        drawing.subplots(1, len(groups), squeeze=False)[0], groups.items(), strict=True
    ):
        lines = [
            (f"{v} ({adapters} A)", r)
            for v in ORDER
            for adapters, judge in (
                ("shared", "engine"),
                ("own", "engine"),
                ("own", "definition"),
                ("shared", "definition"),
            )
            if (judge == "engine") == (v not in ("droidspeak", "base_lr_own"))
            and (r := found.get((v, judge, adapters, "f1_minus_none"))) is not None
        ]
        for i, (_, r) in enumerate(lines):
            axes.plot([r["low"], r["high"]], [i, i], color="tab:blue", linewidth=2)
            axes.plot([r["mean"]], [i], "o", color="tab:blue")
        axes.axvline(0, color="gray", linewidth=0.8)
        axes.set_yticks(range(len(lines)), [label for label, _ in lines])
        axes.invert_yaxis()
        axes.set_xlabel("F1 minus Non-Shared, points")
        axes.set_title(title)
    drawing.savefig(file, metadata={"Date": None})


def similarity_figure(rows: Sequence[dict[str, Any]], file: Path) -> bool:
    """Cosine by layer, a panel a task and set of adapters; False where nothing is measured."""
    from matplotlib.figure import Figure

    mine = [r for r in rows if r["metric"] == "cosine"]
    panels = sorted({(r["case"]["task"], r["case"]["adapters"]) for r in mine})
    if not panels:
        return False
    drawing = Figure(figsize=(4 * len(panels), 3.2), layout="constrained")
    texts = {"key": "K", "base": "V_base", "row": "x A_v", "added": "x A_v B"}
    for axes, (task, adapters) in zip(
        drawing.subplots(1, len(panels), squeeze=False, sharey=True)[0], panels, strict=True
    ):
        for part, text in texts.items():
            points = sorted(
                (r["case"]["layer"], r["p50"])
                for r in mine
                if (r["case"]["task"], r["case"]["adapters"], r["case"]["part"]) == (task, adapters, part)
            )
            axes.plot(*zip(*points, strict=True), label=text)
        axes.set_title(f"{task}, {adapters} A")
        axes.set_xlabel("layer")
        axes.legend(fontsize="small")
    drawing.savefig(file, metadata={"Date": None})
    return True


def similarity_table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Means over layers."""
    mine = [r for r in rows if r["metric"] == "cosine"]
    lines = [
        "| cosine between roles, mean of layers (least) | K | V_base | x A_v | x A_v B |",
        "|---|---|---|---|---|",
    ]
    for task, adapters in sorted({(r["case"]["task"], r["case"]["adapters"]) for r in mine}):
        cells = []
        for part in ("key", "base", "row", "added"):
            values = [r["p50"] for r in mine if (r["case"]["task"], r["case"]["adapters"], r["case"]["part"])
                      == (task, adapters, part)]  # fmt: skip
            cells.append(f"{sum(values) / len(values):.3f} ({min(values):.3f})")
        lines.append(f"| {task}, {adapters} A | " + " | ".join(cells) + " |")
    return lines


def device_part(device: str, rows: Sequence[dict[str, Any]], figures: Path) -> list[str]:
    """All of one device."""
    newest = max(rows, key=lambda r: r["run"])
    stem = "cpu" if device == "cpu" else "gpu"
    versions = ", ".join(f"{k} {v}" for k, v in sorted(newest["versions"].items()))
    notes = "; ".join(sorted({r["note"] for r in rows if r.get("note")}))
    lines = [f"## {device}", "", f"{versions}; commit {newest['commit']}. {notes}".strip(), ""]
    tasks = sorted({r["case"]["task"] for r in rows})
    groups = {
        task: found_of([r for r in rows if r["case"]["task"] == task and "judge" in r["case"]])
        for task in tasks
    }
    figure(groups, figures / f"quality-{stem}.svg")
    lines += [f"![F1 of each scheme minus Non-Shared](quality-{stem}.svg)", ""]
    for task in tasks:
        found = groups[task]
        for judge in ("engine", "definition"):
            r = next((r for (_, j, _, m), r in found.items() if j == judge and m == "f1"), None)
            if r is None:
                continue
            case = r["case"]
            how = (
                f"through the engine, {case['dtype']}" if judge == "engine" else "by the definitions, float64"
            )
            lines += [f"### {task}: {how}", ""]
            lines += [f"{case['questions']} questions, {case['seeds']} seed{'s' * (case['seeds'] > 1)}.", ""]
            lines += [*table(found, judge), ""]
        lines += [*roles_table([r for r in rows if r["case"]["task"] == task and "judge" in r["case"]])]
        lines += [check_line(found), *marks_table(found), ""]
    if similarity_figure(rows, figures / f"quality-similarity-{stem}.svg"):
        lines += ["### How alike the roles' caches are", ""]
        lines += [f"![Cosine by layer](quality-similarity-{stem}.svg)", "", *similarity_table(rows), ""]
    commands = sorted({r["command"] for r in rows})
    return [*lines, "Rows by " + ", ".join(f"`{c}`" for c in commands) + ".", ""]


def page(rows: Sequence[dict[str, Any]], figures: Path) -> str:
    """The whole page."""
    devices = sorted({r["device"] for r in rows}, key=lambda d: (d == "cpu", d))
    lines: list[str] = []
    for device in devices:
        lines += device_part(device, [r for r in rows if r["device"] == device], figures)
    if not lines:
        lines = ["Nothing has been measured yet.", ""]
    return TEXT.read_text().replace("<!-- results -->", "\n".join(lines).strip())


def main() -> None:
    PAGE.write_text(page(load(ROWS), PAGE.parent))
    print(f"wrote {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
