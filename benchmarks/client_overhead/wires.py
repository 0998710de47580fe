"""What a token costs the application through the client, by the engine's kind.

    python benchmarks/client_overhead/wires.py [--tokens 200] [--repeats 5]

The engine is a process without a model that speaks at 200 tokens/s a stream (`benchmarks/wire/producers.py`):
over our frames (`embedded`) or as SGLang's HTTP server does (`remote`). All figures are of this process:

- `chunk_us`: one stream; from the arrival of a token's bytes in Python until the consumer of
  `create_stream` has the chunk: median over the tokens. Embedded, that includes waking the task's own loop.
- `cpu_us_per_token`: its CPU time over the tokens that it received, waits and wake-ups included.
- `tokens_per_core_s`: the reciprocal: what one core carries in all.
- `pace`: tokens received over tokens that the producer's rate allows; 1 keeps up.
- `share_percent`: where the time goes with 64 streams, by a profile of the thread that reads the bytes (for
  embedded engines the I/O thread, for remote ones the event loop) and of the application's event loop.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import pstats
import socket
import statistics
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

sys.path.insert(0, str(Path(__file__).parents[1]))
from autogen_core import CancellationToken
from autogen_core.models import UserMessage
from rows import RESULTS, append, common, row
from wire import producers

from flashagents_autogen import FlashAgentsChatCompletionClient
from flashagents_runtime.chat_tokenizer import ByteChatTokenizer
from flashagents_runtime.embedded import EmbeddedEngine, host_process, io_thread
from flashagents_runtime.remote import RemoteEngine
from flashagents_runtime.remote import outputs as remote_outputs

PRODUCERS = str(Path(producers.__file__))
MESSAGES = [UserMessage(content="Plan a trip to Rome.", source="user")]
STREAMS = 64
Engine = EmbeddedEngine | RemoteEngine

PARTS = {
    "flashagents_autogen": "client",
    "flashagents_runtime": "engine",
    "aiohttp": "aiohttp",
    "asyncio": "event loop",
    "autogen": "autogen",
}


def client_on(engine: Engine) -> FlashAgentsChatCompletionClient:
    return FlashAgentsChatCompletionClient(engine=engine, tokenizer=ByteChatTokenizer())


async def consume(client: FlashAgentsChatCompletionClient, tokens: int) -> list[int]:
    """When each chunk of a stream came, ns."""
    seen: list[int] = []
    args = {"max_tokens": tokens}
    async for item in client.create_stream(
        MESSAGES, extra_create_args=args, cancellation_token=CancellationToken()
    ):
        if isinstance(item, str):
            seen.append(time.perf_counter_ns())
    assert len(seen) == tokens, len(seen)
    return seen


async def cost(client: FlashAgentsChatCompletionClient, streams: int, tokens: int) -> tuple[float, float]:
    """CPU microseconds a token, and the pace."""
    cpu, wall = time.process_time(), time.perf_counter()
    await asyncio.gather(*(consume(client, tokens) for _ in range(streams)))
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return 1e6 * cpu / (streams * tokens), tokens * producers.STEP / wall


async def chunk_us(client: FlashAgentsChatCompletionClient, engine: Engine, tokens: int) -> float:
    """Median time from a token's bytes to its chunk, microseconds."""
    arrived: list[int] = []

    def stamped(feed: Callable[[bytes], list[Any]]) -> Callable[[bytes], list[Any]]:
        def stamped_feed(data: bytes) -> list[Any]:
            now = time.perf_counter_ns()
            messages = feed(data)
            arrived.extend([now] * len(messages))
            return messages

        return stamped_feed

    if isinstance(engine, EmbeddedEngine):
        assert engine._host is not None
        reader = engine._host._reader
        feed = reader.feed
        reader.feed = stamped(feed)  # type: ignore[method-assign]
        seen = await consume(client, tokens)
        reader.feed = feed  # type: ignore[method-assign]
    else:
        original = remote_outputs.EventReader.feed
        feed_of = lambda self, data: stamped(lambda d: original(self, d))(data)  # noqa: E731
        remote_outputs.EventReader.feed = feed_of  # type: ignore[method-assign]
        seen = await consume(client, tokens)
        remote_outputs.EventReader.feed = original  # type: ignore[method-assign]
    return statistics.median((b - a) / 1e3 for a, b in zip(arrived, seen, strict=True))


async def shares(client: FlashAgentsChatCompletionClient, tokens: int, io: bool) -> dict[str, float]:
    """Percent of a thread's time by part, without the waits."""
    profile = cProfile.Profile()

    async def switch(on: bool) -> None:
        change = profile.enable if on else profile.disable
        if io:
            done = asyncio.Event()
            loop = asyncio.get_running_loop()
            io_thread.io_loop().call_soon_threadsafe(lambda: (change(), loop.call_soon_threadsafe(done.set)))
            await done.wait()
        else:
            change()

    await switch(True)
    await asyncio.gather(*(consume(client, tokens) for _ in range(STREAMS)))
    await switch(False)
    found = dict.fromkeys([*PARTS.values(), "sockets", "other C functions"], 0.0)
    for (file, _, function), (_, _, own, _, _) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
        if "poll" in function:
            continue  # waiting
        part = next((name for key, name in PARTS.items() if key in file), "other C functions")
        if file == "~" and any(word in function for word in ("recv", "send", "_socket")):
            part = "sockets"
        found[part] += own
    total = sum(found.values())
    return {name: 100 * seconds / total for name, seconds in found.items()}


@asynccontextmanager
async def engines() -> AsyncIterator[dict[str, Engine]]:
    host_process.host_command = lambda fd: [sys.executable, PRODUCERS, "frames", str(fd)]
    EmbeddedEngine._resolve_model = lambda self: "stub"  # type: ignore[method-assign]
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    server = await asyncio.create_subprocess_exec(sys.executable, PRODUCERS, "http", str(port))
    remote = RemoteEngine(f"http://127.0.0.1:{port}")
    try:
        async with aiohttp.ClientSession() as session:
            for _ in range(150):
                try:
                    await (await session.get(f"http://127.0.0.1:{port}/model_info")).read()
                    break
                except aiohttp.ClientConnectionError:
                    await asyncio.sleep(0.2)
        async with EmbeddedEngine("stub") as embedded:
            await remote.start()
            yield {"embedded": embedded, "remote": remote}
    finally:
        await remote.close()
        server.terminate()
        await server.wait()


async def run(args: argparse.Namespace) -> None:
    shared = common("aiohttp", "autogen_core", "msgspec")
    rows = []
    found: dict[tuple[str, int, str], list[float]] = {}
    async with engines() as by_kind:
        clients = {kind: client_on(engine) for kind, engine in by_kind.items()}
        for client in clients.values():
            await consume(client, 20)  # warm
        for _ in range(args.repeats):  # in turn, so that a noisy minute hits all kinds
            for kind, client in clients.items():
                first = await chunk_us(client, by_kind[kind], args.tokens)
                found.setdefault((kind, 1, "chunk_us"), []).append(first)
                for streams in (1, STREAMS):
                    cpu, pace = await cost(client, streams, args.tokens)
                    found.setdefault((kind, streams, "cpu_us_per_token"), []).append(cpu)
                    found.setdefault((kind, streams, "pace"), []).append(pace)
                    if streams == STREAMS:
                        found.setdefault((kind, streams, "tokens_per_core_s"), []).append(1e6 / cpu)
        for (kind, streams, metric), values in found.items():
            case = {"wire": kind, "streams": streams, "tokens": args.tokens, "rate": 200}
            rows.append(row("client_overhead", "ours", case, metric, values, shared))
        for kind, threads in (("embedded", ("application", "io")), ("remote", ("application",))):
            for thread in threads:
                for part, share in (await shares(clients[kind], args.tokens, thread == "io")).items():
                    case = {"wire": kind, "streams": STREAMS, "thread": thread, "part": part}
                    rows.append(row("client_overhead", "ours", case, "share_percent", [share], shared))
    append(args.out, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS / "client_overhead.jsonl")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
