"""Split the tasks by question and write what training and evaluation read.

    python -m benchmarks.role_quality.prepare --work WORK --trajectories ../shared/data/role_trajectories
    python -m benchmarks.role_quality.prepare --work WORK            # the task that is made here, alone

`WORK/data/<task>/<role>.json` are the pairs to train on, `WORK/data/<task>/test.json` the trajectories that
are held out. Nothing of the agents' text is written into the repository.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flashagents_runtime.role_training import Pair

from . import agent_text, facts
from .trajectories import ROLES, Trajectory, is_test, save, save_pairs


def prepare_facts(work: Path, train: int, test: int, boxes: int, things: int) -> dict[str, Any]:
    """The task of code words: two seeds, one for training and one for the test."""
    pairs = [
        pair
        for trajectory in facts.make(train, seed=1, boxes=boxes, things=things)
        for pair in trajectory.pairs()
    ]
    held_out = facts.make(test, seed=2, boxes=boxes, things=things)
    return _write(work, "facts", pairs, held_out, {"boxes": boxes, "things": things})


def prepare_agents(work: Path, folder: Path, observation: int, test: int | None) -> dict[str, Any]:
    """The agents' trajectories."""
    pairs = agent_text.training_pairs(folder, observation)
    random.Random(3).shuffle(pairs)  # `max_pairs` then takes of all
    held_out = [t for t in agent_text.trajectories(folder, observation) if is_test(t.question)]
    random.Random(4).shuffle(held_out)
    return _write(work, "agents", pairs, held_out[:test], {"observation": observation})


def _write(
    work: Path, task: str, pairs: list[tuple[str, Pair]], held_out: list[Trajectory], extra: dict[str, Any]
) -> dict[str, Any]:
    unique = {t.text: t for t in held_out}
    held_out = [
        Trajectory(f"{i:03} {t.question}"[:200], t.source, t.segments) for i, t in enumerate(unique.values())
    ]
    folder = work / "data" / task
    save_pairs(folder, pairs)
    save(folder / "test.json", held_out)
    about = {
        "task": task,
        "pairs": {role: sum(r == role for r, _ in pairs) for role in ROLES},
        "questions": len(held_out),
        "turns": sum(1 for t in held_out for s in t.segments if s.role),
        **extra,
    }
    (folder / "about.json").write_text(json.dumps(about))
    print(json.dumps(about))
    return about


def main(argv: Sequence[str] | None = None) -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--trajectories", type=Path, help="folder of the agents' trajectories")
    parser.add_argument("--observation", type=int, default=600, help="longest observation, in characters")
    parser.add_argument("--questions", type=int, help="held-out questions of the agents' task; left out, all")
    parser.add_argument("--facts", type=int, nargs=2, default=(2000, 80), metavar=("TRAIN", "TEST"))
    parser.add_argument("--boxes", type=int, default=6)
    parser.add_argument("--things", type=int, default=len(facts.THINGS))
    args = parser.parse_args(argv)
    prepare_facts(args.work, *args.facts, boxes=args.boxes, things=args.things)
    if args.trajectories is not None:
        prepare_agents(args.work, args.trajectories, args.observation, args.questions)


if __name__ == "__main__":
    main()
