"""Workflows that arrive as a trace's requests did, at shares of what stock SGLang can carry.

    python benchmarks/paper/load/run.py --shape tiny --scale 16 --count 12             # CPU
    python benchmarks/paper/load/run.py --trace azure_2023_conv.csv --budget-seconds 560   # one GPU
    python benchmarks/paper/load/run.py --trace azure_2023_conv.csv --agentic FOLDER --budget-seconds 560

A workflow is a chain of three AutoGen agents with the lengths of the arrival; with `--agentic` it is one of
the folder's traces with hash ids, turn by turn (`agentic.py`), and `--trace` only says when.

First, the stock engine's capacity: workflows a second with `--closed` of them at any time. Then each variant
meets the same arrivals at each share of it.

Rows: `end_ms` of a workflow from its arrival, `end_p95_ms`, `end_p99_ms`, `workflows_a_second`, and
`tokens_a_second` (written); `ms_a_token`, what a workflow took for each of the tokens that its agents wrote;
`fairness`, Jain's index of the workflows' tokens a second (1: all are served alike, 1/n: one takes
everything); and `wasted_percent`, of all prompt tokens that were computed, those computed in vain.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(_ROOT), str(_ROOT / "runtime")]

from benchmarks.paper.engines import flush, running
from benchmarks.paper.load.agentic import Fit
from benchmarks.paper.load.agentic import load as load_agentic
from benchmarks.paper.load.arrivals import Arrival, from_trace, made_up
from benchmarks.paper.load.flows import Chains, Flows, Replay, Served
from benchmarks.paper.slices import Slice
from benchmarks.paper.word_model import SHAPES, Texts, write_model
from benchmarks.rows import RESULTS, common, row
from flashagents_runtime.embedded import EmbeddedEngine

VARIANTS = {
    "stock-fcfs": ("stock-fcfs", False),
    "stock-lpm": ("stock-lpm", False),
    "intra-turn": ("flash", False),
    "ours": ("flash", True),
    "ours-sjf": ("flash-sjf", True),
}


@dataclass
class Seen:
    """One repeat of one variant at one load."""

    served: list[Served]
    seconds: float
    computed: int = 0
    """Prompt tokens, for answers and for warm-ups."""
    wasted: int = 0


class Load:
    """The workflows on one engine each."""

    def __init__(self, engines: dict[str, EmbeddedEngine], flows: Flows) -> None:
        self._engines = engines
        self._flows = flows

    async def closed(self, variant: str, count: int, at_once: int) -> float:
        """Workflows a second with so many of them at any time."""
        name, overlap = VARIANTS[variant]
        waiting = iter(range(count))

        async def user() -> None:
            for which in waiting:
                await self._flows.one(self._engines[name], overlap, which)

        await flush(self._engines[name])
        began = time.perf_counter()
        await asyncio.gather(*(user() for _ in range(at_once)))
        return count / (time.perf_counter() - began)

    async def open(self, variant: str, arrivals: list[Arrival], rate: float) -> Seen:
        """Each workflow at `rate` arrivals a second, from an empty cache."""
        name, overlap = VARIANTS[variant]
        engine = self._engines[name]
        await flush(engine)
        before, began = engine.tally.counts(), time.perf_counter()

        async def user(which: int, arrival: Arrival) -> Served:
            await asyncio.sleep(max(began + arrival.at / rate - time.perf_counter(), 0))
            return await self._flows.one(engine, overlap, which)

        served = await asyncio.gather(*(user(*pair) for pair in enumerate(arrivals)))
        after, seconds = engine.tally.counts(), time.perf_counter() - began
        answers = (after.prompt - after.cached) - (before.prompt - before.cached)
        ahead = after.ahead - before.ahead
        return Seen(list(served), seconds, answers + ahead, after.wasted - before.wasted)


def quantile(values: list[float], q: float) -> float:
    """Of a sorted copy, the nearest rank."""
    ordered = sorted(values)
    return ordered[min(int(q * len(ordered)), len(ordered) - 1)]


def fairness(rates: list[float]) -> float:
    """Jain's index: 1 where all are alike, 1/n where one has everything."""
    return sum(rates) ** 2 / (len(rates) * sum(rate * rate for rate in rates))


async def measure(args: argparse.Namespace) -> None:
    """Start, measure the capacity, run the loads, end."""
    import torch

    cpu = not torch.cuda.is_available()
    cuts = {"longest_task": args.longest_task, "longest_answer": args.longest_answer}
    arrivals = (
        from_trace(args.trace, args.count, **cuts) if args.trace else made_up(args.count, args.seed, **cuts)
    )
    engines_of = [VARIANTS[v][0] for v in args.variants]
    with tempfile.TemporaryDirectory() as folder:
        path = write_model(Path(folder), args.shape)
        async with AsyncExitStack() as stack:
            names = list(dict.fromkeys(["stock-lpm", *engines_of]))
            engines = await stack.enter_async_context(running(names, path, cpu=cpu))
            flows = _flows(args, path, arrivals)
            stack.push_async_callback(flows.close)
            load = Load(engines, flows)
            device = "cpu" if cpu else torch.cuda.get_device_name()
            shared = common("sglang", "torch", "triton", "autogen-agentchat", device=device)
            out = Slice(args.out, shared, args.budget_seconds)
            # Kernels and graphs.
            for variant in dict.fromkeys(["stock-lpm", *args.variants]):
                await load.closed(variant, min(args.closed, args.count), args.closed)
            carried = [await load.closed("stock-lpm", args.count, args.closed) for _ in range(3)]
            capacity = statistics.median(carried)
            print(f"stock carries {capacity:.2f} workflows a second", flush=True)
            for share in sorted(args.shares):
                case = {
                    "shape": args.shape,
                    "trace": args.trace.name if args.trace else "made up",
                    "workflows": f"agentic, 1/{args.divide}" if args.agentic else "chains",
                    "scale": args.scale,
                    "count": args.count,
                    "load_percent": share,
                }
                if not out.missing(case, args.variants):
                    continue
                async with out.timed({**case, "output": share}, args.repeats) as fits:
                    if not fits:
                        continue
                    got: dict[str, list[Seen]] = {v: [] for v in args.variants}
                    for _ in range(args.repeats):
                        for variant in args.variants:
                            got[variant].append(await load.open(variant, arrivals, capacity * share / 100))
                    out.add(_rows(case, {**shared, "capacity": round(capacity, 3)}, got))
            out.end()


def _flows(args: argparse.Namespace, model: Path, arrivals: list[Arrival]) -> Flows:
    if not args.agentic:
        return Chains(model, Texts(args.shape, args.seed), arrivals, args.scale)
    fit = Fit(
        divide=args.divide,
        turns=args.turns,
        agents=args.agents,
        longest_prompt=args.longest_prompt,
        longest_answer=max(args.longest_answer // args.scale, 4),
        vocabulary=SHAPES[args.shape]["vocab_size"],
    )
    return Replay(load_agentic(args.agentic, args.count, fit))


def _rows(case: dict[str, Any], shared: dict[str, Any], got: dict[str, list[Seen]]) -> list[dict[str, Any]]:
    rows = []
    for variant, repeats in got.items():
        times = [[1e3 * s.seconds for s in seen.served] for seen in repeats]
        values = {
            "end_ms": [ms for of_repeat in times for ms in of_repeat],
            "end_p95_ms": [quantile(of_repeat, 0.95) for of_repeat in times],
            "end_p99_ms": [quantile(of_repeat, 0.99) for of_repeat in times],
            "workflows_a_second": [len(seen.served) / seen.seconds for seen in repeats],
            "tokens_a_second": [sum(s.tokens for s in seen.served) / seen.seconds for seen in repeats],
            "ms_a_token": [1e3 * s.seconds / s.tokens for seen in repeats for s in seen.served],
            "fairness": [fairness([s.tokens / s.seconds for s in seen.served]) for seen in repeats],
            "wasted_percent": [100 * seen.wasted / max(seen.computed, 1) for seen in repeats],
        }
        rows += [row("paper_load", variant, case, name, of, shared) for name, of in values.items()]
    return rows


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="qwen2.5-7b")
    parser.add_argument("--trace", type=Path, help="a CSV of Azure's LLM traces; default: made-up arrivals")
    parser.add_argument("--agentic", type=Path, help="a folder of traces with hash ids, instead of chains")
    parser.add_argument("--divide", type=int, default=8, help="of those, the tokens")
    parser.add_argument("--turns", type=int, default=12, help="no more of each")
    parser.add_argument("--agents", type=int, default=2, help="that its turns are dealt to")
    parser.add_argument("--longest-prompt", type=int, default=16_000)
    parser.add_argument("--count", type=int, default=120, help="workflows of each load")
    parser.add_argument("--closed", type=int, default=16, help="workflows at once where capacity is measured")
    parser.add_argument("--shares", type=lambda t: [int(n) for n in t.split(",")], default=[50, 80, 100, 120])
    parser.add_argument(
        "--variants", type=lambda t: t.split(","), default=["stock-fcfs", "stock-lpm", "ours"]
    )
    parser.add_argument("--longest-task", type=int, default=3000)
    parser.add_argument("--longest-answer", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--scale", type=int, default=1, help="divides all token counts")
    parser.add_argument("--budget-seconds", type=float, default=1e9, help="start no load that ends later")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS / "paper_load.jsonl")
    args = parser.parse_args()
    if unknown := set(args.variants) - set(VARIANTS):
        parser.error(f"no such variants: {', '.join(sorted(unknown))}; there are {', '.join(VARIANTS)}")
    asyncio.run(measure(args))


if __name__ == "__main__":
    main()
