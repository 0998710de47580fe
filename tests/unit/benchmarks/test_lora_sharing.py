"""The benchmark of the sharing schemes, without an engine: trace, plan, slices and page."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flashagents_runtime import GenerateRequest, ScriptedEngine
from flashagents_runtime.scripted import Reply

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT), *sys.path])


# ---- the trace


@pytest.mark.parametrize("overlap", [0, 20, 60, 100])
def test_so_much_of_the_context_is_read_by_all(overlap: int) -> None:
    from benchmarks.lora_sharing.trace import Conversation, common_tokens, steps, tokens_of

    trace = steps(100, 3)
    talk, read = Conversation(trace, overlap, 7, 500), dict[int, list[int]]()
    for step in trace:
        read[step.role] = talk.prompt(step)
        talk.answer(step, [1] * step.answer)
    common, length = common_tokens(trace, overlap), tokens_of(trace)
    plan, reflect = read[0], read[2]
    assert len(reflect) == length - trace[-1].answer
    assert plan[:common] == reflect[:common][: len(plan)]
    if common < len(plan):
        assert plan[common : common + 20] != reflect[common : common + 20]
    again = Conversation(trace, overlap, 7, 500)
    assert again.prompt(trace[0]) == reflect[: trace[0].new] or overlap < 100


def test_the_trace_is_lragents() -> None:
    from benchmarks.lora_sharing.trace import CONTEXTS, steps, tokens_of

    for name, document in CONTEXTS.items():
        assert len(steps(document, 3)) == 17
        assert tokens_of(steps(document, 3)) == pytest.approx(1e3 * float(name[:-1]), rel=0.03)
    assert {step.role for step in steps(250, 16)} == set(range(16))


# ---- the plan


def test_what_has_to_be_computed_is_reckoned_to_the_token() -> None:
    from benchmarks.lora_sharing.cells import Cell
    from benchmarks.lora_sharing.reckon import work
    from benchmarks.lora_sharing.trace import CONTEXTS, steps

    cell, endless = Cell("33.7k"), 10**9
    new = sum(step.new for step in steps(CONTEXTS["33.7k"], 3))
    answers = sum(step.answer for step in steps(CONTEXTS["33.7k"], 3))
    assert work("floor", cell, endless).computed == work("base_lr", cell, endless).computed == new
    alone = work("none", cell, endless)
    # Action and reflect read what the others have said as well as what all are told.
    assert 3 * new - 100 < alone.computed < 3 * (new + answers)
    assert work("base", cell, endless).computed == alone.computed, "it passes over all of it, for its rows"
    assert work("none", Cell("33.7k", overlap=0), endless).computed == alone.computed
    assert work("floor", Cell("33.7k", overlap=0), endless).computed == alone.computed, "nothing is shared"
    assert work("none", Cell("33.7k", roles=1), endless).computed == new
    thrashing = work("none", Cell("33.7k", 8), 340_000)
    assert thrashing.evicted > 0
    assert thrashing.computed > 8 * alone.computed
    assert work("base_lr", Cell("33.7k", 8), 340_000).evicted == 0


def test_groups_fit_on_the_gpu_and_sharing_fits_into_their_pools() -> None:
    from benchmarks.lora_sharing.cells import GROUPS
    from benchmarks.lora_sharing.reckon import MEMORY, fits, memory

    for group in GROUPS.values():
        assert memory(group) < 0.93 * MEMORY, group.name
        for cell in group.cells:
            assert fits(cell, group.pool), f"{group.name}: {cell}"
            assert cell.roles <= group.members or cell.roles == 3
    cells = {str(cell) for group in GROUPS.values() for cell in group.cells}
    for wanted in (
        "33.7k x 1, 3",
        "66.4k x 1, 3",
        "33.7k x 8, 3",
        "66.4k x 8, 3",
        "33.7k x 1, 16",
        "128k x 1",
    ):
        assert any(name.startswith(wanted) for name in cells), wanted


def test_the_plan_says_what_is_there_and_how_long_the_rest_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from benchmarks.lora_sharing.cells import GROUPS, case
    from benchmarks.lora_sharing.run import parse, plan
    from benchmarks.paper.slices import Slice
    from benchmarks.rows import append, row

    group, path, shared = GROUPS["shared"], tmp_path / "rows.jsonl", {"device": "NVIDIA H200"}
    first = case(group.cells[0], group.pool, "llama-3.1-8b", 8)
    append(path, [row("lora_sharing", v, first, "x", [1.0], shared) for v in ("none", "floor", "full")])
    args = parse(["--plan", "--group", "shared"])
    plan(args, Slice(path, shared, 560))
    assert "is there" not in capsys.readouterr().out, "base_lr is missing"
    append(path, [row("lora_sharing", "base_lr", first, "x", [1.0], shared)])
    plan(args, Slice(path, shared, 560))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines if "33.7k x 1, 3 roles, 100%" in line] == [["is", "there"]]
    assert sum("until" in line for line in lines) == len(group.cells) - 1
    plan(args, Slice(path, shared, 560, again=True))
    assert "is there" not in capsys.readouterr().out
    with pytest.raises(SystemExit):
        parse(["--group", "shard"])


# ---- measuring


class Scripted(ScriptedEngine):
    """Says as many tokens as it is asked for; `shares`: all adapters have one namespace."""

    def __init__(self, pool: int, shares: bool) -> None:
        def say(request: GenerateRequest) -> Reply:
            count = request.sampling.max_new_tokens or 0
            return Reply(text=["x"] * count, token_ids=[[5 + i] for i in range(count)])

        def endless() -> Iterator[Any]:
            while True:
                yield say

        super().__init__(endless(), max_total_tokens=pool, context_length=100_000)
        self.shares = shares

    def generate(self, request: GenerateRequest) -> Any:
        fields = {name: getattr(request, name) for name in ("input_ids", "sampling")}
        lora = None if self.shares else request.lora
        return super().generate(GenerateRequest(lora=lora, **fields))

    async def internal_state(self) -> dict[str, Any]:
        return {"flashagents": {"features": {}}}


async def trials(out: Any, *more: str, engines: dict[str, Scripted] | None = None) -> None:
    from benchmarks.lora_sharing.run import Trials, asked, parse

    args = parse(["--cpu", "--group", "shared", "--repeats", "2", *more])
    (group,) = asked(args)
    if engines is None:
        engines = {name: Scripted(group.pool, name != "none") for name in group.engines}
    for engine in engines.values():
        await engine.start()
    await Trials(args, group, engines).run(out)  # type: ignore[arg-type]


@pytest.mark.long
def test_a_run_writes_what_was_measured_and_is_gone_on_with(tmp_path: Path) -> None:
    from benchmarks.lora_sharing.cells import Cell
    from benchmarks.lora_sharing.measured import load, sections
    from benchmarks.lora_sharing.reckon import work
    from benchmarks.lora_sharing.run import CPU_SCALE
    from benchmarks.paper.slices import Slice
    from benchmarks.rows import common

    path = tmp_path / "rows.jsonl"
    out = Slice(path, common(), 1e9)
    asyncio.run(trials(out, "--cells", "33.7k x 1, 3 roles, 60%"))
    ((_, (cell,)),) = sections(load(path)).items()
    for variant in ("none", "floor", "full", "base_lr"):
        want = work(variant, Cell("33.7k", overlap=60), 10**9, scale=CPU_SCALE).computed
        assert cell.p50(variant, "tokens_computed") == want
        assert cell.p50(variant, "ttft_step_16_ms") > 0
    before = path.read_text()
    asyncio.run(trials(Slice(path, common(), 1e9), "--cells", "33.7k x 1, 3 roles, 60%"))
    assert path.read_text() == before, "it is there"
    asyncio.run(trials(Slice(path, common(), 1e9), "--cells", "33.7k x 1, 1 roles"))
    assert len(path.read_text()) > len(before)
    assert {row["commit"] for row in load(path)} == {common()["commit"]}


def test_no_cell_is_begun_that_would_end_too_late(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from benchmarks.paper.slices import Slice
    from benchmarks.rows import common

    path = tmp_path / "rows.jsonl"
    asyncio.run(trials(Slice(path, common(), -1), "--cells", "33.7k x 1, 1 roles"))
    assert not path.exists()
    assert "no time for 33.7k x 1, 1 roles, 100%" in capsys.readouterr().out


async def test_engines_with_another_pool_than_the_rows_would_say_are_refused(tmp_path: Path) -> None:
    from benchmarks.paper.slices import Slice
    from benchmarks.rows import common

    with pytest.raises(RuntimeError, match="none has a pool of 100 tokens, not"):
        await trials(Slice(tmp_path / "x", common(), 1e9), engines={"none": Scripted(100, False)})


def test_what_runs_took_is_what_the_next_ones_are_expected_to_take() -> None:
    from benchmarks.lora_sharing.run import Pace

    pace = Pace()
    assert pace.of("none") == 1.25
    pace.learn("floor", 0.5)
    assert pace.of("none") == 0.5, "better than nothing"
    for ratio in (9.0, 0.8, 0.9, 0.7, 0.8):
        pace.learn("none", ratio)
    assert pace.of("none") == 0.9, "what was compiled at first is forgotten"
    pace.learn("none", 9.0)
    assert pace.of("none") == 2.0


# ---- the page


def rows_of(
    figures: dict[str, dict[str, float]], run: str, roles: int = 3, context: str = "33.7k"
) -> list[dict[str, Any]]:
    from benchmarks.lora_sharing.cells import Cell, case
    from benchmarks.rows import row

    shared = {"device": "X", "commit": "c", "versions": {"sglang": "1"}, "command": "python x", "run": run}
    of = case(Cell(context, roles=roles), 190_000, "llama-3.1-8b", 8)
    steps = {f"ttft_step_{i:02}_ms": 1.0 for i in range(17)}
    return [
        row("lora_sharing", variant, of, metric, [value], shared)
        for variant, metrics in figures.items()
        for metric, value in (
            {"tokens_computed": 9.0, "kv_tokens": 10.0, "kv_bytes": 10.0} | steps | metrics
        ).items()
    ]


def test_ratios_are_of_what_ran_side_by_side(tmp_path: Path) -> None:
    from benchmarks.lora_sharing.report import page

    path = tmp_path / "rows.jsonl"
    first = rows_of(
        {
            "none": {"ttft_sum_ms": 300, "throughput": 100},
            "floor": {"ttft_sum_ms": 100, "throughput": 200},
            "full": {"ttft_sum_ms": 104, "throughput": 196},
            "base_lr": {"ttft_sum_ms": 105, "throughput": 180},
        },
        "1",
    )
    # Everything is twice as slow in the second run.
    second = rows_of(
        {
            "none": {"ttft_sum_ms": 600, "throughput": 50},
            "floor": {"ttft_sum_ms": 200, "throughput": 100},
            "precomputed": {"ttft_sum_ms": 220, "throughput": 90, "kv_bytes": 10.0 * (1 + 3 * 8 / 2048)},
        },
        "2",
    )
    path.write_text("\n".join(json.dumps(r) for r in first + second) + "\n")
    text = page(path)
    line = next(line for line in text.splitlines() if "| base_lr | 105 |" in line)
    assert "| base_lr | 105 | 2.86 | 3.00 | 95.2% | 180 | 1.80 | 2.00 | 90.0% | 9 | 1.000 |" in line
    assert "| `base_lr`: TTFT, of the bound | at least 0.9 | 1 of 1 | 0.952 |  |" in text
    assert (
        "| `base_lr`: tokens/s, of the bound | at least 0.95 | 0 of 1 | 0.900 | 33.7k x 1, 3 roles: 0.900 |"
        in text
    )
    assert "| `precomputed`: TTFT, of `base_lr` | at least 0.95 | 1 of 1 | 0.955 |" in text
    assert "| `precomputed`: bytes kept, over `1 + N r/(2 Hkv d)` | 1 within 0.01 | 1 of 1 | 1.000 |" in text
    assert "| `base`: tokens/s over `none` | at least 1 | not measured |" in text
    assert "Measured: 1 of" in text
    assert "| 33.7k | 100% | 1.80 | 2.46 |" in text
    assert "TTFT of each step, ms, at 33.7k:" in text


def test_one_role_is_held_against_stock(tmp_path: Path) -> None:
    from benchmarks.lora_sharing.report import page

    path = tmp_path / "rows.jsonl"
    found = rows_of(
        {
            "none": {"ttft_sum_ms": 100, "throughput": 100},
            "base_lr": {"ttft_sum_ms": 104, "throughput": 90},
        },
        "1",
        roles=1,
    )
    path.write_text("\n".join(json.dumps(r) for r in found) + "\n")
    text = page(path)
    assert "| one role: TTFT over stock, of the kernels' bound | at least 0.99 | 1 of 1 |" in text
    assert "| one role: tokens/s over stock, of the kernels' bound | at least 0.99 | 0 of 1 |" in text


def test_the_slices_script_hands_its_arguments_on(tmp_path: Path) -> None:
    import subprocess

    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin/python3"
    python.write_text('#!/bin/sh\necho "$@"\necho "commit $COMMIT path $PYTHONPATH"\n')
    python.chmod(0o755)
    script = ROOT / "benchmarks/lora_sharing/gpu.sh"
    done = subprocess.run(
        [str(script), str(tmp_path / "out"), "abc123", "500", "shared,large", "--repeats", "1"],
        env={**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "bounded.py 530 python3" in done.stdout
    assert "--group shared,large --repeats 1 --budget-seconds 500 --out" in done.stdout
    assert "commit abc123" in done.stdout
    assert str(ROOT / "runtime") in done.stdout
