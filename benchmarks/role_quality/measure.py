"""Play the held-out trajectories through judges and write their records; what is there is passed over."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flashagents_runtime.chat_tokenizer import HFChatTokenizer
from flashagents_runtime.role_training.pairs import end_token

from .cells import Cell
from .judge import Judge, Record, Top, play, to_json
from .trajectories import Tokens, load, tokens_of

Tops = dict[tuple[str, int], list[Top]]


class Task:
    """The held-out trajectories of a task, in the model's tokens."""

    def __init__(self, work: Path, task: str, model: Path, questions: int | None = None) -> None:
        tokenizer = HFChatTokenizer(model, chat_template=" ")
        self.end = end_token(model, tokenizer.backend_tokenizer)
        self.decode: Callable[[list[int]], str] = tokenizer.decode
        found = load(work / "data" / task / "test.json")[:questions]
        self.found: list[Tokens] = [tokens_of(trajectory, tokenizer) for trajectory in found]


def measure(cell: Cell, judge: Judge, task: Task, work: Path, *, batch: int) -> Sequence[Record]:
    """Records of one cell, written when all of them are there."""
    began = time.perf_counter()
    engine = cell.judge == "engine"
    found = task.found
    if cell.variant == "none_again":
        found, batch = found[::-1], max(1, batch // 3)
    base = load_tops(cell.tops(work)) if engine and cell.variant != "none" else None
    tops: Tops | None = {} if engine and cell.variant == "none" else None
    records = list(play(judge, found, task.decode, batch=batch, base=base, tops=tops))
    if tops is not None:
        save_tops(cell.tops(work), tops)
    file = cell.records(work)
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(".part")
    part.write_text("".join(json.dumps(to_json(r), ensure_ascii=False) + "\n" for r in records))
    os.replace(part, file)
    n = sum(r.tokens for r in records)
    print(
        f"{cell.task} {cell.judge} {cell.variant} {cell.team}: nll {sum(r.nll for r in records) / n:.4f}, "
        f"f1 {100 * sum(r.f1 for r in records) / len(records):.2f}, "
        f"exact {100 * sum(r.exact for r in records) / len(records):.2f}, {len(records)} turns, "
        f"{time.perf_counter() - began:.0f} s",
        flush=True,
    )
    return records


def save_tops(file: Path, tops: Tops) -> None:
    """Write them as flat arrays, with the questions as JSON beside."""
    file.parent.mkdir(parents=True, exist_ok=True)
    lengths, ids, values = [], [], []
    for places in tops.values():
        for place in places:
            lengths.append(len(place))
            ids += list(place)
            values += list(place.values())
    keys = json.dumps([[question, turn, len(places)] for (question, turn), places in tops.items()])
    part = file.with_suffix(".part.npz")
    np.savez_compressed(
        part,
        keys=np.frombuffer(keys.encode(), dtype=np.uint8),
        lengths=np.asarray(lengths, np.int32),
        ids=np.asarray(ids, np.int32),
        values=np.asarray(values, np.float32),
    )
    os.replace(part, file)


def load_tops(file: Path) -> Tops:
    """What `save_tops` wrote."""
    with np.load(file) as found:
        arrays: dict[str, Any] = {name: found[name] for name in found.files}
    ends = np.cumsum(arrays["lengths"])
    out: Tops = {}
    place = 0
    for question, turn, places in json.loads(arrays["keys"].tobytes().decode()):
        tops = []
        for _ in range(places):
            span = slice(int(ends[place] - arrays["lengths"][place]), int(ends[place]))
            tops.append(dict(zip(arrays["ids"][span].tolist(), arrays["values"][span].tolist(), strict=True)))
            place += 1
        out[question, turn] = tops
    return out
