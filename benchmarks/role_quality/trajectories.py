"""Trajectories of several roles: one text, of which each role has written some parts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flashagents_runtime.role_training import Pair

ROLES = ("plan", "action", "reflect")


@dataclass(frozen=True)
class Segment:
    """A part of a trajectory; without a role it is given (the task, what a tool says)."""

    text: str
    role: str = ""


@dataclass(frozen=True)
class Trajectory:
    """Segments whose texts, one after the other, are the whole.

    Attributes:
        question: what it is about; trajectories of one question are never split between training and test.
        source: where it comes from.
    """

    question: str
    source: str
    segments: tuple[Segment, ...]

    @property
    def text(self) -> str:
        return "".join(segment.text for segment in self.segments)

    def pairs(self) -> Iterator[tuple[str, Pair]]:
        """Each role's parts as (role, pair): all that comes before, and the part."""
        before = ""
        for segment in self.segments:
            if segment.role:
                yield segment.role, Pair(before, segment.text)
            before += segment.text


def is_test(question: str, share: float = 0.3) -> bool:
    """Whether a question is held out: decided by its text alone, so the split is the same everywhere."""
    digest = hashlib.sha256(" ".join(question.split()).lower().encode()).hexdigest()
    return int(digest[:8], 16) < share * 0x100000000


@dataclass(frozen=True)
class Turn:
    """A role's part in tokens: it reads `ids[:start]` and should write `ids[start:stop]`."""

    role: str
    start: int
    stop: int


@dataclass(frozen=True)
class Tokens:
    """A trajectory in tokens, each segment tokenised by itself, so that a context is a prefix of the next."""

    question: str
    source: str
    ids: list[int]
    turns: list[Turn]


def tokens_of(trajectory: Trajectory, tokenizer: Any) -> Tokens:
    """Segments become turns; `tokenizer` is a ChatTokenizer."""
    ids: list[int] = []
    turns = []
    for segment in trajectory.segments:
        new = tokenizer.encode(segment.text)
        if segment.role:
            turns.append(Turn(segment.role, len(ids), len(ids) + len(new)))
        ids += new
    return Tokens(trajectory.question, trajectory.source, ids, turns)


def save(file: Path, found: Sequence[Trajectory]) -> None:
    """Write trajectories as JSON."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps([asdict(t) for t in found], ensure_ascii=False))


def load(file: Path) -> list[Trajectory]:
    """What `save` wrote."""
    return [
        Trajectory(t["question"], t["source"], tuple(Segment(**s) for s in t["segments"]))
        for t in json.loads(file.read_text())
    ]


def save_pairs(folder: Path, found: Sequence[tuple[str, Pair]]) -> None:
    """Write `<role>.json` for each role, in the form that `flashagents train-roles` reads."""
    folder.mkdir(parents=True, exist_ok=True)
    for role in ROLES:
        pairs = [{"input": p.input, "output": p.output} for r, p in found if r == role]
        (folder / f"{role}.json").write_text(json.dumps(pairs, ensure_ascii=False, indent=0))
