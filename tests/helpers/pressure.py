"""Many workflows on a pool too small for them, in a stepped scheduler, alone or beside useless warm-ups.

Time is counted in steps of the event loop that served real requests, or that were free to: a step in which
only warm-ups ran while a real request was in the system is *stolen* and counted apart. So a real request
that is admitted and finished at the same times as on stock SGLang has waited for nothing else.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from helpers.scheduler_harness import Request, SchedulerHarness

Disturb = Callable[[SchedulerHarness, int], None]
"""Called before each step, with its number."""


@dataclass
class Turn:
    """One request of a workflow: `think` steps after the turn before has ended."""

    rid: str
    prompt: list[int]
    new: int
    think: int = 0
    session: str | None = None


@dataclass
class Timeline:
    """What became of the real requests, by request id; times as the module says."""

    admitted: dict[str, int] = field(default_factory=dict)
    finished: dict[str, int] = field(default_factory=dict)
    outputs: dict[str, list[int]] = field(default_factory=dict)
    arrived: dict[str, int] = field(default_factory=dict)
    retractions: int = 0
    computed: int = 0
    """Prompt tokens of real requests that were computed."""
    stolen: int = 0
    stolen_from_waiting: int = 0
    """Stolen steps while a real request waited to be admitted."""

    def latency(self, share: float) -> int:
        """Steps from arrival to end: this share of requests has no more."""
        taken = sorted(self.finished[rid] - self.arrived[rid] for rid in self.finished)
        return taken[min(int(share * len(taken)), len(taken) - 1)]


def tokens(rng: random.Random, n: int) -> list[int]:
    """A prompt that is likely to share nothing with another one."""
    return [rng.randrange(4, 500) for _ in range(n)]


def workflows(seed: int, count: int, turns: int, *, history: bool) -> list[list[Turn]]:
    """Random workflows; with `history` a turn's prompt is the one before it and something more."""
    rng = random.Random(seed)
    made = []
    for w in range(count):
        prompt = tokens(rng, rng.randint(8, 32))
        turn_list = []
        for t in range(turns):
            more = tokens(rng, rng.randint(4, 24))
            prompt = [*prompt, *more] if history else [*more, *tokens(rng, rng.randint(8, 48))]
            turn_list.append(Turn(f"w{w:03d}t{t}", list(prompt), rng.randint(2, 16), rng.randint(0, 6)))
        made.append(turn_list)
    return made


def play(
    s: SchedulerHarness, load: list[list[Turn]], disturb: Disturb | None = None, max_steps: int = 20_000
) -> Timeline:
    """Play workflows to their ends, each turn after the one before it."""
    line = Timeline()
    left = [iter(turns) for turns in load]
    due: list[tuple[int, Iterator[Turn], Turn]] = []

    def queue(turns: Iterator[Turn], now: int) -> None:
        turn = next(turns, None)
        if turn is not None:
            due.append((now + turn.think, turns, turn))

    for turns in left:
        queue(turns, 0)
    running: dict[str, Iterator[Turn]] = {}
    clock = 0
    for n in range(max_steps):
        for at, turns, turn in [entry for entry in due if entry[0] <= clock]:
            due.remove((at, turns, turn))
            s.submit(Request(turn.rid, turn.prompt, turn.new, session_id=turn.session))
            line.arrived[turn.rid] = clock
            running[turn.rid] = turns
        if not running and not due:
            break
        if disturb is not None:
            disturb(s, n)
        waited = [rid for rid in running if rid not in line.admitted]
        step = s.step()
        mine = [rid for rid in step.rids if rid in line.arrived]
        if step.rids and not mine and running:
            line.stolen += 1
            line.stolen_from_waiting += bool(waited)
        else:
            clock += 1
        for rid, computed in zip(step.rids, step.extend_lens, strict=False):
            if rid in line.arrived:
                line.admitted.setdefault(rid, clock)
                line.computed += computed
        for rid in [rid for rid in running if rid in s.reqs and s.reqs[rid].finished()]:
            req = s.reqs.pop(rid)
            line.finished[rid], line.outputs[rid] = clock, list(req.output_ids)
            line.retractions += req.retraction_count
            queue(running.pop(rid), clock)
    else:
        raise AssertionError(f"{len(running)} requests are not done after {max_steps} steps")
    return line
