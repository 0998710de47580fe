"""The paper's benchmarks, without an engine: lengths, cells, slices and the page."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest

from flashagents_runtime.handoff import CutRules

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT), *sys.path])


def test_what_the_model_decodes_has_as_many_tokens_in_the_next_prompt() -> None:
    from benchmarks.paper.word_model import Texts, tokenizer

    made = tokenizer(8192)
    rng = random.Random(0)
    ids = [rng.randrange(300, 8192) for _ in range(500)]
    assert made.encode(made.decode(ids), add_special_tokens=False).ids == ids
    assert len(made.encode(Texts("tiny", 1).of(123), add_special_tokens=False).ids) == 123
    assert CutRules(made).reason is None, "it can be tokenised while it grows"


def test_the_cascade_has_the_papers_cells_and_its_core_is_measured_more_often() -> None:
    from benchmarks.paper.cascade.cells import cascade

    cells = list(cascade(5))
    assert len({(c.prefix, c.output, c.concurrency) for c in cells}) == len(cells) == 80
    assert [c.repeats for c in cells] == [5] * 24 + [1] * 56


def test_a_slice_passes_over_what_its_file_has_and_stops_in_time(tmp_path: Path) -> None:
    from benchmarks.paper.slices import Slice
    from benchmarks.rows import row

    path, shared = tmp_path / "rows.jsonl", {"device": "cpu"}
    case: dict[str, Any] = {"output": 1, "concurrency": 1}

    async def measure(seconds: float) -> list[bool]:
        out = Slice(path, shared, seconds)
        found = []
        for n in (1, 2):
            of = {**case, "concurrency": n}
            if out.missing(of, ["ours"]):
                async with out.timed(of, 1) as fits:
                    found.append(fits)
                    if fits and n == 1:
                        out.add([row("paper_x", "ours", of, "end_ms", [1.0], shared)])
        return found

    assert asyncio.run(measure(1e9)) == [True, True]
    assert asyncio.run(measure(1e9)) == [True], "the first is there"
    assert asyncio.run(measure(-1)) == [False]
    assert len(path.read_text().splitlines()) == 1


def test_a_trace_keeps_its_bursts_and_comes_once_a_second(tmp_path: Path) -> None:
    from benchmarks.paper.load.arrivals import Arrival, from_trace, made_up

    path = tmp_path / "trace.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6800000,374,44\n"
        "2023-11-16 18:15:46.7800000,9000,900\n"
        "2023-11-16 18:15:50.6800000,396,1\n"
    )
    cuts = {"longest_task": 3000, "longest_answer": 256}
    found = from_trace(path, 3, **cuts)
    assert found == [Arrival(0.0, 374, 44), Arrival(pytest.approx(0.05), 3000, 256), Arrival(2.0, 396, 8)]
    with pytest.raises(ValueError, match=r"trace\.csv has 3 requests, 4 are asked for"):
        from_trace(path, 4, **cuts)
    assert made_up(9, 1, **cuts) == made_up(9, 1, **cuts) != made_up(9, 2, **cuts)


def test_ours_is_compared_with_the_fastest_stock_variant_of_the_cell() -> None:
    from benchmarks.paper.report import table

    def row(variant: str, p50: float) -> dict[str, Any]:
        figures = {"p20": p50, "p50": p50, "p80": p50, "n": 1}
        return {"variant": variant, "case": {"concurrency": 1}, "metric": "end_ms", **figures}

    rows = [row("stock-fcfs", 30), row("stock-lpm", 20), row("stock-lpm, heads warm", 1), row("ours", 10)]
    line = table(rows, ["concurrency"], "end_ms")[-1]
    assert line.endswith("| 2.00 |")


def test_the_page_is_what_the_rows_say() -> None:
    from benchmarks.paper.report import DOC, page

    assert DOC.read_text() == page()


def test_rows_name_what_was_run() -> None:
    for path in (ROOT / "benchmarks/results").glob("paper_*.jsonl"):
        for line in path.read_text().splitlines():
            row = json.loads(line)
            assert row["command"].startswith("python benchmarks/paper/") and row["commit"] != "unknown"


def test_the_large_shape_is_what_its_name_says_and_fits_on_four_gpus() -> None:
    from benchmarks.handoff.model import SHAPES
    from benchmarks.paper.memory import kv_bytes, parameters, tokens

    assert parameters(SHAPES["qwen3-235b-a22b"]) == pytest.approx(235e9, rel=0.01)
    assert parameters(SHAPES["qwen2.5-7b"]) == pytest.approx(7.6e9, rel=0.01)
    assert kv_bytes(SHAPES["qwen2.5-7b"], 1) == 57344
    assert kv_bytes(SHAPES["qwen3-235b-a22b"], 8) == kv_bytes(SHAPES["qwen3-235b-a22b"], 4), "four KV heads"
    assert tokens(SHAPES["qwen3-235b-a22b"], 2, gib=139) == 0
    assert tokens(SHAPES["qwen3-235b-a22b"], 4, gib=139) > 8 * (4000 + 2048), "the largest cell"
