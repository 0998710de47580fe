"""`make soak` on a scripted engine, a minute and a half; `tests/engine/test_soak_engine.py` for as long."""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

from benchmarks.pressure.memory_samples import Samples, growth
from flashagents_runtime import GenerateRequest, Reply, ScriptedEngine
from flashagents_runtime.chat_tokenizer import ByteChatTokenizer
from helpers.soak import SCRIPT, load

soak = load()
KINDS = {
    *("chain", "fan", "call", "stream", "team"),
    *("cancelled", "left_early", "failing", "forgotten"),
}


@pytest.mark.long
async def test_forty_rounds_leave_nothing_and_memory_is_flat() -> None:
    """Of one seed: the very same allocations, each time."""
    run = soak.Soak(ScriptedEngine(soak.Forever()), ByteChatTokenizer(), True, 1, workflows=16)
    gc.collect()
    tracemalloc.start()
    samples = []
    try:
        for number in range(40):
            await run.round(number)
            gc.collect()
            samples.append(float(tracemalloc.get_traced_memory()[0]))
    finally:
        tracemalloc.stop()
    early, late = growth(samples)
    assert late - early < 64 << 10, f"{late - early:.0f} bytes more after the same number of workflows"
    assert set(run.done) == KINDS


SECONDS = 75


@pytest.mark.long
@pytest.mark.timeout(600)
def test_make_soak_for_more_than_a_minute(tmp_path: Path) -> None:
    """The command itself, in a process of its own; a slow machine does fewer rounds, and at least 12."""
    arguments = ["--seconds", str(SECONDS), "--seed", "3", "--out", "soak.jsonl"]
    done = subprocess.run(
        [sys.executable, SCRIPT, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "soak.jsonl").read_text())
    assert result["flat"] and result["rounds"][1] >= 12
    assert set(result["kinds"]) == KINDS and sum(result["kinds"].values()) == 24 * result["rounds"][1]
    assert "Traceback" not in done.stderr and "never retrieved" not in done.stderr


async def test_a_wrong_answer_is_found() -> None:
    """One token of one prompt changed on the way to the engine."""

    class Liar(ScriptedEngine):
        def _next_reply(self, request: GenerateRequest) -> Reply:
            return soak.reply_to(GenerateRequest(input_ids=[*request.input_ids[:-1], 0]))  # type: ignore[no-any-return]

    run = soak.Soak(Liar(), ByteChatTokenizer(), True, 1, workflows=16)
    with pytest.raises(soak.SoakError, match="was answered by"):
        for number in range(5):
            await run.round(number)
    await run.prefiller.close()
    await asyncio.sleep(0.05)
    gc.collect()


def test_growth_is_told() -> None:
    steady, held = [1e6] * 30, [1e8] * 30
    growing = [1e8 * (1 + i / 200) for i in range(30)]
    assert Samples(steady, held).is_flat()
    assert Samples(steady, held, held).is_flat()
    assert not Samples(steady, growing).is_flat()
    assert not Samples([1e6 + i * 3e5 for i in range(30)], held).is_flat()
    assert not Samples(steady, held, growing).is_flat()
    assert Samples(steady, held, growing).figures()["engine_ratio"] > 1.04
