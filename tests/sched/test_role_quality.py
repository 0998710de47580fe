"""Roles are trained and the schemes measured, all small: a tiny model, a real scheduler, the definitions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.role_quality import define, prepare, similarity, summarise, train
from benchmarks.role_quality.cells import Cell, cells
from benchmarks.role_quality.judge import Ask, Said
from benchmarks.role_quality.measure import Task, measure
from helpers.sharing_harness import SharingHarness
from helpers.tiny_roles import tiny_text_model

pytestmark = pytest.mark.engine

VOCABULARY = 512
NOISE = 2e-3
"""Nats of a turn; an adapter changes them by tenths."""


class HarnessJudge:
    """What `EngineJudge` asks of an engine, asked of a scheduler in this process."""

    def __init__(self, harness: SharingHarness, end: int) -> None:
        self.harness, self.end, self.asked = harness, end, 0
        self.cached = 0

    def turns(self, asks: Sequence[Ask]) -> list[Said]:
        answers = self._all(asks, lambda a: (a.ids[: a.start], a.longest, {"logprob_start_len": None}))
        self.cached += sum(answer.cached for answer, _ in answers)
        scored = self._all(
            asks,
            lambda a: (
                [*a.ids, self.end],
                1,
                {"logprob_start_len": a.start - 1, "top_logprobs": VOCABULARY},
            ),
        )
        out = []
        for ask, (answer, _), (score, req) in zip(asks, answers, scored, strict=True):
            ids = answer.ids
            wanted = len(ask.ids) - ask.start + 1
            found = req.logprob
            tops = zip(found.input_top_logprobs_idx, found.input_top_logprobs_val, strict=True)
            out.append(
                Said(
                    ids[: ids.index(self.end)] if self.end in ids else ids,
                    score.input_logprobs[-wanted:],
                    [dict(zip(i, v, strict=True)) for i, v in list(tops)[-wanted:]],
                )
            )
        return out

    def _all(self, asks: Sequence[Ask], what: Any) -> list[Any]:
        rids = []
        for ask in asks:
            ids, n, more = what(ask)
            rids.append(f"r{self.asked:05}")
            self.asked += 1
            salt = f"trajectory {ask.key}"
            self.harness.submit(self.harness.request(rids[-1], ask.role, ids, n, cache_salt=salt, **more))
        self.harness.run()
        return [(self.harness.answer(rid), self.harness.reqs[rid]) for rid in rids]


@pytest.fixture(scope="module")
def text_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_text_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def work(text_model: Path, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Adapters of both sets, trained on the task of code words, and the definitions' records."""
    work = tmp_path_factory.mktemp("work")
    torch.set_num_threads(1)  # as the scheduler's harness does: what is so small is slower on more
    prepare.main(["--work", str(work), "--facts", "12", "2"])
    common = ["--work", str(work), "--model", str(text_model), "--seeds", "0"]
    sizes = ["--max-pairs", "16", "--epochs", "2", "--learning-rate", "0.02", "--batch-size", "4"]
    train.main([*common, *sizes, "--micro-batch", "4", "--rank", "4", "--cpu"])
    define.main([*common, "--questions", "2"])
    similarity.main([*common, "--texts", "2"])
    return work


def test_the_schemes_are_measured(text_model: Path, work: Path, tmp_path: Path) -> None:
    task = Task(work, "facts", text_model)
    cached = {}
    for variant in ("none", "full", "base_lr"):
        cell = Cell("facts", "engine", variant, "shared", 0)
        with SharingHarness(text_model, variant, cell.folders(work)) as harness:
            judge = HarnessJudge(harness, task.end)
            measure(cell, judge, task, work, batch=2)
            cached[variant] = judge.cached
    assert cached["full"] == cached["base_lr"] > 1.5 * cached["none"]

    out = tmp_path / "rows.jsonl"
    summarise.main(["--work", str(work), "--seeds", "0", "--dtype", "float32", "--out", str(out)])
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    found = {
        (r["variant"], r["case"].get("judge"), r["case"]["adapters"], r["metric"]): r
        for r in rows
        if r["case"].get("role") == "all"
    }
    for variant in cached:  # the scheduler does what the definition says
        assert found[variant, "both", "shared", "nll_from_definition"]["mean"] < NOISE
        if variant != "none":
            kls = [found[variant, judge, "shared", "kl"]["mean"] for judge in ("engine", "definition")]
            assert kls[0] == pytest.approx(kls[1], abs=NOISE) and kls[1] > 10 * NOISE
    defined = {c.variant for c in cells("definition", "facts", [0])}
    assert {v for v, judge, _, _ in found if judge == "definition"} == defined
    # With one A the roles' rows are each other's; without, only the definition can be asked.
    assert ("base_lr", "definition", "own", "kl") not in found
    assert found["base_lr_own", "definition", "own", "kl"]["mean"] > 0
    cosines = {r["case"]["part"] for r in rows if r["metric"] == "cosine"}
    assert cosines == {"key", "base", "row", "added"}
    layers = [r for r in rows if r["metric"] == "cosine" and r["case"]["adapters"] == "shared"]
    first = {r["case"]["part"]: r["p50"] for r in layers if r["case"]["layer"] == 0}
    assert first["base"] == first["key"] == first["row"] == 1.0  # layer 0 reads the same embeddings
    assert first["added"] < 0.99


def test_without_a_shared_a_base_lr_is_refused(text_model: Path, work: Path) -> None:
    own = Cell("facts", "engine", "base_lr", "own", 0).folders(work)
    plan = {"plan": own["plan"]}
    with SharingHarness(text_model, "base_lr", plan, {"team": ["plan", "action"]}) as harness:
        result = harness.load("action", own["action"])
        assert not result.success
        assert "'action' does not fit its sharing group 'team'" in result.error_message
        assert "train-roles --shared-a" in result.error_message
