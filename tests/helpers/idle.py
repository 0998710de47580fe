"""Waiting until an engine does nothing more."""

from __future__ import annotations

import asyncio

import pytest

from flashagents_runtime.engine import Engine


async def settle(engine: Engine, seconds: float = 60) -> None:
    """Wait until no request runs, waits or holds KV; fails after `seconds`.

    A prefill pass that runs is not interrupted by an abort, and SGLang's own warm-up request may come late.
    """
    state = None
    try:
        async with asyncio.timeout(seconds):
            while (state := await engine.state()).running or state.waiting or state.kv_used:
                await asyncio.sleep(0.05)
    except TimeoutError:
        pytest.fail(f"the engine does not come to rest: {state}")
