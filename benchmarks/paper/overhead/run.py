"""Prefill in chunks against one pass, on models of four shapes, with and without prefill CUDA graphs.

    python benchmarks/paper/overhead/run.py --shapes tiny --scale 16                     # CPU
    python benchmarks/paper/overhead/run.py --shapes qwen2.5-7b --budget-seconds 300     # one GPU

`--cached` tokens are in the cache; then `--new` further ones are computed in chunks of each size, one after
another (`benchmarks/handoff/sweep.py`). `graphs` is SGLang's default, `no graphs` is
`cuda_graph_backend_prefill="disabled"`; on a CPU the two are the same.

Rows: `sum_ms` of all chunks; `decode_step_ms` of one request and of eight (case `batch`); and
`reread_percent`, how much of `sum_ms` it would take to read the KV before each chunk once more than one pass
does, at the bandwidth that a copy on this machine has: a bound from below, as tiles of queries read it anew.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from contextlib import aclosing
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(_ROOT), str(_ROOT / "runtime")]

from benchmarks.handoff.conversation import tokens
from benchmarks.handoff.model import SHAPES, write_model
from benchmarks.handoff.sweep import chunk_times
from benchmarks.paper.engines import flush, running
from benchmarks.paper.memory import kv_bytes
from benchmarks.paper.overhead.chunks import SIZES, read_again, share
from benchmarks.paper.slices import Slice, rotated
from benchmarks.rows import RESULTS, common, row
from flashagents_runtime import GenerateRequest
from flashagents_runtime.embedded import EmbeddedEngine
from flashagents_runtime.handoff import Prefiller

VARIANTS = {"graphs": "flash", "no graphs": "flash-eager-prefill"}
ONE_PASS = "one pass"


def copy_bandwidth(device: str, mib: int) -> float:
    """Bytes a second that a copy reads and writes."""
    import torch

    source = torch.ones(mib * 2**20, dtype=torch.uint8, device=device)
    target, best = torch.empty_like(source), float("inf")
    for _ in range(5):
        if device != "cpu":
            torch.cuda.synchronize()
        began = time.perf_counter()
        target.copy_(source)
        if device != "cpu":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - began)
    size = int(source.numel())
    del source, target
    if device != "cpu":
        torch.cuda.empty_cache()  # the engines want it
    return 2 * size / best


class Sweep:
    """The engines of one shape."""

    def __init__(self, args: argparse.Namespace, shape: str, engines: dict[str, EmbeddedEngine]) -> None:
        self._args = args
        self._engines = engines
        self._rng = random.Random(args.seed)
        self._vocabulary = SHAPES[shape]["vocab_size"]
        self._prefillers = {name: Prefiller(engine) for name, engine in engines.items()}

    def ids(self, count: int) -> list[int]:
        """A prompt unlike any before."""
        return [self._rng.randrange(300, self._vocabulary) for _ in range(count)]

    async def chunks(self, variant: str, cached: int, new: int, size: str) -> float:
        """Milliseconds of all chunks."""
        name = VARIANTS[variant]
        await flush(self._engines[name])
        ids = self.ids(cached + new)
        seconds, _ = await chunk_times(self._engines[name], self._prefillers[name], ids, new, size)
        return 1e3 * seconds

    async def step(self, variant: str, batch: int, cached: int) -> float:
        """Milliseconds of a decode step: half the answers' steps are left out, as the start is among them."""
        engine, count = self._engines[VARIANTS[variant]], 16 if self._args.scale > 1 else 64

        async def times() -> list[float]:
            found = []
            request = GenerateRequest(input_ids=self.ids(cached), sampling=tokens(count))
            async with aclosing(engine.generate(request)) as stream:
                async for delta in stream:
                    found += [time.perf_counter()] * len(delta.token_ids)
            return found

        seen = await asyncio.gather(*(times() for _ in range(batch)))
        first, last = max(t[count // 2] for t in seen), min(t[-1] for t in seen)
        return max(1e3 * (last - first) / (count - 1 - count // 2), 0.0)


async def measure(args: argparse.Namespace) -> None:
    """Shape after shape: start, run, end."""
    import torch

    cpu = not torch.cuda.is_available()
    device = "cpu" if cpu else torch.cuda.get_device_name()
    out = Slice(args.out, common("sglang", "torch", "triton", device=device), args.budget_seconds)
    bandwidth = copy_bandwidth("cpu" if cpu else "cuda", 64 if cpu else 2048)
    for shape in args.shapes:
        groups = [[v] for v in args.variants] if shape in args.in_turn else [args.variants]
        for group in groups:
            if not any(out.missing(case, group) for case, _ in cases(args, shape)):
                continue
            if out.left < args.start_seconds:
                print(f"no time for {shape}: run it again", flush=True)
            else:
                await of_shape(args, shape, group, out, bandwidth, cpu=cpu)
    out.end()


def cases(args: argparse.Namespace, shape: str) -> list[tuple[dict[str, Any], str]]:
    """Cases of a shape, each with its metric."""
    new = args.new // args.scale
    found = []
    for cached in args.cached:
        of = {"shape": shape, "cached": max(cached // args.scale, 1), "new": new}
        sizes = [ONE_PASS, *(str(s // args.scale) for s in reversed(SIZES) if s // args.scale < new)]
        found += [({**of, "chunk": size}, "sum_ms") for size in sizes]
    cached = 2000 // args.scale
    found += [({"shape": shape, "cached": cached, "batch": batch}, "decode_step_ms") for batch in (1, 8)]
    return found


async def of_shape(
    args: argparse.Namespace, shape: str, variants: list[str], out: Slice, bandwidth: float, *, cpu: bool
) -> None:
    """All cases of one shape on these engines at once."""
    more = {"max_total_tokens": 32768}
    with tempfile.TemporaryDirectory() as folder:
        path = write_model(Path(folder), shape)
        async with running([VARIANTS[v] for v in variants], path, cpu=cpu, more=more) as engines:
            sweep = Sweep(args, shape, engines)
            for variant in variants:  # kernels, and the prefiller's curve
                for size in (ONE_PASS, str(256 // args.scale)):
                    await sweep.chunks(variant, 512 // args.scale, 2048 // args.scale, size)
                await sweep.step(variant, 8, 512 // args.scale)
            for case, metric in cases(args, shape):
                if not out.missing(case, variants):
                    continue
                async with out.timed({**case, "output": case.get("chunk")}, args.repeats) as fits:
                    if fits:
                        got: dict[str, list[float]] = {v: [] for v in variants}
                        for i in range(args.repeats):
                            for variant in rotated(variants, i):
                                got[variant].append(await one(sweep, variant, case))
                        out.add(rows(case, metric, got, out.shared, bandwidth, cpu=cpu))


async def one(sweep: Sweep, variant: str, case: dict[str, Any]) -> float:
    """One value of a case."""
    if "batch" in case:
        return await sweep.step(variant, case["batch"], case["cached"])
    return await sweep.chunks(variant, case["cached"], case["new"], case["chunk"])


def rows(
    case: dict[str, Any],
    metric: str,
    got: dict[str, list[float]],
    shared: dict[str, Any],
    bandwidth: float,
    *,
    cpu: bool,
) -> list[dict[str, Any]]:
    """Of one case; chunks also with their share of reading KV again."""
    found = []
    for variant, values in got.items():
        found.append(row("paper_overhead", variant, case, metric, values, shared))
        if "chunk" in case and case["chunk"] != ONE_PASS:
            again = read_again(case["cached"], case["new"], int(case["chunk"]))
            size = kv_bytes(SHAPES[case["shape"]], 1) * (2 if cpu else 1)  # fp32 on a CPU
            shares = [share(again, size, bandwidth, ms / 1e3) for ms in values]
            found.append(row("paper_overhead", variant, case, "reread_percent", shares, shared))
    return found


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    default = "qwen2.5-7b,llama-3.1-8b,smollm2-135m,qwen2.5-32b"
    parser.add_argument("--shapes", type=lambda t: t.split(","), default=default)
    parser.add_argument("--variants", type=lambda t: t.split(","), default=list(VARIANTS))
    parser.add_argument(
        "--in-turn",
        type=lambda t: t.split(","),
        default="qwen2.5-32b",
        help="shapes whose engines run one after another: no two fit on a GPU",
    )
    parser.add_argument("--cached", type=lambda t: [int(n) for n in t.split(",")], default="16,4096")
    parser.add_argument("--new", type=int, default=4096)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--scale", type=int, default=1, help="divides all token counts")
    parser.add_argument("--start-seconds", type=float, default=90, help="what a shape needs at least")
    parser.add_argument("--budget-seconds", type=float, default=1e9, help="start no cell that ends later")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--out", type=Path, default=RESULTS / "paper_overhead.jsonl")
    args = parser.parse_args()
    for shape in args.shapes:
        if shape not in SHAPES:
            parser.error(f"no such shape: {shape}; there are {', '.join(SHAPES)}")
    asyncio.run(measure(args))


if __name__ == "__main__":
    main()
