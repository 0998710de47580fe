"""The paper's workflows through AutoGen: stock SGLang by two clients, and ours.

    python benchmarks/paper/workflows/run.py chain --shape tiny --scale 16             # CPU
    python benchmarks/paper/workflows/run.py chain --budget-seconds 400                # one GPU, 7B
    python benchmarks/paper/workflows/run.py chain --downstream qwen2.5-32b --gpus 2   # two GPUs

Variants are `ENGINE, MODE`; `openai-fcfs` and `openai-lpm` are a stock server behind AutoGen's OpenAI client
(needs `autogen-ext[openai]`), `stock-fcfs` and `stock-lpm` a stock engine behind ours, `flash` is everything.
Rows are appended cell by cell; run the same command again for what is missing.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(_ROOT), str(_ROOT / "runtime")]

from benchmarks.paper import clients as model_clients
from benchmarks.paper.engines import CPU_ARGS, GPU_ARGS, flush, running
from benchmarks.paper.slices import Slice, rotated
from benchmarks.paper.word_model import SHAPES, Texts, write_model
from benchmarks.paper.workflows.teams import WORKFLOWS, Clients, Lengths, Times
from benchmarks.rows import RESULTS, common, row

DEFAULT = {
    "chain": ("openai-fcfs, stock", "openai-lpm, stock", "stock-lpm, stock", "flash, stock", "flash, ours"),
    "map_reduce": (
        "openai-lpm, sequential",
        "openai-lpm, graph",
        "stock-lpm, sequential",
        "stock-lpm, graph",
        "flash, graph",
        "flash, ours",
    ),
    "slides": (
        "openai-lpm, after the outline",
        "stock-fcfs, after the outline",
        "stock-lpm, after the outline",
        "flash, after the outline",
        "flash, with its item",
    ),
}


@dataclass
class Backend:
    """One engine or server, or a pair of them."""

    clients: Clients
    flush: Callable[[], Awaitable[object]]


async def backends(
    args: argparse.Namespace, stack: AsyncExitStack, folder: Path, cpu: bool
) -> dict[str, Backend]:
    """Everything that the variants need, started."""
    names = list(dict.fromkeys(variant.split(", ")[0] for variant in args.variants))
    shapes = [args.shape] if args.downstream in (None, args.shape) else [args.shape, args.downstream]
    found: dict[str, list[tuple[model_clients.ClientFactory, Callable[[], Awaitable[object]]]]] = {}
    for place, shape in enumerate(shapes):
        path = write_model(folder, shape)
        gpu = place % args.gpus
        embedded = [name for name in names if not name.startswith("openai-")]
        engines = await stack.enter_async_context(running(embedded, path, cpu=cpu, gpu=gpu))
        for name, engine in engines.items():
            pair = (model_clients.ours(engine, path), functools.partial(flush, engine))
            found.setdefault(name, []).append(pair)
        for name in names:
            if name.startswith("openai-"):
                server_args: dict[str, Any] = {
                    **(_SERVER_ON_CPU if cpu else GPU_ARGS),
                    "load_format": "dummy",
                    "schedule_policy": name.removeprefix("openai-"),
                }
                if gpu:
                    server_args["base_gpu_id"] = gpu
                address, key = await stack.enter_async_context(model_clients.stock_server(path, server_args))
                empty = functools.partial(asyncio.to_thread, model_clients.flush_server, address, key)
                found.setdefault(name, []).append((model_clients.openai(address, key), empty))

    def both(flushes: list[Callable[[], Awaitable[object]]]) -> Callable[[], Awaitable[object]]:
        return lambda: asyncio.gather(*(f() for f in flushes))

    return {
        name: Backend((pairs[0][0], pairs[-1][0]), both([f for _, f in pairs]))
        for name, pairs in found.items()
    }


_SERVER_ON_CPU: dict[str, Any] = {
    **CPU_ARGS,
    "device": "cpu",
    "attention_backend": "torch_native",
    "sampling_backend": "pytorch",
    "grammar_backend": "none",
    "dtype": "float32",
    "disable_cuda_graph": True,
}


async def measure(args: argparse.Namespace) -> None:
    """Start, run, end."""
    import torch

    cpu = not torch.cuda.is_available()
    texts = Texts(args.shape, args.seed)
    length = Lengths(args.scale)
    with tempfile.TemporaryDirectory() as folder:
        async with AsyncExitStack() as stack:
            found = await backends(args, stack, Path(folder), cpu)
            device = "cpu" if cpu else torch.cuda.get_device_name()
            shared = common("sglang", "torch", "triton", "autogen-agentchat", "autogen-ext", device=device)
            out = Slice(args.out, shared, args.budget_seconds)

            async def once(variant: str, at_once: int) -> list[Times]:
                backend, mode = variant.split(", ")
                await found[backend].flush()
                flow = WORKFLOWS[args.workflow](texts, length)  # N users of one application
                return list(
                    await asyncio.gather(*(flow.run(found[backend].clients, mode) for _ in range(at_once)))
                )

            for at_once in (1, 8):
                for variant in args.variants:
                    await once(variant, at_once)
            for at_once in args.concurrency:
                case = {
                    "workflow": args.workflow,
                    "upstream": args.shape,
                    "downstream": args.downstream or args.shape,
                    "gpus": args.gpus,
                    "scale": args.scale,
                    "concurrency": at_once,
                }
                if not out.missing(case, args.variants):
                    continue
                async with out.timed(case, args.repeats) as fits:
                    if fits:
                        got: dict[str, list[list[Times]]] = {variant: [] for variant in args.variants}
                        for i in range(args.repeats):
                            for variant in rotated(args.variants, i):
                                got[variant].append(await once(variant, at_once))
                        rows = _rows(args.workflow, case, out.shared, got)
                        out.add(rows)
            out.end()


def _rows(
    workflow: str, case: dict[str, Any], shared: dict[str, Any], got: dict[str, list[list[Times]]]
) -> list[dict[str, Any]]:
    """End to end of each workflow, the slowest of each repeat as `_last`, and all hand-offs."""
    handoffs = WORKFLOWS[workflow].handoffs
    rows = []
    for variant, repeats in got.items():
        every = [times for of_repeat in repeats for times in of_repeat]
        values = {
            "end_ms": [1e3 * times.end for times in every],
            "end_last_ms": [1e3 * max(times.end for times in of_repeat) for of_repeat in repeats],
            "handoff_ms": [1e3 * handoff for times in every for handoff in handoffs(times)],
        }
        rows += [row("paper_workflows", variant, case, name, of, shared) for name, of in values.items()]
    return rows


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("workflow", choices=WORKFLOWS)
    parser.add_argument("--shape", choices=SHAPES, default="qwen2.5-7b", help="upstream's model")
    parser.add_argument("--downstream", choices=SHAPES, help="downstream's model; default: upstream's engine")
    parser.add_argument("--gpus", type=int, choices=(1, 2), default=1)
    parser.add_argument("--variants", help="with ; between")
    parser.add_argument("--concurrency", type=lambda t: [int(n) for n in t.split(",")], default=[1, 2, 4, 8])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--scale", type=int, default=1, help="divides all token counts")
    parser.add_argument("--budget-seconds", type=float, default=1e9, help="start no cell that ends later")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--out", type=Path, default=RESULTS / "paper_workflows.jsonl")
    args = parser.parse_args()
    args.variants = args.variants.split("; ") if args.variants else list(DEFAULT[args.workflow])
    asyncio.run(measure(args))


if __name__ == "__main__":
    main()
