"""The sharing schemes on the held-out trajectories, through an engine.

    python -m benchmarks.role_quality.evaluate --work WORK --seeds 0,1,2
    python -m benchmarks.role_quality.evaluate --work WORK --seeds 0 --cpu --questions 8

For each turn the role's request finds what the turns before it have cached, by whichever role; its greedy
answer is compared with the reference, and the reference is then fed and its log-probs kept. Several teams of
adapters run in one engine, `base_lr` one team at a time. `--refused` asks an engine to start `base_lr`
without a shared A, and keeps its refusal.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flashagents_runtime.model_store import resolve_model

from . import arguments
from .cells import Cell, cells, due
from .engines import Engines
from .measure import Task, measure


def batches_of(wanted: list[Cell]) -> list[list[Cell]]:
    """Cells that one engine can serve: those of a scheme, but `base_lr` takes one group an engine."""
    found: dict[Any, list[Cell]] = {}
    for cell in wanted:
        key = (cell.scheme, cell.task, cell.team) if cell.scheme == "base_lr" else (cell.scheme,)
        found.setdefault(key, []).append(cell)
    return list(found.values())


def run(args: argparse.Namespace) -> int:
    """Measure what is due; the number of cells that are left."""
    began = time.perf_counter()
    model = Path(resolve_model(args.model))
    schemes = args.schemes.split(",")
    wanted = [c for t in args.tasks for c in cells("engine", t, args.seeds) if c.scheme in schemes]
    held_out = {task: Task(args.work, task, model, args.questions) for task in args.tasks}
    left = due(args.work, wanted)
    for together in batches_of(left):
        if time.perf_counter() - began > args.budget_seconds - args.reserve_seconds:
            break
        end = held_out[args.tasks[0]].end
        teams = {f"{c.task}-{c.team}": c.folders(args.work) for c in together}
        engines = Engines(
            model, together[0].scheme, teams, end, cpu=args.cpu, **engine_args(args, len(teams))
        )
        try:
            print(f"{together[0].scheme}: started in {engines.engine.start_seconds:.0f} s", flush=True)
            for cell in together:
                if time.perf_counter() - began > args.budget_seconds:
                    break
                judge = engines.judge(f"{cell.task}-{cell.team}")
                measure(cell, judge, held_out[cell.task], args.work, batch=args.batch)
                print(f"  {judge.cached / judge.prompt:.1%} of the prompts' tokens were cached", flush=True)
        finally:
            engines.close()
    return len(due(args.work, wanted))


def engine_args(args: argparse.Namespace, teams: int) -> dict[str, Any]:
    """SGLang's arguments."""
    found: dict[str, Any] = {"context_length": 2048, "max_loras_per_batch": 3 * teams + 1}
    if args.cpu:
        found |= {"max_total_tokens": 32768}
    else:
        found |= {"dtype": args.dtype, "mem_fraction_static": 0.5, "max_total_tokens": 300_000}
        found |= {"attention_backend": args.attention, "cuda_graph_bs_decode": [1, 8, 16, 32, 64, 96]}
    return found | {name: json.loads(text) for name, _, text in (pair.partition("=") for pair in args.set)}


def refusal(args: argparse.Namespace) -> str:
    """What an engine says to `base_lr` of adapters that do not share their A."""
    from flashagents_runtime.embedded import EmbeddedEngine
    from flashagents_runtime.errors import EngineStartError

    model = Path(resolve_model(args.model))
    folders = Cell(args.tasks[0], "engine", "base_lr", "own", args.seeds[0]).folders(args.work)

    async def start() -> str:
        engine = EmbeddedEngine(
            str(model), lora_paths={k: str(v) for k, v in folders.items()}, lora_sharing="base_lr"
        )
        try:
            await engine.start()
        except EngineStartError as e:
            return str(e)
        finally:
            await engine.close()
        raise SystemExit("the engine has taken adapters that share no A")

    return asyncio.run(start())


def main(argv: Sequence[str] | None = None) -> None:
    parser = arguments.parser(__doc__)
    parser.add_argument("--schemes", default="none,full,base,base_lr,precomputed")
    parser.add_argument("--questions", type=int, help="the first ones; left out, all")
    parser.add_argument("--batch", type=int, default=96, help="trajectories at once")
    parser.add_argument("--dtype", default="bfloat16", help="on a GPU")
    parser.add_argument("--attention", default="triton", help="of stock and `full` on a GPU")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=JSON", help="server arguments")
    parser.add_argument("--budget-seconds", type=float, default=500)
    parser.add_argument("--reserve-seconds", type=float, default=60, help="what a start and a cell need")
    parser.add_argument("--refused", action="store_true")
    parser.add_argument("--cpu", action="store_true")
    args = arguments.parsed(parser, argv)
    if args.refused:
        text = refusal(args)
        line = next(line for line in text.splitlines() if "does not fit" in line)
        why = line[line.index("LoRA adapter") :]
        (args.work / "refused.txt").write_text(why + "\n")
        print(why)
        return
    left = run(args)
    print(f"{left} cells left: run it again" if left else "all cells are measured")


if __name__ == "__main__":
    main()
