"""Workflows in a stepped scheduler whose time is reckoned, not measured: the same on every machine.

A pass of the engine lasts as long as its `Cost` says; a scheduler's own work lasts no time. Requests come,
and forecasts of no use are made, by that time, and the plug-in's budget and pins see no other clock.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from helpers.reckoned_steps import Cost, ReckonedSteps
from helpers.scheduler_harness import Request, SchedulerHarness

NAP = 0.001
"""Seconds between two looks of a scheduler that has nothing to run."""


@dataclass(frozen=True)
class Load:
    """Agents' conversations; sizes in tokens, `think` in seconds at most between two turns."""

    workflows: int
    turns: int
    head: int = 48
    more: int = 32
    answer: int = 16
    think: float = 0.2
    seed: int = 1
    agents: int = 1
    """Of a workflow, speaking in turn: each has a head of its own before the conversation."""


@dataclass
class Served:
    """One request: when it came, was answered first, and was done; in seconds, and in what ran meanwhile."""

    came: float
    passes: int
    tokens: int
    first: float = 0.0
    done: float = 0.0


@dataclass
class Reckoning:
    """All real requests of a run, in the order in which they ended."""

    served: list[Served] = field(default_factory=list)
    prompt: int = 0
    cached: int = 0
    warmed: int = 0
    """Tokens that warm-ups computed."""
    outputs: dict[str, list[int]] = field(default_factory=dict)

    def latency(self, share: float) -> float:
        """Seconds from a request's coming to its end: this share of them took no more."""
        return quantile([s.done - s.came for s in self.served], share)

    def first(self, share: float) -> float:
        """The same to its first token."""
        return quantile([s.first - s.came for s in self.served], share)

    def passes(self, share: float) -> float:
        """Passes of the engine from a request's coming to its end."""
        return quantile([s.passes for s in self.served], share)

    def tokens(self, share: float) -> float:
        """Prompt tokens that the engine computed, whosever they were, before a request's first token."""
        return quantile([s.tokens for s in self.served], share)


def quantile(values: list[Any], share: float) -> float:
    """The smallest value that this share of the values does not exceed."""
    ordered = sorted(values)
    return float(ordered[min(int(share * len(ordered)), len(ordered) - 1)])


def ids(rng: random.Random, n: int) -> list[int]:
    """A prompt unlike any other."""
    return [rng.randrange(4, 500) for _ in range(n)]


# ---- forecasts that help nobody: each agent yields (seconds to wait, session, its tokens so far)

Agent = Iterator[tuple[float, str, list[int]]]


def wrong(rng: random.Random, name: str, pool: int) -> Agent:
    """Prompts that never come, each in a session of its own that nobody closes."""
    n = 0
    while True:
        yield rng.random() * 0.05, f"{name}-{n}", ids(rng, rng.randint(pool // 64, pool // 16))
        n += 1


def huge(rng: random.Random, name: str, pool: int) -> Agent:
    """Prompts of nearly half of the pool."""
    n = 0
    while True:
        yield rng.random() * 0.2, f"{name}-{n}", ids(rng, pool * 2 // 5)
        n += 1


def endless(rng: random.Random, name: str, pool: int) -> Agent:
    """An upstream agent that says eight tokens every 20 ms and never comes to an end."""
    n = 0
    while True:
        said: list[int] = []
        while len(said) < pool // 2:
            said = [*said, *ids(rng, 64)]
            yield 0.16, f"{name}-{n}", said
        n += 1


KINDS: dict[str, tuple[int, Callable[[random.Random, str, int], Agent]]] = {
    "wrong": (8, wrong),
    "huge": (2, huge),
    "endless": (8, endless),
}


class Run:
    """One run on a harness; `play` plays it."""

    def __init__(self, s: SchedulerHarness, cost: Cost) -> None:
        self.s = s
        self.now = 1000.0
        self._steps = ReckonedSteps(s, cost, lambda: self.now)
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def at(self, seconds: float, what: Callable[[], None]) -> None:
        """Do something so many seconds from now."""
        self._count += 1
        self._due.append((self.now + seconds, self._count, what))

    def play(self, load: Load, kind: str = "none") -> Reckoning:
        """All workflows to their ends, beside forecasts of a kind, from an empty cache.

        `right`: while an agent speaks, the next one's head and what has been said so far are warmed, and then
        its answer.
        """
        found = Reckoning()
        left = load.workflows
        waiting: dict[str, tuple[Served, Callable[[Any], None]]] = {}
        warming: dict[str, Callable[[Any], None]] = {}

        spoken: set[str] = set()
        """Sessions whose final request is on its way."""

        def turn(name: str, rng: random.Random, n: int, heads: list[list[int]], said: list[int]) -> None:
            said = [*said, *ids(rng, load.more)]
            prompt, next_head = [*heads[n % load.agents], *said], heads[(n + 1) % load.agents]
            rid = f"{name}t{n:02d}"
            session = None
            if kind == "right":
                session = rid
                spoken.add(rid)
                if n + 1 < load.turns:
                    ask(f"{name}t{n + 1:02d}", [*next_head, *said])
            self.s.submit(Request(rid, prompt, load.answer, session_id=session))
            served = Served(self.now, self._steps.count, self._steps.computed)

            def ended(req: Any) -> None:
                nonlocal left
                found.served.append(served)
                found.outputs[rid] = list(req.output_ids)
                found.prompt += len(prompt)
                found.cached += req.cached_tokens
                served.done, served.passes = self.now, self._steps.count - served.passes
                if n + 1 < load.turns:
                    more = [*said, *req.output_ids]
                    if kind == "right":
                        ask(f"{name}t{n + 1:02d}", [*next_head, *more])
                    self.at(rng.random() * load.think, lambda: turn(name, rng, n + 1, heads, more))
                else:
                    left -= 1

            waiting[rid] = served, ended

        for w in range(load.workflows):
            rng = random.Random(f"{load.seed}/{w}")
            heads = [ids(rng, load.head) for _ in range(load.agents)]
            self.at(
                rng.random() * load.think,
                lambda rng=rng, w=w, heads=heads: turn(f"w{w:03d}", rng, 0, heads, []),
            )

        def warm(agent: Agent) -> None:
            wait, session, prompt = next(agent)
            self.at(wait, lambda: ask(session, prompt, agent))

        def ask(session: str, prompt: list[int], agent: Agent | None = None) -> None:
            self._count += 1
            rid = f"warm{self._count:07d}"
            self.s.submit(Request(rid, prompt, 0, session_id=session))

            def ended(req: Any) -> None:
                computed = len(req.origin_input_ids) - req.cached_tokens
                found.warmed += computed
                rest = computed > 0 and len(req.origin_input_ids) < len(prompt)
                if rest and left and session not in spoken:
                    ask(session, prompt, agent)
                elif agent is not None:
                    warm(agent)

            warming[rid] = ended

        if kind in KINDS:
            agents, make = KINDS[kind]
            pool = self.s.scheduler.max_total_num_tokens
            for i in range(agents):
                warm(make(random.Random(f"{load.seed}/{kind}/{i}"), f"{kind}{i}", pool))
        with self._steps.reckoned():
            self._loop(waiting, warming, lambda: left > 0)
        for rid in warming:
            self.s.abort(rid)
        self._due.clear()
        self.s.flush()
        self.s.reqs.clear()
        self.s.sent.clear()
        return found

    def _loop(
        self,
        waiting: dict[str, tuple[Served, Callable[[Any], None]]],
        warming: dict[str, Callable[[Any], None]],
        goes_on: Callable[[], bool],
    ) -> None:
        for _ in range(200_000):
            if not goes_on():
                return
            self._due.sort()
            while self._due and self._due[0][0] <= self.now:
                self._due.pop(0)[2]()
            lasted = self._steps.step()
            self.now += lasted
            if not lasted:
                next_due = self._due[0][0] if self._due else float("inf")
                self.now = min(max(next_due, self.now), self.now + NAP)
            for rid, (served, ended) in list(waiting.items()):
                req = self.s.reqs.get(rid)
                if req is not None and req.output_ids and not served.first:
                    served.first, served.tokens = self.now, self._steps.computed - served.tokens
                if req is not None and req.finished():
                    del waiting[rid], self.s.reqs[rid]
                    ended(req)
            for rid, done in list(warming.items()):
                req = self.s.reqs.get(rid)
                if req is not None and req.finished():
                    del warming[rid], self.s.reqs[rid]
                    done(req)
        raise AssertionError(f"{len(waiting)} requests are not done")
