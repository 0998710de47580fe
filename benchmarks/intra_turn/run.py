"""Concurrent prompts that share a cold prefix: ours, stock, and the floor, in one engine, side by side.

    python benchmarks/intra_turn/run.py --attention fa3 --device "NVIDIA H200" [--seconds 240]
    python benchmarks/intra_turn/run.py --cpu                 # a dry run of all of it, tiny

A cell is `concurrency` prompts of `prefix` common and `own` further tokens, sent as one batch to an
empty cache, one output token each. Floor: one prompt of `prefix + concurrency * own` tokens, which is
what must be computed. Repetitions take the variants in turn. Rows go to a file; a slice that this run
(`--run`) has written is not measured again, and after `--seconds` no further slice starts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench_engine import Bench, write_config
from rows import Rows, median

CONCURRENCY = (1, 2, 4, 8, 16, 32)
PREFIX = (500, 2000, 8000)
OWN = (50, 200, 1000)
STOCK_TOKENS = 60_000  # per slice and variant: cells with more tokens get fewer repetitions


class Benchmark:
    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.scale = 40 if args.cpu else 1
        self.rng = random.Random(args.seed)
        shape = "tiny" if args.cpu else "qwen2.5-7b"
        folder = Path(tempfile.mkdtemp())
        self.bench = Bench(
            cpu=args.cpu,
            model_path=str(write_config(folder, shape)),
            load_format="dummy",
            attention_backend="torch_native" if args.cpu else args.attention,
            max_total_tokens=20_000 if args.cpu else 600_000,
            mem_fraction_static=0.6 if args.cpu else 0.8,
            context_length=4096 if args.cpu else 65_536,
            chunked_prefill_size=8192 // self.scale,
            max_running_requests=64,
            page_size=args.page_size,
            **({} if args.cpu else {"cuda_graph_bs_decode": [1, 2, 4, 8, 16, 32]}),
        )
        self.common = {
            "attention": "torch_native" if args.cpu else args.attention,
            "shape": shape,
            "page_size": args.page_size,
        }
        self.rows = Rows(args.out, run=args.run, commit=args.commit, device=args.device)
        self.end = time.monotonic() + args.seconds

    def tokens(self, n: int) -> list[int]:
        high = 500 if self.args.cpu else 150_000
        return [self.rng.randrange(4, high) for _ in range(max(n // self.scale, 1))]

    def family(self, concurrency: int, prefix: int, own: int) -> list[list[int]]:
        shared = self.tokens(prefix)
        return [shared + self.tokens(own) for _ in range(concurrency)]

    def floor(self, concurrency: int, prefix: int, own: int) -> list[list[int]]:
        lens = max(prefix // self.scale, 1) + concurrency * max(own // self.scale, 1)
        return [self.tokens(lens * self.scale)]

    def generate(self, prompts: list[list[int]]) -> tuple[float, list[float], int]:
        """Wall time and times to first token, ms; tokens computed."""
        self.bench.flush()
        params = {"temperature": 0.0, "max_new_tokens": 1, "ignore_eos": True}
        start = time.perf_counter()
        out = self.bench.engine.generate(input_ids=prompts, sampling_params=params)
        wall = 1e3 * (time.perf_counter() - start)
        metas = [o["meta_info"] for o in out]
        computed = sum(m["prompt_tokens"] - m["cached_tokens"] for m in metas)
        return wall, [1e3 * m["e2e_latency"] for m in metas], computed

    def warm_up(self) -> None:
        for variant in ("stock_fcfs", "ours"):
            self.bench.variant(variant)
            for shape in ((1, 8000, 0), (8, 2000, 200), (8, 500, 50), (2, 500, 1000)):
                self.generate(self.family(*shape))
        self.bench.variant("floor")
        for n in (500, 1000, 2000, 4000, 8000):
            self.generate([self.tokens(n)])

    def slices(self, variants: tuple[str, ...], case: dict[str, Any]) -> tuple[str, ...]:
        """The variants still to be measured; none when the time is up."""
        if time.monotonic() > self.end:
            return ()
        return tuple(v for v in variants if not self.rows.has(v, case))

    def cells(self) -> Iterator[tuple[int, int, int]]:
        """The cells with most to say first, then the rest from small to large."""
        first = [(8, 2000, 200), (32, 2000, 200), (8, 500, 50), (8, 8000, 200), (1, 2000, 200)]
        yield from first
        grid = [(c, p, o) for c in CONCURRENCY for p in PREFIX for o in OWN]
        yield from (cell for cell in sorted(grid, key=lambda x: x[0] * (x[1] + x[2])) if cell not in first)

    def grid(self) -> None:
        variants = ("ours", "stock_fcfs", "stock_lpm", "floor")
        for concurrency, prefix, own in self.cells():
            case = {"concurrency": concurrency, "prefix": prefix, "own": own, **self.common}
            todo = self.slices(variants, case)
            got: dict[str, list[tuple[float, list[float], int]]] = {v: [] for v in todo}
            total = concurrency * (prefix + own)
            for rep in range(5):
                for variant in todo[rep % len(todo) :] + todo[: rep % len(todo)] if todo else ():
                    stock = variant.startswith("stock")
                    if stock and rep and rep * total > STOCK_TOKENS:
                        continue
                    make = self.floor if variant == "floor" else self.family
                    prompts = make(concurrency, prefix, own)
                    self.bench.variant(variant)
                    got[variant].append(self.generate(prompts))
            for variant, results in got.items():
                self.rows.add(variant, case, "wall_ms", [r[0] for r in results])
                self.rows.add(variant, case, "ttft_ms", [t for r in results for t in r[1]])
                self.rows.add(variant, case, "tokens_computed", [r[2] for r in results])
            self.report(case, {v: median([r[0] for r in results]) for v, results in got.items()})

    def staggered(self) -> None:
        """16 requests of one family, one every `every_ms`; the time until the last has its last token."""
        for every in (2, 4, 10):
            for new in (1, 16):
                case = {
                    "arrivals": 16,
                    "every_ms": every,
                    "prefix": 1800,
                    "own": 200,
                    "new": new,
                    **self.common,
                }
                todo = self.slices(("ours", "stock_fcfs", "stock_lpm"), case)
                got: dict[str, list[tuple[float, list[float], int]]] = {v: [] for v in todo}
                for rep in range(3 if todo else 0):
                    for variant in todo[rep % len(todo) :] + todo[: rep % len(todo)]:
                        self.bench.variant(variant)
                        self.bench.flush()
                        got[variant].append(self._arrivals(self.family(16, 1800, 200), every / 1e3, new))
                for variant, results in got.items():
                    self.rows.add(variant, case, "wall_ms", [r[0] for r in results])
                    self.rows.add(variant, case, "e2e_ms", [t for r in results for t in r[1]])
                    self.rows.add(variant, case, "tokens_computed", [r[2] for r in results])
                self.report(case, {v: median([r[0] for r in results]) for v, results in got.items()})

    def _arrivals(self, prompts: list[list[int]], every: float, new: int) -> tuple[float, list[float], int]:
        params = {"temperature": 0.0, "max_new_tokens": new, "ignore_eos": True}
        engine = self.bench.engine

        async def one(i: int, prompt: list[int]) -> dict[str, Any]:
            await asyncio.sleep(i * every)
            out = await engine.async_generate(input_ids=prompt, sampling_params=params)
            meta: dict[str, Any] = out["meta_info"]
            return meta

        async def all_of_them() -> list[dict[str, Any]]:
            return await asyncio.gather(*(one(i, p) for i, p in enumerate(prompts)))

        start = time.perf_counter()
        metas = engine.loop.run_until_complete(all_of_them())
        wall = 1e3 * (time.perf_counter() - start)
        computed = sum(m["prompt_tokens"] - m["cached_tokens"] for m in metas)
        return wall, [1e3 * m["e2e_latency"] for m in metas], computed

    def scheduling(self) -> None:
        """Scheduler time of prefill passes at 128 and more waiting requests, and of the insert after them."""
        for shared in (0, 400):
            case = {"waiting": 128, "prompt": 500, "shared": shared, **self.common}
            todo = self.slices(("ours", "stock_fcfs"), case)
            got: dict[str, list[float]] = {v: [] for v in todo}
            each: dict[str, list[float]] = {v: [] for v in todo}
            inserts: dict[str, list[float]] = {v: [] for v in todo}
            path = Path(tempfile.mkstemp()[1])
            for _ in range(3 if todo else 0):
                for variant in todo:
                    self.bench.variant(variant)
                    self.generate(self.family(192, shared, 500 - shared))
                    self.bench.engine.collective_rpc("bench_passes", path=str(path))
                    timed = json.loads(path.read_text())
                    passes = [p for p in timed["passes"] if p[1] >= 96]
                    inserts[variant] += timed["inserts"]
                    got[variant] += [p[0] for p in passes]
                    each[variant] += [1e3 * p[0] / p[2] for p in passes]
            for variant in todo:
                self.rows.add(variant, case, "schedule_ms", got[variant])
                self.rows.add(variant, case, "schedule_us_per_request", each[variant])
                self.rows.add(variant, case, "insert_us_per_request", inserts[variant])
            self.report(case, {v: median(ms) for v, ms in got.items()})

    def report(self, case: dict[str, Any], medians: dict[str, float]) -> None:
        if medians:
            shown = {k: v for k, v in case.items() if k not in self.common}
            print(shown, {v: round(ms, 1) for v, ms in medians.items()}, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--attention", default="fa3")
    parser.add_argument("--page-size", type=int, default=1)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--run", default=time.strftime("%Y%m%d-%H%M%S"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1e9, help="start no further slice after these")
    parser.add_argument("--parts", default="scheduling,staggered,grid")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/intra_turn.jsonl"))
    args = parser.parse_args()
    start = time.monotonic()
    benchmark = Benchmark(args)
    print(f"engine up in {time.monotonic() - start:.1f} s", flush=True)
    benchmark.warm_up()
    for part in args.parts.split(","):
        getattr(benchmark, part)()
    print(f"done in {time.monotonic() - start:.1f} s", flush=True)
    benchmark.bench.close()


if __name__ == "__main__":
    main()
