"""Many workflows on a KV pool too small for them, beside forecasts that are all of no use.

    python benchmarks/pressure/run.py                                     # CPU, a tiny model
    python benchmarks/pressure/run.py --shape qwen2.5-7b --attention fa3 --budget-seconds 400   # one GPU

Two engines, one with our plug-in and one on SGLang's own cache, take turns with the same workflows. `ours`
has prefill sessions beside them that help nobody (see `useless.py`). README.md says what each figure is.
Weights are random (`load_format=dummy`); nothing is fetched.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import tempfile
import time
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_ROOT), str(_ROOT / "runtime")]

from benchmarks.handoff.model import SHAPES, write_model
from benchmarks.pressure.useless import KINDS, useless
from benchmarks.rows import RESULTS, append, common, row
from benchmarks.turns import add_argument, wait
from flashagents_runtime import FlashAgentsError, GenerateRequest, SamplingParams
from flashagents_runtime.embedded import EmbeddedEngine
from flashagents_runtime.handoff import Prefiller

GPU_ARGS: dict[str, Any] = {
    "sampling_backend": "pytorch",
    "grammar_backend": "none",
    "mem_fraction_static": 0.93,  # of what is free: the pools are bounded
    "context_length": 32768,
    "max_total_tokens": 65536,
    "cuda_graph_bs_decode": [1, 2, 4, 8, 16, 32, 64],
}
CPU_ARGS: dict[str, Any] = {"max_total_tokens": 4096, "context_length": 2048}


@dataclass(frozen=True)
class Sizes:
    """Of a workflow, in tokens and seconds."""

    head: int
    more: int
    answer: int
    think: float


@dataclass
class Round:
    """What one round measured: seconds, one a request."""

    latency: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    cached: int = 0
    prompt: int = 0
    failed: int = 0
    seconds: float = 0.0


def ids(rng: random.Random, n: int, vocab: int) -> list[int]:
    """A prompt unlike any other."""
    return [rng.randrange(10, vocab - 10) for _ in range(n)]


async def workflow(engine: EmbeddedEngine, rng: random.Random, turns: int, sizes: Sizes, into: Round) -> None:
    """One agent after another on a growing conversation."""
    prompt = ids(rng, sizes.head, VOCAB)
    for _ in range(turns):
        await asyncio.sleep(rng.random() * sizes.think)
        prompt = [*prompt, *ids(rng, sizes.more, VOCAB)]
        sampling = SamplingParams(max_new_tokens=sizes.answer, temperature=0, ignore_eos=True)
        began, first, answer = time.perf_counter(), 0.0, []
        try:
            async with aclosing(
                engine.generate(GenerateRequest(input_ids=prompt, sampling=sampling))
            ) as stream:
                async for delta in stream:
                    first = first or time.perf_counter() - began
                    answer += delta.token_ids
                    if delta.result is not None:
                        into.cached += delta.result.usage.cached_tokens
                        into.prompt += delta.result.usage.prompt_tokens
        except FlashAgentsError as e:
            print(f"failed: {e}", file=sys.stderr)
            into.failed += 1
            return
        into.latency.append(time.perf_counter() - began)
        into.first.append(first)
        prompt = [*prompt, *answer]


async def play(engine: EmbeddedEngine, seed: str, count: int, turns: int, sizes: Sizes) -> Round:
    """All workflows at once, to their ends."""
    into = Round()
    began = time.perf_counter()
    async with asyncio.timeout(600):
        await asyncio.gather(
            *(workflow(engine, random.Random(f"{seed}/{i}"), turns, sizes, into) for i in range(count))
        )
    into.seconds = time.perf_counter() - began
    return into


async def empty(engine: EmbeddedEngine) -> None:
    """Wait until the engine is idle, and empty its cache."""
    for _ in range(2000):
        if await engine.flush_cache():
            return
        await asyncio.sleep(0.01)
    raise RuntimeError("the engine does not become idle")


VOCAB = 0


async def cell(
    args: argparse.Namespace,
    engines: dict[str, EmbeddedEngine],
    count: int,
    kind: str,
    shared: dict[str, Any],
) -> None:
    """One number of workflows beside one kind of useless forecasts."""
    sizes = Sizes(48, 32, 16, 0.2) if args.cpu else Sizes(1024, 256, 64, 0.5)
    turns = max(args.requests // count, 2)
    rounds: dict[str, list[Round]] = {name: [] for name in engines}
    for i in range(args.repeats):
        for name in list(engines)[:: 1 if i % 2 else -1]:
            engine = engines[name]
            await empty(engine)
            async with AsyncExitStack() as stack:
                if name == "ours" and kind != "none":
                    prefiller = Prefiller(engine, share=0.05)
                    pool = engine.info.max_total_tokens if engine.info is not None else 0
                    await stack.enter_async_context(
                        useless(prefiller, kind, random.Random(i), pool, lambda r, n: ids(r, n, VOCAB))
                    )
                rounds[name].append(await play(engine, f"{args.seed}/{i}", count, turns, sizes))
    case = {
        "workflows": count,
        "forecasts": kind,
        "turns": turns,
        "pool": args.pool,
        "shape": args.shape,
        "attention": args.attention,
    }
    rows = []
    for name, played in rounds.items():

        def put(metric: str, values: list[float], name: str = name) -> None:
            rows.append(row("pressure", name, case, metric, values, shared))

        put("latency_p50_ms", [1e3 * quantile(r.latency, 0.5) for r in played])
        put("latency_p99_ms", [1e3 * quantile(r.latency, 0.99) for r in played])
        put("ttft_p99_ms", [1e3 * quantile(r.first, 0.99) for r in played])
        put("cached_percent", [100 * r.cached / r.prompt for r in played])
        put("seconds", [r.seconds for r in played])
        put("failed", [float(sum(r.failed for r in played))])
    pairs = list(zip(rounds["ours"], rounds["stock"], strict=True))
    for metric, q in (("latency_p50", 0.5), ("latency_p99", 0.99)):
        ratios = [quantile(ours.latency, q) / quantile(stock.latency, q) for ours, stock in pairs]
        rows.append(row("pressure", "ours/stock", case, metric, ratios, shared))
    together = {
        name: quantile([x for r in played for x in r.latency], 0.99) for name, played in rounds.items()
    }
    rows.append(
        row("pressure", "ours/stock", case, "p99_of_all", [together["ours"] / together["stock"]], shared)
    )
    append(args.out, rows)


def quantile(values: list[float], q: float) -> float:
    """The smallest value that this share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[min(int(q * len(ordered)), len(ordered) - 1)]


async def measure(args: argparse.Namespace) -> None:
    """Start both engines, run the cells that fit into the time, end them."""
    global VOCAB
    VOCAB = int(SHAPES[args.shape]["vocab_size"])
    os.environ["FLASHAGENTS_WARMUP_SHARE"] = args.share  # a CPU's default holds nothing back
    with tempfile.TemporaryDirectory() as folder:
        path = write_model(Path(folder), args.shape)
        given = CPU_ARGS if args.cpu else {**GPU_ARGS, "attention_backend": args.attention}
        given = {**given, "load_format": "dummy", "random_seed": 0}
        if args.pool is not None:
            given["max_total_tokens"] = args.pool
        args.pool = given["max_total_tokens"]
        engines = {
            "ours": EmbeddedEngine(path, **given),
            "stock": EmbeddedEngine(path, **given, radix_cache_backend=None),
        }
        try:
            starts = [engine.start(lambda p: print(p.stage, file=sys.stderr)) for engine in engines.values()]
            await asyncio.gather(*starts)
            wait(args)
            end = time.monotonic() + args.budget_seconds
            info = engines["ours"].info
            assert info is not None and engines["stock"].info is not None
            assert "soft_pins" in info.features and "soft_pins" not in engines["stock"].info.features
            shared = common("sglang", "torch", device=device_name(args.cpu))
            sizes = Sizes(48, 32, 16, 0.0) if args.cpu else Sizes(1024, 256, 64, 0.0)
            for engine in engines.values():  # kernels and graphs; not counted
                for count in (1, 8, 64):
                    await play(engine, "warm-up", count, 2, sizes)
            longest = 0.0
            for kind in args.forecasts:
                for count in args.workflows:
                    if time.monotonic() + longest > end:
                        print(f"no time for {count} workflows beside {kind}")
                        continue
                    began = time.monotonic()
                    await cell(args, engines, count, kind, shared)
                    longest = max(longest, time.monotonic() - began)
        finally:
            for engine in engines.values():
                await engine.close()


def device_name(cpu: bool) -> str:
    """For the rows."""
    if cpu:
        return "cpu"
    import torch

    return str(torch.cuda.get_device_name())


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--shape", default="tiny")
    parser.add_argument("--attention", default="torch_native", help="fa3 or triton on a GPU")
    parser.add_argument("--workflows", type=int, nargs="+", default=[10, 50, 200])
    parser.add_argument("--forecasts", nargs="+", choices=["none", *KINDS], default=["none", *KINDS])
    parser.add_argument("--requests", type=int, default=200, help="of one round, at least two a workflow")
    parser.add_argument("--pool", type=int, help="tokens of KV memory, of each engine")
    parser.add_argument("--share", default="0.05", help="by how much warm-ups may slow decodes")
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--budget-seconds", type=float, default=1e9, help="begin no cell that ends later")
    parser.add_argument("--seed", type=int, default=1)
    add_argument(parser)
    parser.add_argument("--out", type=Path, default=RESULTS / "pressure.jsonl")
    args = parser.parse_args()
    args.cpu = args.attention == "torch_native"
    began = time.monotonic()
    asyncio.run(measure(args))
    print(f"{time.monotonic() - began:.0f} s in all")


if __name__ == "__main__":
    main()
