"""The schemes on some held-out trajectories by their definitions in torch: DroidSpeak, and the cross-check.

    python -m benchmarks.role_quality.define --work WORK --seeds 0,1,2 --questions 40 --device cuda

Float64, one trajectory at a time: the first `--questions` of those that the engine has. `base_lr_own` is
`base_lr` for adapters that do not share their A, which an engine refuses.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import torch

from flashagents_runtime.model_store import resolve_model

from . import arguments
from .cells import cells, due
from .definitions import DefinitionJudge
from .measure import Task, measure


def main(argv: Sequence[str] | None = None) -> None:
    parser = arguments.parser(__doc__)
    parser.add_argument("--schemes", default="none,droidspeak,base_lr_own,base_lr,full,base,precomputed")
    parser.add_argument("--questions", type=int, default=40)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--part", default="0/1", help="I/N: the I-th of N processes that run side by side")
    parser.add_argument("--budget-seconds", type=float, default=500)
    args = arguments.parsed(parser, argv)
    began = time.perf_counter()
    model = Path(resolve_model(args.model))
    order = args.schemes.split(",")
    wanted = [c for task in args.tasks for c in cells("definition", task, args.seeds) if c.scheme in order]
    wanted.sort(key=lambda c: order.index(c.scheme))
    mine, parts = (int(n) for n in args.part.split("/"))
    wanted = wanted[mine::parts]
    for cell in due(args.work, wanted):
        if time.perf_counter() - began > args.budget_seconds:
            print("no time left: run it again")
            return
        task = Task(args.work, cell.task, model, args.questions)
        with torch.no_grad():
            judge = DefinitionJudge(model, cell.folders(args.work), cell.scheme, task.end, device=args.device)
            measure(cell, judge, task, args.work, batch=1)


if __name__ == "__main__":
    main()
