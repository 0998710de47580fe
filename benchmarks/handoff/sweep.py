"""New tokens on a cached prefix, in chunks of several sizes: what chunks cost above one pass."""

from __future__ import annotations

import asyncio
from time import perf_counter

from flashagents_runtime import Engine, GenerateRequest
from flashagents_runtime.handoff import Prefiller

from .conversation import tokens

_RATE = 1000.0  # tokens a second that come while the sizer decides


async def chunk_times(
    engine: Engine, prefiller: Prefiller, ids: list[int], new: int, size: str
) -> tuple[float, int]:
    """Seconds that the chunks over the last `new` tokens took in all, and how many there were.

    Args:
        prefiller: has learnt the engine's curve.
        ids: a prompt; all but its last `new` tokens are cached when this returns, and before it counts.
        size: tokens a chunk, "one pass", or "sizer".
    """
    head, rest = ids[:-new], ids[-new:]
    async for _ in engine.generate(GenerateRequest(input_ids=head, sampling=tokens(0))):
        pass
    step = new if size == "one pass" else None if size == "sizer" else int(size)
    session = prefiller.open(chunk_size=step)
    try:
        session.rebase(head)
        session.learn(head)  # it is warm
        if step is not None:
            for at in range(0, new, step):
                session.extend(rest[at : at + step])
                session.flush(always=True)
                await session.settle()
        else:
            began = perf_counter()
            for at in range(0, new, 8):
                await asyncio.sleep(max(began + at / _RATE - perf_counter(), 0))
                session.extend(rest[at : at + 8])
            session.flush(always=True)
            await session.settle()
        return session.figures.seconds, session.figures.chunks
    finally:
        await session.close()
