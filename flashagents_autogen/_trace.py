"""What the client tells a trace: each answer, and the tools that ran before it."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict

from flashagents_runtime import Engine
from flashagents_runtime.trace import Outcome, ToolRun, Turn, engine_name, record, recording

from ._account import Account
from ._call import Call
from ._whose_call import whose_call

_MOST_CALLS = 4096
_calls: OrderedDict[str, tuple[str, float]] = OrderedDict()  # tool calls without a result: (tool, since)


def trace_turn(engine: Engine, call: Call, account: Account) -> None:
    """A call has ended, in whatever way; its account is closed."""
    if not recording():
        return
    now, answer, usage = time.monotonic(), account.answer, account.usage
    agent, workflow = whose_call()
    name = engine_name(engine)
    _trace_tools(call, agent, workflow, answer.began)
    for function in answer.calls:
        _calls[function.id] = (function.name, now)
    while len(_calls) > _MOST_CALLS:
        _calls.popitem(last=False)
    record(
        Turn(
            agent=agent,
            workflow=workflow,
            engine=name,
            rid=call.request.rid,
            start=answer.began,
            first=answer.first,
            end=now,
            outcome=_outcome(account.error),
            prompt=usage.prompt_tokens,
            cached=usage.cached_tokens,
            prewarmed=usage.prewarmed_tokens,
            shared_in_turn=usage.shared_in_turn_tokens,
            completion=usage.completion_tokens,
            model=call.model,
            error="" if _outcome(account.error) != "failed" else _describe(account.error),
        )
    )


def _trace_tools(call: Call, agent: str, workflow: str, now: float) -> None:
    """The tools whose results this call brought: they ran since the answer that called them."""
    for message in reversed(call.messages):
        if message.tool_call_id is None:
            return  # older results have been seen before
        known = _calls.pop(message.tool_call_id, None)
        if known is not None:
            tool, since = known
            record(
                ToolRun(
                    agent=agent,
                    workflow=workflow,
                    tool=tool,
                    start=since,
                    end=now,
                    call_id=message.tool_call_id,
                )
            )


def _outcome(error: BaseException | None) -> Outcome:
    if error is None:
        return "done"
    # A consumer who leaves the stream has had enough, which is no failure.
    return "cancelled" if isinstance(error, asyncio.CancelledError | GeneratorExit) else "failed"


def _describe(error: BaseException | None) -> str:
    return f"{type(error).__qualname__}: {error}"[:500]


__all__ = ["trace_turn"]
