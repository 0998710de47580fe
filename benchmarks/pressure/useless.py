"""Prefill sessions that help nobody, for as long as the context lasts."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from flashagents_runtime.handoff import Prefiller

Ids = Callable[[random.Random, int], list[int]]
"""Random token ids, so many."""


async def wrong(prefiller: Prefiller, rng: random.Random, pool: int, ids: Ids) -> None:
    """A new session for a prompt that never comes, again and again; none is ever closed."""
    while True:
        session = prefiller.open()
        session.extend(ids(rng, rng.randint(pool // 64, pool // 16)))
        session.flush()
        await session.settle()
        await asyncio.sleep(rng.random() * 0.05)


async def huge(prefiller: Prefiller, rng: random.Random, pool: int, ids: Ids) -> None:
    """Prompts of nearly half of the pool."""
    while True:
        session = prefiller.open()
        session.extend(ids(rng, pool * 2 // 5))
        session.flush()
        await session.settle()
        await asyncio.sleep(rng.random() * 0.2)


async def endless(prefiller: Prefiller, rng: random.Random, pool: int, ids: Ids) -> None:
    """An upstream agent that says eight tokens every 20 ms and never comes to an end."""
    while True:
        session = prefiller.open()
        for _ in range(pool // 2 // 8):
            session.extend(ids(rng, 8))
            await asyncio.sleep(0.02)


KINDS: dict[str, Callable[[Prefiller, random.Random, int, Ids], Coroutine[Any, Any, None]]] = {
    "wrong": wrong,
    "huge": huge,
    "endless": endless,
}
_AT_ONCE = {"wrong": 8, "huge": 2, "endless": 8}


@contextlib.asynccontextmanager
async def useless(
    prefiller: Prefiller, kind: str, rng: random.Random, pool: int, ids: Ids
) -> AsyncIterator[None]:
    """Several of a kind at once."""
    tasks = [
        asyncio.create_task(KINDS[kind](prefiller, random.Random(rng.random()), pool, ids))
        for _ in range(_AT_ONCE[kind])
    ]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        await prefiller.close()
        for error in ended:
            if isinstance(error, Exception):
                raise error
