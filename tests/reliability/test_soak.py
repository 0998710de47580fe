"""`make soak`, for some seconds: the workflows, their checks, and that a run goes on where it had got to."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import sys
import tracemalloc
import types
from pathlib import Path

import pytest

from flashagents_runtime import GenerateRequest, Reply, ScriptedEngine
from flashagents_runtime.chat_tokenizer import ByteChatTokenizer

ROOT = Path(__file__).parents[2]


def load() -> types.ModuleType:
    path = list(sys.path)
    spec = importlib.util.spec_from_file_location("soak", ROOT / "scripts" / "soak.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    sys.path[:] = path
    return module


soak = load()


@pytest.mark.parametrize("seed", [1, 2])
async def test_forty_rounds_leave_nothing_and_memory_is_flat(seed: int) -> None:
    run = soak.Soak(ScriptedEngine(soak.Forever()), ByteChatTokenizer(), True, seed, workflows=16)
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
    early, late = soak.growth(samples)
    assert late - early < 64 << 10, f"{late - early:.0f} bytes more after the same number of workflows"
    assert set(run.done) == {
        *("chain", "fan", "call", "stream", "team"),
        *("cancelled", "left_early", "failing", "forgotten"),
    }


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
    assert soak.Samples(steady, held).is_flat()
    assert soak.Samples(steady, held, held).is_flat()
    assert not soak.Samples(steady, growing).is_flat()
    assert not soak.Samples([1e6 + i * 3e5 for i in range(30)], held).is_flat()
    assert not soak.Samples(steady, held, growing).is_flat()
    assert soak.Samples(steady, held, growing).figures()["engine_ratio"] > 1.04
