"""Train the roles' adapters, with a shared A and without, for some seeds.

    python -m benchmarks.role_quality.train --work WORK --seeds 0,1,2

The first role is trained once a seed; the others twice, with its A and with their own. What is done is passed
over, what was cut goes on from its checkpoint. `flashagents train-roles` does the same for one set.
"""

from __future__ import annotations

import argparse
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from flashagents_runtime import Progress
from flashagents_runtime.model_store import resolve_model
from flashagents_runtime.role_training import Recipe, train_roles

from . import arguments
from .cells import ADAPTERS, adapter_folders
from .trajectories import ROLES

RECIPES = {"agents": {"epochs": 3.0, "learning_rate": 1e-3}, "facts": {"epochs": 6.0, "learning_rate": 2e-3}}


def recipe(task: str, seed: int, args: argparse.Namespace) -> Recipe:
    """The recipe of a task; arguments win over the task's own."""
    given = {"epochs": args.epochs, "learning_rate": args.learning_rate, "max_pairs": args.max_pairs}
    return Recipe(
        **{
            **RECIPES.get(task, {}),
            **{name: value for name, value in given.items() if value is not None},
            "micro_batch": args.micro_batch,
            "batch_size": args.batch_size,
            "max_tokens": args.max_tokens,
            "rank": args.rank,
            "seed": seed,
        }
    )


def train(work: Path, model: Path, task: str, seed: int, args: argparse.Namespace) -> None:
    """Both sets of one seed."""
    files = {role: work / "data" / task / f"{role}.json" for role in ROLES}
    for adapters in ADAPTERS:
        out = work / "adapters" / task / str(seed) / adapters
        twin = adapter_folders(work, task, seed, ADAPTERS[0])[ROLES[0]]
        if adapters != ADAPTERS[0] and not (out / ROLES[0]).exists():
            shutil.copytree(twin, out / ROLES[0])  # nothing is shared with the first role
        began = time.perf_counter()
        last = [0.0]

        def tell(p: Progress, last: list[float] = last, began: float = began) -> None:
            now = time.perf_counter()
            if p.fraction is not None and (p.fraction in (0.0, 1.0) or now - last[0] > 20):
                last[0] = now
                print(f"{task} seed {seed}: {p.stage} {p.fraction:.0%} ({now - began:.0f} s)", flush=True)

        done = train_roles(
            model,
            files,
            out,
            recipe(task, seed, args),
            shared_a=adapters == "shared",
            device="cpu" if args.cpu else None,
            checkpoint_steps=args.checkpoint_steps,
            plot=False,
            progress=tell,
        )
        ends = {t.role: f"{sum(t.losses[-5:]) / len(t.losses[-5:]):.3f}" for t in done}
        print(f"{task} seed {seed}, {adapters} A: losses at the end {ends}", flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    parser = arguments.parser(__doc__)
    parser.add_argument("--epochs", type=float)
    parser.add_argument("--learning-rate", type=float)
    parser.add_argument("--max-pairs", type=int)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=1024)
    parser.add_argument("--micro-batch", type=int, default=16)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--checkpoint-steps", type=int, default=25)
    parser.add_argument("--cpu", action="store_true")
    args = arguments.parsed(parser, argv)
    model = Path(resolve_model(args.model))
    for seed in args.seeds:
        for task in args.tasks:
            train(args.work, model, task, seed, args)


if __name__ == "__main__":
    main()
