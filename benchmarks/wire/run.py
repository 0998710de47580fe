"""Which wire between the application and an embedded engine: our frames, or SGLang's HTTP server?

    python benchmarks/wire/run.py [--repeats 5] [--tokens 400]

Both producers speak at 200 tokens/s a stream (`producers.py`); the consumer is `EmbeddedEngine` for
frames, and aiohttp with msgspec for HTTP. Metrics, of the application's process alone:

- `cpu_us_per_token`: its CPU time over the tokens that it received;
- `pace`: tokens received over tokens that the producer's rate allows: 1 is keeping up;
- `delivery_us` (frames, one stream): from the arrival of a frame's bytes in the I/O thread until the
  consumer's task has the delta, in its own event loop: median over the tokens;
- `python_us`: of that, what our code runs in both threads, without the waits to be woken up.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))
from rows import RESULTS, append, common, row
from wire import producers

from flashagents_runtime import GenerateRequest, SamplingParams
from flashagents_runtime.embedded import EmbeddedEngine, host_process, stream

PRODUCERS = str(Path(producers.__file__))


async def consume_frames(engine: EmbeddedEngine, tokens: int) -> int:
    request = GenerateRequest(input_ids=[1, 2, 3], sampling=SamplingParams(max_new_tokens=tokens))
    return sum([len(delta.token_ids) async for delta in engine.generate(request)])


async def consume_http(session: aiohttp.ClientSession, url: str, tokens: int) -> int:
    body = {
        "rid": "0" * 32,
        "input_ids": [1, 2, 3],
        "sampling_params": {"max_new_tokens": tokens},
        "stream": True,
    }
    decode = msgspec.json.Decoder().decode
    count = 0
    async with session.post(url, json=body) as response:
        async for line in response.content:
            if line.startswith(b"data: {"):
                count += len(decode(line[6:])["output_ids"])
    assert count == tokens, (response.status, count)
    return count


async def measure(consume: object, streams: int) -> tuple[float, float]:
    """CPU seconds and wall seconds, divided by nothing, of `streams` consumers at once."""
    cpu, wall = time.process_time(), time.perf_counter()
    await asyncio.gather(*(consume() for _ in range(streams)))  # type: ignore[operator]
    return time.process_time() - cpu, time.perf_counter() - wall


async def delivery_us(engine: EmbeddedEngine, tokens: int) -> tuple[float, float]:
    """Microseconds from a frame's bytes to the task that reads, all of it and in our Python alone."""
    arrived: list[int] = []
    handed: list[int] = []
    putting: list[int] = []
    seen: list[int] = []
    host = engine._host
    assert host is not None
    reader, feed = host._reader, host._reader.feed
    deliver, put_all = host_process.deliver, stream._put_all

    def stamped_feed(data: bytes) -> list[object]:
        now = time.perf_counter_ns()
        messages = feed(data)
        arrived.extend([now] * len(messages))
        return messages

    def stamped_deliver(items: list[Any]) -> None:
        deliver(items)
        handed.append(time.perf_counter_ns())

    def stamped_put_all(batch: list[Any]) -> None:
        putting.append(time.perf_counter_ns())
        put_all(batch)

    request = GenerateRequest(input_ids=[1, 2, 3], sampling=SamplingParams(max_new_tokens=tokens))
    reader.feed = stamped_feed  # type: ignore[method-assign]
    host_process.deliver, stream._put_all = stamped_deliver, stamped_put_all
    async for _ in engine.generate(request):
        seen.append(time.perf_counter_ns())
    reader.feed = feed  # type: ignore[method-assign]
    host_process.deliver, stream._put_all = deliver, put_all
    whole = statistics.median((b - a) / 1e3 for a, b in zip(arrived, seen, strict=True))
    reading = statistics.median((b - a) / 1e3 for a, b in zip(arrived, handed, strict=True))
    waking = statistics.median((b - a) / 1e3 for a, b in zip(putting, seen, strict=True))
    return whole, reading + waking


async def run(args: argparse.Namespace) -> None:
    host_process.host_command = lambda fd: [sys.executable, PRODUCERS, "frames", str(fd)]
    EmbeddedEngine._resolve_model = lambda self: "stub"  # type: ignore[method-assign]
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    server = await asyncio.create_subprocess_exec(sys.executable, PRODUCERS, "http", str(port))
    shared = common("aiohttp", "msgspec", "fastapi", "uvicorn")
    url = f"http://127.0.0.1:{port}/generate"
    found: dict[str, dict[str, list[float]]] = {}
    try:
        connector = aiohttp.TCPConnector(limit=0)
        async with EmbeddedEngine("stub") as engine, aiohttp.ClientSession(connector=connector) as session:
            for _ in range(100):
                try:
                    await consume_http(session, url, 1)
                    break
                except aiohttp.ClientConnectionError:
                    await asyncio.sleep(0.2)
            if args.one_core:  # after the producers have started: they keep the others
                for thread in psutil.Process().threads():
                    os.sched_setaffinity(thread.id, {0})
            for _ in range(args.repeats):
                for streams in (1, 64):
                    for variant, consume in (
                        ("frames", lambda: consume_frames(engine, args.tokens)),
                        ("http", lambda: consume_http(session, url, args.tokens)),
                    ):
                        cpu, wall = await measure(consume, streams)
                        into = found.setdefault(
                            json.dumps([variant, streams]), {"cpu_us_per_token": [], "pace": []}
                        )
                        into["cpu_us_per_token"].append(cpu / (streams * args.tokens) * 1e6)
                        into["pace"].append(args.tokens * producers.STEP / wall)
                into = found[json.dumps(["frames", 1])]
                whole, ours = await delivery_us(engine, args.tokens)
                into.setdefault("delivery_us", []).append(whole)
                into.setdefault("python_us", []).append(ours)
    finally:
        server.terminate()
        await server.wait()
    rows: list[dict[str, object]] = []
    for key, metrics in found.items():
        variant, streams = json.loads(key)
        case = {"streams": streams, "tokens": args.tokens, "rate": round(1 / producers.STEP)}
        case |= {"one_core": True} if args.one_core else {}
        rows += [row("wire", variant, case, metric, values, shared) for metric, values in metrics.items()]
    append(args.out, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--one-core", action="store_true", help="run the application on one core")
    parser.add_argument("--out", type=Path, default=RESULTS / "wire.jsonl")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
