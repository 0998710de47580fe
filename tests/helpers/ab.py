"""The same requests with publishing off (stock) and on, in one scheduler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from helpers.scheduler_harness import Request, SchedulerHarness, Step

Wave = tuple[int, list[Request]]
"""Requests, and the step before which they arrive."""


@dataclass
class Run:
    """What one of the two runs did; request ids as the test wrote them."""

    outputs: dict[str, list[int]]
    reqs: dict[str, Any]
    steps: list[Step]

    @property
    def computed(self) -> int:
        return sum(step.computed for step in self.steps)

    @property
    def admitted(self) -> list[list[str]]:
        """Requests of each prefill batch."""
        return [[rid[1:] for rid in step.rids] for step in self.steps if step.extend_lens]


def publisher(s: SchedulerHarness) -> Any:
    """The scheduler's `Publisher`."""
    cache = s.scheduler.tree_cache
    return getattr(cache, "inner", cache).intra_turn


def run(
    s: SchedulerHarness,
    on: bool,
    waves: Sequence[Wave] | Sequence[Request],
    before_step: Callable[[SchedulerHarness, int, Callable[[str], str]], None] | None = None,
    *,
    max_steps: int = 3000,
    flush: bool = True,
) -> Run:
    """Run `waves` on an empty cache. `before_step(s, n, rid)` may interfere; `rid("a")` is a's real id."""
    if flush:
        s.flush()
    publisher(s).enabled = on
    mark = "+" if on else "-"
    pending = [(0, [w]) if isinstance(w, Request) else w for w in waves]
    first, n, rids = len(s.steps), 0, []
    while True:
        for at, requests in pending:
            if at == n:
                s.submit(*[replace(r, rid=mark + r.rid) for r in requests])
                rids += [r.rid for r in requests]
        if before_step is not None:
            before_step(s, n, lambda rid: mark + rid)
        step = s.step()
        n += 1
        if step.mode is None and s.idle and all(at < n for at, _ in pending):
            break
        assert n < max_steps, f"not idle after {n} steps"
    reqs = {rid: s.reqs.pop(mark + rid) for rid in rids if mark + rid in s.reqs}
    return Run({rid: list(r.output_ids) for rid, r in reqs.items()}, reqs, s.steps[first:])


def ab(s: SchedulerHarness, waves: Sequence[Wave] | Sequence[Request], **kwargs: Any) -> tuple[Run, Run]:
    """Stock, then ours; asserts equal outputs."""
    stock, ours = run(s, False, waves, **kwargs), run(s, True, waves, **kwargs)
    assert ours.outputs == stock.outputs
    return stock, ours


def distinct_tokens(prompts: Sequence[Sequence[int]]) -> int:
    """Tokens that a perfect sharing computes: each distinct prefix once, at least one a prompt."""
    seen: set[int] = set()
    total = 0
    for prompt in prompts:
        h, new = 0, 0
        for token in prompt:
            h = hash((h, token))
            new += h not in seen
            seen.add(h)
        total += max(new, 1)
    return total
