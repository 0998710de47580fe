"""ReAct trajectories of plan, action and reflect agents, read from a folder of AutoAct's and LRAgent's data.

The files are not part of this repository (their licences are their owners'): `<task>_<role>.json` with pairs
of input and output, and `hotpotqa_react_200.json` with whole trajectories. All are brought into one form: the
same head, the same labels (the files write "Aciton" and "Obversation" in places), no numbers behind them,
observations of limited length, and a space before what follows a label, so that a text's tokens are those of
its parts.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from flashagents_runtime.role_training import Pair

from .trajectories import ROLES, Segment, Trajectory, is_test

HEAD = (
    "Answer the question with interleaving Thought, Action and Observation steps. Actions are "
    "BingSearch[query], Retrieve[entity], Lookup[keyword], Image2Text[image], Finish[answer], and after "
    "Finish Reflect[right] or Reflect[wrong].\n"
)
_LABEL = re.compile(r"\n(Thought|Action|Observation)(?: \d+)?:[ \t]*")
_ACTION = re.compile(r"([A-Za-z0-9]+)(\[.*\]?)?", re.DOTALL)
REFLECT = "Please reflect your answer."


def normalise(text: str, observation: int) -> str:
    """A text of the files in the one form; observations are cut to so many characters."""
    text = text.replace("Aciton", "Action").replace("Obversation", "Observation")
    _, sign, rest = text.partition("\nQuestion:")
    parts = _LABEL.split("\n" + sign.lstrip("\n") + rest)
    out = HEAD + parts[0].lstrip("\n").rstrip()
    for label, content in zip(parts[1::2], parts[2::2], strict=True):
        content = content.strip()
        if label == "Observation" and len(content) > observation:
            content = content[:observation].rsplit(" ", 1)[0] + " ..."
        out += f"\n{label}:" + (f" {content}" if content else "")
    return out


def question_of(text: str) -> str:
    """The question, with its options."""
    found = text.split("Question:", 1)[1]
    return " ".join(found.split("\nThought:", 1)[0].split())


def segments_of(text: str) -> tuple[Segment, ...]:
    """A whole normalised trajectory in parts: who wrote what.

    Thoughts and the names of actions are the planner's, what stands in brackets the actor's; after the
    answer everything is the reflecting role's.
    """
    parts = _LABEL.split(text)
    out = [Segment(parts[0])]
    answered = False
    for label, content in zip(parts[1::2], parts[2::2], strict=True):
        if label == "Observation":
            if answered and REFLECT not in content:
                break  # the verdict, which nobody reads
            out.append(Segment(f"\nObservation: {content}"))
            continue
        out.append(Segment(f"\n{label}:"))
        if answered:
            out.append(Segment(f" {content}", "reflect"))
            continue
        if label == "Thought":
            out.append(Segment(f" {content}", "plan"))
            continue
        action = _ACTION.match(content)
        if action is None or not action[2]:
            return ()
        out += [Segment(f" {action[1]}", "plan"), Segment(action[2], "action")]
        answered = action[1] == "Finish"
    return tuple(out) if answered else ()


def pair_of(input: str, output: str, role: str, observation: int) -> Pair | None:
    """A pair of the files in the one form; None for a plan after the answer: the reflecting role's."""
    reads, says = normalise(input, observation), output.strip()
    if not says or (role == "plan" and REFLECT in reads):
        return None
    if role == "action":
        return Pair(reads, f"[{says}]")
    if reads.endswith(("\nThought:", "\nAction:")):
        return Pair(reads, f" {says}")
    return Pair(reads + "\nAction:", f" {says}")


def trajectories(folder: Path, observation: int) -> list[Trajectory]:
    """Whole trajectories: ScienceQA's by the last pair of each in the reflect file, HotpotQA's as such."""
    ends = [p for p in _read(folder / "scienceqa_reflect.json") if p["output"].startswith("Reflect[")]
    texts = [("scienceqa", p["input"].rstrip() + "\nAction: " + p["output"]) for p in ends]
    texts += [("hotpotqa", t["prompt"]) for t in _read(folder / "hotpotqa_react_200.json") if t["correct"]]
    out: dict[str, Trajectory] = {}
    for source, text in texts:
        whole = normalise(text, observation)
        segments = segments_of(whole)
        if segments and {s.role for s in segments} >= set(ROLES):
            question = question_of(whole)
            out.setdefault(question, Trajectory(question, source, segments))
    return list(out.values())


def training_pairs(folder: Path, observation: int) -> list[tuple[str, Pair]]:
    """Pairs about questions that are not held out; HotpotQA's plan turns are cut from its trajectories."""
    found: dict[tuple[str, Pair], None] = {}
    for task in ("scienceqa", "hotpotqa"):
        for role in ROLES:
            file = folder / f"{task}_{role}.json"
            for p in _read(file) if file.exists() else []:
                pair = pair_of(p["input"], p["output"], role, observation)
                if pair is not None and not is_test(question_of(pair.input)):
                    found[role, pair] = None
    for trajectory in trajectories(folder, observation):
        if trajectory.source == "hotpotqa" and not is_test(trajectory.question):
            found.update(((r, p), None) for r, p in trajectory.pairs() if r == "plan")
    return list(found)


def _read(file: Path) -> list[dict[str, str]]:
    found: list[dict[str, str]] = json.loads(file.read_text())
    return found
