"""The pure parts of the paper's programs: jobs, hash-id prompts, chunks, fairness, adapters."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from flashagents_runtime import ScriptedEngine

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT), *sys.path])


def test_jobs_are_of_all_kinds_in_an_order_that_the_seed_gives() -> None:
    from benchmarks.paper.sjf.jobs import KINDS, jobs, nearest_rank

    some = jobs(9, 1)
    assert Counter(job.kind for job in some) == dict.fromkeys(KINDS, 3)
    assert some == jobs(9, 1) != jobs(9, 2)
    assert {job.upstream for job in jobs(3, 1, scale=16)} == {2, 8, 32}
    assert nearest_rank([3.0, 1.0, 2.0], 0.99) == 3.0
    assert nearest_rank([float(i) for i in range(1, 101)], 0.99) == 99.0


def test_jobs_wait_for_one_another_and_each_is_timed() -> None:
    from benchmarks.paper.sjf.run import at_once, figures

    running, most = 0, 0

    async def do() -> None:
        nonlocal running, most
        running, most = running + 1, max(most, running + 1)
        await asyncio.sleep(0)
        running -= 1

    times = asyncio.run(at_once(2, [("short", do), ("long", do), ("long", do)]))
    assert most == 2 and sorted(kind for kind, _ in times) == ["long", "long", "short"]
    found = figures([[("short", 1.0), ("long", 3.0)], [("long", 5.0)]])
    assert found["job_mean_ms"] == [2000, 5000] and found["job_p99_ms"] == [3000, 5000]
    assert found["short_mean_ms"] == [1000] and found["medium_mean_ms"] == []


def trace() -> dict[str, Any]:
    """Two turns, a sub-agent's one, and a last turn."""

    def request(hashes: list[int], out: int, think: float = 0.0) -> dict[str, Any]:
        return {"type": "n", "in": 64 * len(hashes), "out": out, "hash_ids": hashes, "think_time": think}

    helper = {"type": "subagent", "agent_id": "agent_001", "requests": [request([90, 91], 40)]}
    turns = [request([1, 2, 3], 80), request([1, 2, 3, 4, 5], 4000, 3.0), helper]
    return {
        "id": "t",
        "block_size": 64,
        "tool_tokens": 64,
        "system_tokens": 10,
        "requests": [*turns, request([1, 2, 3, 4, 5, 6], 8, 0.25)],
    }


def test_hash_ids_say_what_turns_share_and_where_an_answer_stands() -> None:
    from benchmarks.paper.load.agentic import Fit, workflow

    turns = workflow(trace(), Fit())
    assert [t.agent for t in turns] == ["agent_0", "agent_1", "agent_001", "agent_0"]
    assert [len(t.prompt) for t in turns] == [24, 40, 16, 48], "eight tokens a block"
    assert [t.known for t in turns] == [0, 24, 0, 40]
    assert [t.answer for t in turns] == [10, 256, 5, 4]
    assert [t.said for t in turns] == [0, 10, 16, 5], "as many tokens as the answer before has, if they fit"
    assert [t.wait for t in turns] == [0.0, 0.5, 0.0, 0.25]
    first, second, _, last = turns
    assert second.prompt[8:24] == first.prompt[8:], "but for the agents' own heads"
    assert second.prompt[:8] != first.prompt[:8]
    assert last.prompt[:24] == first.prompt
    assert workflow(trace(), Fit()) == turns
    other = workflow(trace(), Fit(), copy=1)
    assert other[0].prompt[:8] == first.prompt[:8] and other[0].prompt[8:] != first.prompt[8:]


def test_a_workflow_ends_where_it_would_not_fit() -> None:
    from benchmarks.paper.load.agentic import Fit, workflow

    assert len(workflow(trace(), Fit(turns=2))) == 2
    assert len(workflow(trace(), Fit(longest_prompt=30))) == 1
    with pytest.raises(ValueError, match="64 tokens, which 7 does not divide"):
        workflow(trace(), Fit(divide=7))


def test_traces_are_used_again_where_more_workflows_are_asked_for(tmp_path: Path) -> None:
    from benchmarks.paper.load.agentic import Fit, load

    (tmp_path / "a.json").write_text(json.dumps(trace()))
    found = load(tmp_path, 3, Fit())
    assert len(found) == 3 and found[0][0].prompt != found[1][0].prompt
    with pytest.raises(ValueError, match="no trace"):
        load(tmp_path, 1, Fit(turns=1))


@pytest.mark.long
def test_a_replay_sends_the_traces_prompts_and_warms_what_becomes_known() -> None:
    from benchmarks.paper.load.agentic import Fit, workflow
    from benchmarks.paper.load.flows import Replay

    turns = workflow(trace(), Fit(divide=1, longest_wait=0.0, longest_answer=40))

    async def requests(overlap: bool) -> list[Any]:
        engine: Any = ScriptedEngine(["x" * 40] * len(turns))
        replay = Replay([turns])
        served = await replay.one(engine, overlap, 0)
        await replay.close()
        assert served.tokens == sum(t.answer for t in turns)
        found: list[Any] = engine.requests
        await engine.close()
        return found

    plain = asyncio.run(requests(False))
    assert [r.input_ids for r in plain] == [t.prompt for t in turns]
    with_overlap = asyncio.run(requests(True))
    real = [r for r in with_overlap if r.sampling.max_new_tokens]
    assert [r.input_ids for r in real] == [t.prompt for t in turns]
    warm_ups = [r for r in with_overlap if r.sampling.max_new_tokens == 0]
    assert warm_ups
    for warm_up in warm_ups:
        assert any(t.prompt[: len(warm_up.input_ids)] == warm_up.input_ids for t in turns)


def test_chunks_read_the_kv_before_them_again() -> None:
    from benchmarks.paper.overhead.chunks import read_again, share, starts

    assert list(starts(10, 5, 2)) == [(10, 2), (12, 2), (14, 1)]
    assert read_again(0, 4096, 4096) == 0
    assert read_again(0, 4096, 1024) == 1024 + 2048 + 3072
    assert read_again(100, 4096, 2048) == 100 + 2048, "one pass reads the cached ones once, too"
    assert share(1000, 57344, 57344e6, 0.1) == pytest.approx(1.0)


def test_fairness_is_jains_index() -> None:
    from benchmarks.paper.load.run import fairness

    assert fairness([5.0, 5.0, 5.0]) == pytest.approx(1.0)
    assert fairness([9.0, 0.0, 0.0]) == pytest.approx(1 / 3)


@pytest.mark.long
def test_random_adapters_fit_their_model_and_can_share(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    from benchmarks.handoff.model import SHAPES
    from benchmarks.model_config import write_config
    from benchmarks.random_adapters import RANK, write_adapter
    from flashagents_runtime.adapter_check import check_adapter

    model = write_config(tmp_path / "tiny", "qwen2", SHAPES["tiny"])
    folders = [write_adapter(model, number) for number in (0, 1)]
    for folder in folders:
        check_adapter(folder.name, str(folder), str(model))
    one, other = (load_file(folder / "adapter_model.safetensors") for folder in folders)
    name = "base_model.model.model.layers.0.self_attn.{}.weight"
    assert one[name.format("v_proj.lora_A")].shape == (RANK, 64)
    assert one[name.format("v_proj.lora_A")].equal(other[name.format("v_proj.lora_A")])
    assert not one[name.format("v_proj.lora_B")].equal(other[name.format("v_proj.lora_B")])
    assert write_adapter(model, 0) == folders[0]
