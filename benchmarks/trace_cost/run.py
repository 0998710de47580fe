"""What recording costs, on a scripted engine in this process (no model), one core.

    python benchmarks/trace_cost/run.py [--turns 400] [--repeats 9] [--out FILE]

- `turn_us`: CPU time of one turn of the client (200 tokens), with a `Trace` (`ours`) and without (`off`),
  turn about. The difference drowns in noise, hence the next two.
- `turn_event_us`: what the client does at the end of a turn to record it, alone.
- `chunk_event_us`: building and recording the event of a prefill chunk, alone.
- `event_bytes`: memory of one event in a full ring.
- `share_percent`: of one core, for 64 streams of 200 tokens/s, with one turn event and two chunk events a
  second and stream.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import time
import tracemalloc
from pathlib import Path
from typing import Any

from autogen_core.models import UserMessage

from benchmarks.rows import RESULTS, append, common, row
from flashagents_autogen import FlashAgentsChatCompletionClient, _client
from flashagents_runtime import Reply, ScriptedEngine
from flashagents_runtime.trace import Chunk, Trace, Turn, record, scope

TOKENS, STREAMS = 200, 64
MESSAGES = [UserMessage(content="Plan a trip to Rome.", source="user")]


async def turn_us(turns: int) -> float:
    """CPU time of a turn, microseconds."""
    answer = Reply(text=["abcd"] * TOKENS, token_ids=[[1]] * TOKENS)
    client = FlashAgentsChatCompletionClient(engine=ScriptedEngine([answer] * (turns + 1)))
    await client.create(MESSAGES)
    gc.collect()
    with scope(agent="planner", workflow="a team"):
        begun = time.process_time_ns()
        for _ in range(turns):
            await client.create(MESSAGES)
        return (time.process_time_ns() - begun) / turns / 1000


def chunk(i: int) -> Chunk:
    """An event as a prefill session records it."""
    return Chunk(
        agent="planner",
        workflow="a team",
        engine="scripted:scripted#1",
        session=f"{i:032x}",
        start=time.monotonic(),
        end=time.monotonic(),
        position=(i, i + 100),
        computed=100,
    )


async def turn_event_us(count: int = 5000) -> float:
    """Time that `trace_turn` takes, microseconds."""
    spent = 0

    def timed(*arguments: Any) -> None:
        nonlocal spent
        begun = time.perf_counter_ns()
        for _ in range(10):
            trace_turn(*arguments)
        spent += time.perf_counter_ns() - begun

    trace_turn = _client.trace_turn
    _client.trace_turn = timed  # type: ignore[assignment]
    try:
        client = FlashAgentsChatCompletionClient(engine=ScriptedEngine(["a"] * (count // 10)))
        with Trace(capacity=1000):
            for _ in range(count // 10):
                await client.create(MESSAGES)
    finally:
        _client.trace_turn = trace_turn
    return spent / count / 1000


def event_us(count: int = 20_000) -> float:
    """Time of building and recording an event, microseconds."""
    with Trace(capacity=1000):
        begun = time.process_time_ns()
        for i in range(count):
            record(chunk(i))
        return (time.process_time_ns() - begun) / count / 1000


def event_bytes(count: int = 20_000) -> float:
    """Memory of an event that is kept."""
    trace = Trace(capacity=count)
    tracemalloc.start()
    for i in range(2 * count):  # twice: the ring is full, and stays as it is
        now = time.monotonic()
        trace.record(Turn(rid=f"{i:032x}", start=now, first=now + 1, end=now + 2, prompt=i, model="model"))
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return used / count


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=400)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--out", type=Path, default=RESULTS / "trace_cost.jsonl")
    options = parser.parse_args()
    off, on, chunks, ends = [], [], [], []
    for _ in range(options.repeats):
        off.append(asyncio.run(turn_us(options.turns)))
        with Trace():
            on.append(asyncio.run(turn_us(options.turns)))
        chunks.append(event_us())
        ends.append(asyncio.run(turn_event_us()))
    share = [(end + 2 * chunk) * STREAMS / 1e6 * 100 for end, chunk in zip(ends, chunks, strict=True)]
    case = {"tokens": TOKENS}
    shared = common("autogen_core", "msgspec")
    append(
        options.out,
        [
            row("trace_cost", "off", case, "turn_us", off, shared),
            row("trace_cost", "ours", case, "turn_us", on, shared),
            row("trace_cost", "ours", case, "turn_event_us", ends, shared),
            row("trace_cost", "ours", case, "chunk_event_us", chunks, shared),
            row("trace_cost", "ours", case, "event_bytes", [event_bytes()], shared),
            row("trace_cost", "ours", case, "share_percent", share, shared),
        ],
    )


if __name__ == "__main__":
    main()
