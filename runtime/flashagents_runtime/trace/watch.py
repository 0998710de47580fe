"""Record the turns of agents that speak to an engine without a client of ours."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from time import monotonic

from ..engine import Engine
from ..types import Delta, GenerateRequest, Usage
from .events import Outcome, Turn, engine_name, record, recording
from .scope import current_scope


async def watch_turn(
    stream: AsyncGenerator[Delta, None],
    request: GenerateRequest,
    engine: Engine,
    *,
    agent: str = "",
    workflow: str = "",
) -> AsyncGenerator[Delta, None]:
    """Pass an engine's answer on unchanged, and record it as a turn when it ends, in whatever way.

    Args:
        stream: the answer, such as `engine.generate(request)` or `session.generate(request)`.
        request: what was asked.
        engine: who answers.
        agent: who speaks; by default what `scope` says.
        workflow: the same, of the workflow.
    """
    start, first, tokens = monotonic(), None, 0
    usage: Usage | None = None
    outcome: Outcome = "cancelled"
    error = ""
    try:
        async with aclosing(stream):
            async for delta in stream:
                if first is None and delta.token_ids:
                    first = monotonic()
                tokens += len(delta.token_ids)
                if delta.result is not None:
                    usage = delta.result.usage
                    outcome = "cancelled" if delta.result.finish_reason == "abort" else "done"
                yield delta
    except asyncio.CancelledError:
        raise
    except Exception as e:
        outcome, error = "failed", f"{type(e).__qualname__}: {e}"[:500]
        raise
    finally:
        if recording():
            scope = current_scope()
            usage = usage or Usage(prompt_tokens=len(request.input_ids), completion_tokens=tokens)
            record(
                Turn(
                    agent=agent or scope.agent,
                    workflow=workflow or scope.workflow,
                    engine=engine_name(engine),
                    rid=request.rid,
                    start=start,
                    first=first,
                    end=monotonic(),
                    outcome=outcome,
                    prompt=usage.prompt_tokens,
                    cached=usage.cached_tokens,
                    prewarmed=usage.prewarmed_tokens,
                    shared_in_turn=usage.shared_in_turn_tokens,
                    completion=usage.completion_tokens,
                    model="" if engine.info is None else engine.info.model,
                    error=error,
                )
            )


__all__ = ["watch_turn"]
