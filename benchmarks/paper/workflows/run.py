"""The paper's workflows through AutoGen: stock SGLang by two clients, and ours.

    python benchmarks/paper/workflows/run.py chain --shape tiny --scale 16             # CPU
    python benchmarks/paper/workflows/run.py chain --budget-seconds 400                # one GPU, 7B
    python benchmarks/paper/workflows/run.py chain --downstream qwen2.5-32b --gpus 2 --in-turn --pool 60000

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
    args: argparse.Namespace, names: list[str], stack: AsyncExitStack, folder: Path, cpu: bool
) -> dict[str, Backend]:
    """These engines and servers, started."""
    more = {"max_total_tokens": args.pool} if args.pool else {}
    shapes = [args.shape] if args.downstream in (None, args.shape) else [args.shape, args.downstream]
    found: dict[str, list[tuple[model_clients.ClientFactory, Callable[[], Awaitable[object]]]]] = {}
    for place, shape in enumerate(shapes):
        path = write_model(folder, shape)
        gpu = place % args.gpus
        embedded = [name for name in names if not name.startswith("openai-")]
        engines = await stack.enter_async_context(running(embedded, path, cpu=cpu, gpu=gpu, more=more))
        for name, engine in engines.items():
            pair = (model_clients.ours(engine, path), functools.partial(flush, engine))
            found.setdefault(name, []).append(pair)
        for name in names:
            if name.startswith("openai-"):
                server_args: dict[str, Any] = {
                    **(_SERVER_ON_CPU if cpu else GPU_ARGS),
                    "load_format": "dummy",
                    "schedule_policy": name.removeprefix("openai-"),
                    **more,
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
    """All engines at once or in turn: start, run, end."""
    import torch

    cpu = not torch.cuda.is_available()
    device = "cpu" if cpu else torch.cuda.get_device_name()
    shared = common("sglang", "torch", "triton", "autogen-agentchat", "autogen-ext", device=device)
    out = Slice(args.out, shared, args.budget_seconds)
    names = list(dict.fromkeys(variant.split(", ")[0] for variant in args.variants))
    for group in [[name] for name in names] if args.in_turn else [names]:
        variants = [variant for variant in args.variants if variant.split(", ")[0] in group]
        if not any(out.missing(_case(args, at_once), variants) for at_once in args.concurrency):
            continue
        if group != names and out.left < 90:
            print(f"no time for {', '.join(group)}: run it again", flush=True)
            continue
        with tempfile.TemporaryDirectory() as folder:
            async with AsyncExitStack() as stack:
                found = await backends(args, group, stack, Path(folder), cpu)
                await cells(args, variants, found, out)
    out.end()


def _case(args: argparse.Namespace, at_once: int) -> dict[str, Any]:
    return {
        "workflow": args.workflow,
        "upstream": args.shape,
        "downstream": args.downstream or args.shape,
        "gpus": args.gpus,
        "scale": args.scale,
        "concurrency": at_once,
    }


async def cells(args: argparse.Namespace, variants: list[str], found: dict[str, Backend], out: Slice) -> None:
    """What these variants lack and what fits into the time."""
    texts, length = Texts(args.shape, args.seed), Lengths(args.scale)

    async def once(variant: str, at_once: int) -> list[Times]:
        backend, mode = variant.split(", ")
        await found[backend].flush()
        flow = WORKFLOWS[args.workflow](texts, length)  # N users of one application
        return list(await asyncio.gather(*(flow.run(found[backend].clients, mode) for _ in range(at_once))))

    for at_once in (1, 8):
        for variant in variants:
            await once(variant, at_once)
    for at_once in args.concurrency:
        case = _case(args, at_once)
        if not out.missing(case, variants):
            continue
        async with out.timed(case, args.repeats) as fits:
            if fits:
                got: dict[str, list[list[Times]]] = {variant: [] for variant in variants}
                for i in range(args.repeats):
                    for variant in rotated(variants, i):
                        got[variant].append(await once(variant, at_once))
                out.add(_rows(args.workflow, case, out.shared, got))


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
    parser.add_argument("--in-turn", action="store_true", help="one engine after another: large models")
    parser.add_argument("--pool", type=int, help="tokens of each engine's KV pool")
    parser.add_argument("--budget-seconds", type=float, default=1e9, help="start no cell that ends later")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--out", type=Path, default=RESULTS / "paper_workflows.jsonl")
    args = parser.parse_args()
    args.variants = args.variants.split("; ") if args.variants else list(DEFAULT[args.workflow])
    asyncio.run(measure(args))


if __name__ == "__main__":
    main()
