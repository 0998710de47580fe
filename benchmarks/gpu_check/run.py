"""The travel planner on a GPU, through the whole stack: client, embedded engine, plug-in.

    python benchmarks/gpu_check/run.py [--engine-arg NAME=VALUE ...] [--model FOLDER] [--starts 3]

Prints the conversation and its table as `make demo` does, then starts the engine again a few times, and
writes `benchmarks/results/gpu_check.jsonl`: seconds to ready by stage, and per turn.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / "examples/travel_planner")]
import main as planner
from arguments import engine_argument
from rows import RESULTS, append, common, row

from flashagents_autogen import FlashAgentsChatCompletionClient
from flashagents_runtime import Progress


async def once(args: argparse.Namespace, engine_args: dict[str, Any], out: Console) -> tuple[Any, ...]:
    stages: dict[str, float] = {}
    began = time.perf_counter()

    def note(progress: Progress) -> None:
        stages.setdefault(progress.stage, time.perf_counter() - began)

    client = FlashAgentsChatCompletionClient(
        args.model,
        engine_args=engine_args,
        max_tokens=args.max_tokens,
        temperature=0.0,
        repetition_penalty=1.1,
    )
    try:
        info = await client.start(note)
        out.print(f"{info}")
        turns = await planner.watch(planner.build_team(client, overlap=False), planner.TASK, out)
        planner.print_table(turns, out)
        again = await planner.watch(
            planner.build_team(client, overlap=False), planner.TASK, Console(quiet=True)
        )
        state = await client.engine.state()
    finally:
        await client.close()
    return stages, turns, again, info, state


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--engine-arg", type=engine_argument, action="append", default=[], metavar="NAME=VALUE"
    )
    parser.add_argument("--model")
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=120)
    parser.add_argument("--out", type=Path, default=RESULTS / "gpu_check.jsonl")
    args = parser.parse_args()
    engine_args = dict(args.engine_arg)
    runs = []
    for i in range(args.starts):
        runs.append(asyncio.run(once(args, engine_args, Console(quiet=i > 0, force_terminal=False))))
        print(
            "state at the end:",
            runs[-1][4],
            "seconds to ready:",
            round(max(runs[-1][0].values()), 1),
            flush=True,
        )
    import torch

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    shared = common("sglang", "torch", "triton", device=device)
    rows = []
    case: dict[str, Any] = {"model": "default", **engine_args}
    for stage in runs[0][0]:
        seconds = [stages[stage] for stages, *_ in runs if stage in stages]
        rows.append(row("gpu_check", "ours", {**case, "until": stage}, "seconds", seconds, shared))
    for name, which in (("cold", 1), ("repeated", 2)):
        for turn in range(len(runs[0][which])):
            each = [run[which][turn] for run in runs]
            at = {**case, "conversation": name, "agent": each[0].agent, "prompt": each[0].prompt_tokens}
            values = {
                "cached_tokens": [t.cached_tokens for t in each],
                "first_token": [t.first_token - t.began for t in each],
                "tokens_per_second": [t.tokens_per_second for t in each],
            }
            rows += [row("gpu_check", "ours", at, metric, found, shared) for metric, found in values.items()]
    append(args.out, rows)


if __name__ == "__main__":
    main()
