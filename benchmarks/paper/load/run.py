"""Chains of three agents that arrive as a trace's requests did, at shares of what stock SGLang can carry.

    python benchmarks/paper/load/run.py --shape tiny --scale 16 --count 12             # CPU
    python benchmarks/paper/load/run.py --trace azure_2023_conv.csv --budget-seconds 420   # one GPU

First, the stock engine's capacity: workflows a second with `--closed` of them at any time. Then each variant
meets the same arrivals at each share of it.

Rows: `end_ms` of a workflow from its arrival, `end_p95_ms`, `end_p99_ms`, `workflows_a_second`, and
`ms_a_token`: what a workflow took for each of the tokens that its agents wrote. The nearer its 20th and 80th
percentile are to each other, the more evenly users are served.
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

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.teams import RoundRobinGroupChat

from benchmarks.paper import clients as model_clients
from benchmarks.paper.engines import flush, running
from benchmarks.paper.load.arrivals import Arrival, from_trace, made_up
from benchmarks.paper.slices import Slice
from benchmarks.paper.word_model import SHAPES, Texts, write_model
from benchmarks.rows import RESULTS, common, row
from flashagents_autogen import FlashRoundRobinGroupChat
from flashagents_runtime.embedded import EmbeddedEngine

AGENTS = 3
SYSTEM = 800  # tokens of each agent's system message, the same for all users
VARIANTS = {
    "stock-fcfs": ("stock-fcfs", False),
    "stock-lpm": ("stock-lpm", False),
    "intra-turn": ("flash", False),
    "ours": ("flash", True),
    "ours-sjf": ("flash-sjf", True),
}


@dataclass
class Served:
    """One workflow: seconds, and tokens that its agents wrote."""

    seconds: float
    tokens: int


class Load:
    """The workflows on one engine each."""

    def __init__(self, engines: dict[str, EmbeddedEngine], model: Path, texts: Texts, scale: int) -> None:
        self._engines = engines
        self._model = model
        self._texts = texts
        self._scale = scale
        self._systems = [texts.of(max(SYSTEM // scale, 4)) for _ in range(AGENTS)]

    async def workflow(self, variant: str, arrival: Arrival) -> Served:
        """One user's chain of agents."""
        engine, overlap = VARIANTS[variant]
        answer = max(arrival.answer // self._scale, 4)
        client = model_clients.ours(self._engines[engine], self._model)(answer)
        agents: list[Any] = [
            AssistantAgent(f"agent_{i}", model_client=client, system_message=system, model_client_stream=True)
            for i, system in enumerate(self._systems)
        ]
        kind = FlashRoundRobinGroupChat if overlap else RoundRobinGroupChat
        team: Any = kind(agents, max_turns=AGENTS)
        began = time.perf_counter()
        await team.run(task=self._texts.of(max(arrival.task // self._scale, 4)))
        return Served(time.perf_counter() - began, AGENTS * answer)

    async def closed(self, variant: str, arrivals: list[Arrival], at_once: int) -> float:
        """Workflows a second with so many of them at any time."""
        waiting = iter(arrivals)

        async def user() -> None:
            for arrival in waiting:
                await self.workflow(variant, arrival)

        await flush(self._engines[VARIANTS[variant][0]])
        began = time.perf_counter()
        await asyncio.gather(*(user() for _ in range(at_once)))
        return len(arrivals) / (time.perf_counter() - began)

    async def open(self, variant: str, arrivals: list[Arrival], rate: float) -> tuple[list[Served], float]:
        """What each workflow took at `rate` arrivals a second, and workflows a second over all."""
        await flush(self._engines[VARIANTS[variant][0]])
        began = time.perf_counter()

        async def user(arrival: Arrival) -> Served:
            await asyncio.sleep(max(began + arrival.at / rate - time.perf_counter(), 0))
            return await self.workflow(variant, arrival)

        served = await asyncio.gather(*(user(arrival) for arrival in arrivals))
        return list(served), len(arrivals) / (time.perf_counter() - began)


def quantile(values: list[float], q: float) -> float:
    """Of a sorted copy, the nearest rank."""
    ordered = sorted(values)
    return ordered[min(int(q * len(ordered)), len(ordered) - 1)]


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
            load = Load(engines, path, Texts(args.shape, args.seed), args.scale)
            device = "cpu" if cpu else torch.cuda.get_device_name()
            shared = common("sglang", "torch", "triton", "autogen-agentchat", device=device)
            out = Slice(args.out, shared, args.budget_seconds)
            # Kernels and graphs.
            for variant in dict.fromkeys(["stock-lpm", *args.variants]):
                await load.closed(variant, arrivals[: args.closed], args.closed)
            carried = [await load.closed("stock-lpm", arrivals, args.closed) for _ in range(3)]
            capacity = statistics.median(carried)
            print(f"stock carries {capacity:.2f} workflows a second", flush=True)
            for share in sorted(args.shares):
                case = {
                    "shape": args.shape,
                    "trace": args.trace.name if args.trace else "made up",
                    "scale": args.scale,
                    "count": args.count,
                    "load_percent": share,
                }
                if not out.missing(case, args.variants):
                    continue
                async with out.timed({**case, "output": share}, args.repeats) as fits:
                    if not fits:
                        continue
                    got: dict[str, list[tuple[list[Served], float]]] = {v: [] for v in args.variants}
                    for _ in range(args.repeats):
                        for variant in args.variants:
                            got[variant].append(await load.open(variant, arrivals, capacity * share / 100))
                    out.add(_rows(case, {**shared, "capacity": round(capacity, 3)}, got))
            out.end()


def _rows(
    case: dict[str, Any],
    shared: dict[str, Any],
    got: dict[str, list[tuple[list[Served], float]]],
) -> list[dict[str, Any]]:
    rows = []
    for variant, repeats in got.items():
        every = [1e3 * s.seconds for served, _ in repeats for s in served]
        values = {
            "end_ms": every,
            "end_p95_ms": [quantile([1e3 * s.seconds for s in served], 0.95) for served, _ in repeats],
            "end_p99_ms": [quantile([1e3 * s.seconds for s in served], 0.99) for served, _ in repeats],
            "workflows_a_second": [rate for _, rate in repeats],
            "ms_a_token": [1e3 * s.seconds / s.tokens for served, _ in repeats for s in served],
        }
        rows += [row("paper_load", variant, case, name, of, shared) for name, of in values.items()]
    return rows


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="qwen2.5-7b")
    parser.add_argument("--trace", type=Path, help="a CSV of Azure's LLM traces; default: made-up arrivals")
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
