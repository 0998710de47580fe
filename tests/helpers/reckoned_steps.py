"""A stepped scheduler whose passes last as long as they are reckoned to, and whose plug-in sees that time."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from flashagents_runtime.handoff.chunk_sizer import H200_PREFILL
from flashagents_runtime.scheduling.gate import Gate
from flashagents_runtime.scheduling.kinds import is_warm_up
from flashagents_runtime.scheduling.order import Order
from flashagents_runtime.scheduling.pass_budget import PassBudget
from flashagents_runtime.scheduling.worth import Worth
from helpers.scheduler_harness import SchedulerHarness


class Cost(Protocol):
    """What a pass takes."""

    def seconds(self, computed: int, decoding: int) -> float:
        """Of a pass that computes so many prompt tokens, or of a decode step of so many requests."""
        ...


@dataclass(frozen=True)
class Pace:
    """Of an engine, in seconds."""

    step: float
    token: float

    def seconds(self, computed: int, decoding: int) -> float:
        """See `Cost`."""
        return self.step + self.token * computed


@dataclass(frozen=True)
class Measured:
    """Passes as they were measured, interpolated between sizes.

    Attributes:
        passes: prompt tokens, ascending, and seconds.
        step: seconds of a decode step of one request.
        more: seconds for each further request in it.
    """

    passes: tuple[tuple[int, float], ...]
    step: float
    more: float

    def seconds(self, computed: int, decoding: int) -> float:
        """See `Cost`."""
        if not computed:
            return self.step + self.more * max(decoding - 1, 0)
        sizes = [size for size, _ in self.passes]
        i = min(max(bisect_left(sizes, computed), 1), len(sizes) - 1)
        (n0, t0), (n1, t1) = self.passes[i - 1], self.passes[i]
        return t0 + (t1 - t0) * (computed - n0) / (n1 - n0)


#: Qwen2.5-7B's shape in bf16 on one H200, fa3, prefill graphs, SGLang 0.5.18. What is cached costs nothing.
H200 = Measured(
    H200_PREFILL,
    step=0.0046,
    more=0.00003,
)


@dataclass(frozen=True)
class Pass:
    """A prefill pass: when it began, what it computed, for warm-ups and in all, and how long it took."""

    began: float
    warm_ups: int
    computed: int
    seconds: float


class ReckonedSteps:
    """Steps of a harness in reckoned time, from a plug-in that has seen nothing yet.

    Args:
        clock: the time at which the next step begins; `step` does not move it.

    Attributes:
        passes: all prefill passes so far.
        count: of passes and decode steps so far.
        computed: prompt tokens so far.
    """

    def __init__(self, s: SchedulerHarness, cost: Cost, clock: Callable[[], float]) -> None:
        self.s = s
        self.passes: list[Pass] = []
        self.count = self.computed = 0
        self._cost = cost
        self._clock = clock
        self._lasted = 0.0
        tree = s.scheduler.tree_cache
        if (gate := getattr(tree, "gate", None)) is not None:
            budget = gate.budget
            tree.gate = Gate(PassBudget(budget.share, self.now, shrinks=budget._shrinks), self.now)
        if (order := getattr(tree, "order", None)) is not None:
            tree.order = Order(self.now, shortest_first=order.shortest_first)
        if (pins := getattr(tree, "pins", None)) is not None:
            pins._clock = self.now
            pins.worth = Worth(s.scheduler.max_total_num_tokens)

    def now(self) -> float:
        """The clock, within a step too."""
        return self._clock() + self._lasted

    @contextmanager
    def reckoned(self) -> Iterator[None]:
        """While this lasts, `step` may be called."""
        run_batch = self.s.scheduler.run_batch

        def lasting(batch: Any, *args: Any, **kwargs: Any) -> Any:
            result = run_batch(batch, *args, **kwargs)
            began = self.now()
            lengths = batch.extend_lens if batch.forward_mode.is_extend() else []
            seconds = self._cost.seconds(sum(lengths), len(batch.reqs))
            if lengths:
                pairs = zip(batch.reqs, lengths, strict=True)
                warm = sum(length for req, length in pairs if is_warm_up(req))
                self.passes.append(Pass(began, warm, sum(lengths), seconds))
            self._lasted += seconds
            self.count += 1
            self.computed += sum(lengths)
            return result

        self.s.scheduler.run_batch = lasting
        try:
            yield
        finally:
            self.s.scheduler.run_batch = run_batch

    def step(self) -> float:
        """One iteration of the scheduler; returns the seconds that it took, 0 where nothing ran."""
        try:
            self.s.step()
            return self._lasted
        finally:
            self._lasted = 0.0
