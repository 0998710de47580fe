"""A minute and a half of `make soak` on the run's real engine; `tests/reliability/test_soak.py` has the rest.

The engine was started with FLASHAGENTS_CHECK=1 (`session_engine`): its scheduler checks cache, pool and locks
whenever it is idle, and dies of what it finds.
"""

from __future__ import annotations

import tracemalloc

from flashagents_runtime.chat_tokenizer import load_chat_tokenizer
from flashagents_runtime.embedded import EmbeddedEngine
from helpers.soak import load

soak = load()
SECONDS = 90
LEAST_ROUNDS = 9


async def test_random_workflows_leave_nothing_and_memory_is_flat(
    real_engine: EmbeddedEngine, model_path: str
) -> None:
    run = soak.Soak(real_engine, load_chat_tokenizer(model_path), False, 5, workflows=3)
    tracemalloc.start()
    try:
        rounds, samples = await soak.run(run, seconds=SECONDS, least=LEAST_ROUNDS)
    finally:
        tracemalloc.stop()
    assert rounds >= LEAST_ROUNDS and sum(run.done.values()) == 3 * rounds
    assert len(samples.engine) == rounds, "the engine's processes were not seen"
    assert samples.is_flat(), samples.figures()
