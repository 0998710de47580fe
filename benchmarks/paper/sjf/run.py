"""Shortest job first and the hand-off, alone and together, on jobs of mixed length.

    python benchmarks/paper/sjf/run.py --setup tiny-shared --scale 16            # CPU
    python benchmarks/paper/sjf/run.py --setup 7b-shared --budget-seconds 560    # one GPU

So many users each send a job (A writes, B answers) when their last one has ended. The engine runs `--slots`
requests at a time, so that jobs wait for one another: with room for all of them their order decides nothing.
Rows: mean and p99 of the jobs' times, and the mean of each kind, one value a repeat.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(_ROOT), str(_ROOT / "runtime")]

from benchmarks.handoff.conversation import Agents, Sample, Script
from benchmarks.handoff.model import write_model
from benchmarks.paper.cascade.cells import SETUPS
from benchmarks.paper.engines import flush, running
from benchmarks.paper.sjf.jobs import KINDS, PREFIX, jobs, nearest_rank
from benchmarks.paper.slices import Slice, rotated
from benchmarks.rows import RESULTS, common, row
from flashagents_runtime.chat_tokenizer import HFChatTokenizer
from flashagents_runtime.embedded import EmbeddedEngine

#: Of each variant: its engine, and whether A's tokens go to B's prefill while they come.
VARIANTS = {
    "stock-fcfs": ("stock-fcfs", False),
    "sjf": ("sjf-alone", False),
    "ours": ("flash", True),
    "ours-sjf": ("flash-sjf", True),
}
Times = list[tuple[str, float]]
"""Kind and seconds of each job."""


async def at_once(users: int, work: list[tuple[str, Callable[[], Coroutine[Any, Any, Any]]]]) -> Times:
    """Do all the work, so many at any time, in order; what each took from its turn on."""
    waiting, found = iter(work), []

    async def user() -> None:
        for kind, do in waiting:
            began = time.perf_counter()
            await do()
            found.append((kind, time.perf_counter() - began))

    await asyncio.gather(*(user() for _ in range(users)))
    return found


def figures(repeats: list[Times]) -> dict[str, list[float]]:
    """Metrics of one variant, a value a repeat."""
    found = {
        "job_mean_ms": [1e3 * statistics.mean(s for _, s in times) for times in repeats],
        "job_p99_ms": [1e3 * nearest_rank([s for _, s in times], 0.99) for times in repeats],
    }
    for kind in KINDS:
        of_kind = [[s for k, s in times if k == kind] for times in repeats]
        found[f"{kind}_mean_ms"] = [1e3 * statistics.mean(times) for times in of_kind if times]
    return found


class Queue:
    """The jobs on each engine."""

    def __init__(
        self, args: argparse.Namespace, engines: dict[str, EmbeddedEngine], agents: dict[str, Agents]
    ) -> None:
        self._args = args
        self._engines = engines
        self._agents = agents
        self._any = next(iter(agents.values()))

    async def once(self, variant: str, users: int, count: int, seed: int) -> Times:
        """All jobs of one repeat, from an empty cache."""
        name, overlap = VARIANTS[variant]
        scale = self._args.scale
        told = self._any.text(PREFIX // scale)
        agents = self._agents[name]
        work = []
        for job in jobs(count, seed, scale=scale):
            script = self._any.script(job.upstream, PREFIX // scale, told=told)
            script.answer = job.answer
            work.append((job.kind, _doing(agents.ours if overlap else agents.off, script)))
        await flush(self._engines[name])
        return await at_once(users, work)


def _doing(
    how: Callable[[Script], Coroutine[Any, Any, Sample]], script: Script
) -> Callable[[], Coroutine[Any, Any, Sample]]:
    return lambda: how(script)


async def measure(args: argparse.Namespace) -> None:
    """Start, run, end."""
    import torch

    cpu = not torch.cuda.is_available()
    setup = SETUPS[args.setup]
    device = "cpu" if cpu else torch.cuda.get_device_name()
    out = Slice(args.out, common("sglang", "torch", "triton", device=device), args.budget_seconds)
    names = list(dict.fromkeys(VARIANTS[v][0] for v in args.variants))
    more: dict[str, Any] = {"max_running_requests": args.slots}
    if not cpu:
        more["cuda_graph_bs_decode"] = [n for n in (1, 2, 4, 8, 16, 32) if n < args.slots] + [args.slots]
    with tempfile.TemporaryDirectory() as folder:
        path = write_model(Path(folder), setup.shape)
        async with AsyncExitStack() as stack:
            engines = await stack.enter_async_context(running(names, path, cpu=cpu, more=more))
            chat, agents = HFChatTokenizer(path), {}
            for name, engine in engines.items():
                agents[name] = Agents(engine, chat, args.seed, rate=setup.rate, scale=args.scale)
                stack.push_async_callback(agents[name].close)
            queue = Queue(args, engines, agents)
            for variant in args.variants:  # kernels and graphs, and the chunks' times
                await queue.once(variant, 4, 6, 0)
            for users, count in args.users:
                case = {
                    "setup": args.setup,
                    "scale": args.scale,
                    "slots": args.slots,
                    "jobs": count,
                    "concurrency": users,
                }
                if not out.missing(case, args.variants):
                    continue
                async with out.timed(case, args.repeats) as fits:
                    if not fits:
                        continue
                    got: dict[str, list[Times]] = {v: [] for v in args.variants}
                    for i in range(args.repeats):
                        for variant in rotated(args.variants, i):
                            got[variant].append(await queue.once(variant, users, count, i + 1))
                    rows = []
                    for variant, repeats in got.items():
                        for metric, values in figures(repeats).items():
                            rows.append(row("paper_sjf", variant, case, metric, values, out.shared))
                    out.add(rows)
    out.end()


def _users(text: str) -> list[tuple[int, int]]:
    """`1:9,10:40` is one user with 9 jobs in all, then ten with 40."""
    pairs = [part.split(":") for part in text.split(",")]
    return [(int(users), int(count)) for users, count in pairs]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--setup", choices=SETUPS, default="tiny-shared")
    parser.add_argument("--users", type=_users, default="10:40,1:9", help="USERS:JOBS, with commas between")
    parser.add_argument("--slots", type=int, default=4, help="requests that an engine runs at a time")
    parser.add_argument("--variants", type=lambda t: t.split(","), default=list(VARIANTS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--scale", type=int, default=1, help="divides all token counts")
    parser.add_argument("--budget-seconds", type=float, default=1e9, help="start no cell that ends later")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--out", type=Path, default=RESULTS / "paper_sjf.jsonl")
    args = parser.parse_args()
    if unknown := set(args.variants) - set(VARIANTS):
        parser.error(f"no such variants: {', '.join(sorted(unknown))}; there are {', '.join(VARIANTS)}")
    asyncio.run(measure(args))


if __name__ == "__main__":
    main()
