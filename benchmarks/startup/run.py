"""What an engine start costs, and what forking SGLang's children saves on a machine without CUDA.

    python benchmarks/startup/run.py [--repeats 5] [--model FOLDER] [--variants fork spawn]

Each repeat starts an engine, waits until it is ready, and closes it. Metrics: `seconds` of wall time to
ready, to each stage as `progress` reports it, and `cpu_seconds` of all the engine's processes together,
which is the figure to compare on a machine that does other work as well.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))
from rows import RESULTS, append, common, row

from flashagents_runtime import Progress
from flashagents_runtime.embedded import EmbeddedEngine


async def start(model: str | None) -> tuple[dict[str, float], float, str]:
    """Seconds to each stage, CPU seconds, device."""
    begun = time.perf_counter()
    stages: dict[str, float] = {}

    def note(progress: Progress) -> None:
        stages.setdefault(progress.stage, time.perf_counter() - begun)

    engine = EmbeddedEngine(model)
    info = await engine.start(note)
    assert engine._host is not None and engine._host._process is not None
    host = psutil.Process(engine._host._process.pid)
    cpu = sum(sum(p.cpu_times()[:2]) for p in [host, *host.children(recursive=True)])
    await engine.close()
    return stages, cpu, info.device


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--model")
    parser.add_argument("--variants", nargs="+", default=["fork", "spawn"])
    parser.add_argument("--out", type=Path, default=RESULTS / "startup.jsonl")
    args = parser.parse_args()
    found: dict[str, list[tuple[dict[str, float], float, str]]] = {v: [] for v in args.variants}
    for _ in range(args.repeats):
        for variant in args.variants:
            os.environ["FLASHAGENTS_START_METHOD"] = variant
            found[variant].append(asyncio.run(start(args.model)))
    rows = []
    for variant, runs in found.items():
        shared = common("sglang", "torch", device=runs[0][2])
        case = {"model": args.model or "default"}
        rows.append(row("startup", variant, case, "cpu_seconds", [cpu for _, cpu, _ in runs], shared))
        for stage in runs[0][0]:
            seconds = [stages[stage] for stages, _, _ in runs if stage in stages]
            rows.append(row("startup", variant, {**case, "until": stage}, "seconds", seconds, shared))
    append(args.out, rows)


if __name__ == "__main__":
    main()
