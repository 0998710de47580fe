"""What our Python costs a token, between the engine's delta and AutoGen's chunk.

    python benchmarks/client_overhead/run.py [--tokens 2000] [--repeats 7] [--out FILE]

Runs on a scripted engine in this process (no model), one core; `wires.py` beside it has the same with the
two wires that real engines have. Three figures:

- `chunk_us`: from the moment the engine hands a delta out until AutoGen's consumer has the chunk:
  median over the tokens of a stream. Case `cancellation_token`: with AutoGen's token or without.
- `agent_chunk_us`: the same up to the consumer of `AssistantAgent.run_stream`.
- `tokens_per_s`: what 64 streams at once carry in all; `engine_alone` reads the same engine without
  the client, and `cost_us` is the difference a token. `share_percent`: where the time
  goes then, by a profile (its own cost included).
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import pstats
import statistics
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.messages import ModelClientStreamingChunkEvent
from autogen_core import CancellationToken
from autogen_core.models import UserMessage
from rows import RESULTS, append, common
from rows import row as make_row

from flashagents_autogen import FlashAgentsChatCompletionClient
from flashagents_runtime import Delta, GenerateRequest, Reply, ScriptedEngine

MESSAGES = [UserMessage(content="Plan a trip to Rome.", source="user")]
STREAMS = 64


class StampingEngine(ScriptedEngine):
    """Notes when it hands each delta out."""

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        self.stamps: list[int] = []
        async for delta in super().generate(request):
            self.stamps.append(time.perf_counter_ns())
            yield delta


def reply(tokens: int) -> Reply:
    """An answer of one token a delta."""
    return Reply(text=["abcd"] * tokens, token_ids=[[i % 256] for i in range(tokens)])


async def chunk_us(tokens: int, with_token: bool) -> float:
    engine = StampingEngine([reply(tokens)], context_length=1 << 20)
    client = FlashAgentsChatCompletionClient(engine=engine)
    token = CancellationToken() if with_token else None
    seen: list[int] = []
    async for item in client.create_stream(MESSAGES, cancellation_token=token):
        if isinstance(item, str):
            seen.append(time.perf_counter_ns())
    return statistics.median((b - a) / 1e3 for a, b in zip(engine.stamps, seen, strict=True))


async def agent_chunk_us(tokens: int) -> float:
    engine = StampingEngine([reply(tokens)], context_length=1 << 20)
    client = FlashAgentsChatCompletionClient(engine=engine)
    agent = AssistantAgent("writer", model_client=client, model_client_stream=True)
    seen: list[int] = []
    async for item in agent.run_stream(task="Go."):
        if isinstance(item, ModelClientStreamingChunkEvent):
            seen.append(time.perf_counter_ns())
    return statistics.median((b - a) / 1e3 for a, b in zip(engine.stamps, seen, strict=True))


async def tokens_per_s(tokens: int, alone: bool) -> float:
    engine = ScriptedEngine([reply(tokens)] * STREAMS, context_length=1 << 20)
    client = FlashAgentsChatCompletionClient(engine=engine)
    await client.create_stream([]).aclose()

    async def through_client() -> None:
        async for _ in client.create_stream(MESSAGES, cancellation_token=CancellationToken()):
            pass

    async def engine_alone() -> None:
        async for _ in engine.generate(GenerateRequest(input_ids=[1, 2, 3])):
            pass

    start = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(STREAMS):
            group.create_task(engine_alone() if alone else through_client())
    return STREAMS * tokens / (time.perf_counter() - start)


PARTS = {
    "flashagents_autogen": "our client",
    "scripted.py": "scripted engine",
    "asyncio": "event loop",
    "autogen": "autogen",
}


async def shares(tokens: int) -> dict[str, float]:
    profile = cProfile.Profile()
    profile.enable()
    await tokens_per_s(tokens, alone=False)
    profile.disable()
    stats = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    found = dict.fromkeys([*PARTS.values(), "other (C functions, benchmark)"], 0.0)
    for (file, _, _), (_, _, own, _, _) in stats.items():
        part = next((name for key, name in PARTS.items() if key in file), "other (C functions, benchmark)")
        found[part] += own
    total = sum(found.values())
    return {name: 100 * seconds / total for name, seconds in found.items()}


def measure(repeats: int, make: Callable[[], Awaitable[float]]) -> list[float]:
    async def one() -> float:
        return await make()

    asyncio.run(one())  # warm
    return [asyncio.run(one()) for _ in range(repeats)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path, default=RESULTS / "client_overhead.jsonl")
    args = parser.parse_args()
    shared = common("autogen_core")
    rows: list[dict[str, Any]] = []

    def row(variant: str, case: dict[str, Any], metric: str, values: list[float]) -> None:
        rows.append(make_row("client_overhead", variant, case, metric, values, shared))

    n, repeats = args.tokens, args.repeats
    for with_token in (False, True):
        case = {"streams": 1, "tokens": n, "cancellation_token": with_token}
        values = measure(repeats, partial(chunk_us, n, with_token))
        row("ours", case, "chunk_us", values)
    case = {"streams": 1, "tokens": n, "cancellation_token": True}
    row("ours", case, "agent_chunk_us", measure(repeats, lambda: agent_chunk_us(n)))
    case = {"streams": STREAMS, "tokens": n // 4}
    ours = measure(repeats, lambda: tokens_per_s(n // 4, alone=False))
    alone = measure(repeats, lambda: tokens_per_s(n // 4, alone=True))
    row("ours", case, "tokens_per_s", ours)
    row("engine_alone", case, "tokens_per_s", alone)
    row(
        "ours", case, "cost_us", [1e6 / a - 1e6 / b for a, b in zip(sorted(ours), sorted(alone), strict=True)]
    )
    for part, share in asyncio.run(shares(n // 4)).items():
        row("ours", {**case, "part": part}, "share_percent", [share])
    append(args.out, rows)


if __name__ == "__main__":
    main()
