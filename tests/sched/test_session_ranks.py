"""Ranks of one engine, one after another: what the first did by its clock, another does by its messages."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flashagents_runtime.scheduling import features, hooks
from flashagents_runtime.scheduling.ranks import LeadersClock, Tick
from flashagents_runtime.sglang_seams import SeamError
from helpers.kv_model import KvModel
from helpers.scheduler_harness import Request, SchedulerHarness

pytestmark = pytest.mark.engine


class Rank(SchedulerHarness):
    """A scheduler that shares its requests as with tensor parallelism: with `sent` it is not the first rank,
    and receives that."""

    def __init__(self, model: Path, sent: list[bytes] | None = None, **args: Any) -> None:
        self.first = sent is None
        self.sent_on = list(sent or [])
        super().__init__(model, check=KvModel(), **args)

    def _next_requests(self) -> list[Any]:
        messages = super()._next_requests()
        clock: LeadersClock = self.scheduler.tree_cache.clock
        if self.first:
            messages = clock.lead(messages)
            self.sent_on.append(pickle.dumps(messages))
            return clock.follow(messages)
        return clock.follow(pickle.loads(self.sent_on.pop(0)))

    def figures(self) -> dict[str, Any]:
        """What was decided in all."""
        cache = self.scheduler.tree_cache
        pins = {name: getattr(cache.pins, name) for name in ("expired", "gave_way", "evicted_tokens")}
        return {**cache.gate.plain(), **pins, "wasted": cache.pins.worth._wasted}


class Ticking:
    """A clock that nobody could guess."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._now = 0.0

    def __call__(self) -> float:
        self._now += self._random.choice((1e-4, 1e-3, 0.02, 0.3))
        return self._now


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[LeadersClock]]:
    """The clocks of the next schedulers, in their order."""
    coming: list[LeadersClock] = []

    def clock_for(ctx: Any, cache: Any) -> LeadersClock:
        if not hasattr(cache, "clock"):
            cache.clock = coming.pop(0)
        clock: LeadersClock = cache.clock
        return clock

    monkeypatch.setattr(features, "clock_for", clock_for)
    monkeypatch.setenv("FLASHAGENTS_WARMUP_SHARE", "0.05")
    monkeypatch.setenv("FLASHAGENTS_PIN_TTL", "5")
    monkeypatch.setenv("FLASHAGENTS_SJF", "1")
    yield coming


def load(s: Rank, seed: int, steps: int = 150) -> None:
    """Sessions that grow, requests of theirs and of others, aborts, on a pool that is too small for all."""
    rng = random.Random(seed)
    prompts: dict[str, list[int]] = {}
    sent: list[str] = []
    for _ in range(steps):
        for _ in range(rng.choice((0, 0, 0, 1, 3))):
            rid = f"r{len(sent):08}"
            session = rng.choice(("a", "b", "c", "d", None))
            ids = prompts.setdefault(session or rid, [4 + rng.randrange(40) for _ in range(4)])
            ids += [4 + rng.randrange(490) for _ in range(rng.randrange(1, 60))]
            final = session is None or len(ids) > 300 or rng.random() < 0.2
            new = rng.randrange(1, 12) if final else 0
            s.submit(Request(rid, list(ids), max_new_tokens=new, session_id=session))
            sent.append(rid)
            if final:
                del prompts[session or rid]
        if sent and rng.random() < 0.1:
            s.abort(rng.choice(sent))
        s.step()
    s.run()


@pytest.mark.parametrize("overlap", [False, True], ids=["normal", "overlap"])
@pytest.mark.parametrize("seed", range(3))
def test_ranks_do_the_same_at_every_step(
    model: Path, clocks: list[LeadersClock], seed: int, overlap: bool
) -> None:
    args: dict[str, Any] = {"overlap": overlap, "max_total_tokens": 700, "chunked_prefill_size": 128}
    clocks.append(LeadersClock(Ticking(seed)))
    with Rank(model, **args) as one:
        load(one, seed)
        figures = one.figures()
    assert figures["chunks"] > 10 and figures["beside_decodes"] > 0 and figures["cancelled"] > 0, figures
    assert figures["expired"] + figures["gave_way"] > 0 and figures["wasted"] > 0, figures

    clocks.append(LeadersClock(Ticking(seed + 100)))
    with Rank(model, one.sent_on, **args) as another:
        while another.sent_on:
            another.step()
        assert another.steps == one.steps
        assert {rid: list(req.output_ids) for rid, req in another.reqs.items()} == {
            rid: list(req.output_ids) for rid, req in one.reqs.items()
        }
        assert another.figures() == figures


def test_a_rank_with_a_time_of_its_own_ends(model: Path, clocks: list[LeadersClock]) -> None:
    """The negative control: as it would be if each rank asked its own clock."""
    args: dict[str, Any] = {"max_total_tokens": 700, "chunked_prefill_size": 128}
    clocks.append(LeadersClock(Ticking(0)))
    with Rank(model, **args) as one:
        load(one, 0)
    own, sent = Ticking(100), []
    for step in one.sent_on:
        messages = pickle.loads(step)
        sent.append(pickle.dumps([m._replace(now=own()) if isinstance(m, Tick) else m for m in messages]))
    clocks.append(LeadersClock(Ticking(100)))
    with Rank(model, sent, **args) as another, pytest.raises(SeamError, match="decided differently"):
        while another.sent_on:
            another.step()


def test_without_sessions_a_step_has_a_time_with_its_messages_only(
    model: Path, clocks: list[LeadersClock]
) -> None:
    clocks.append(LeadersClock(Ticking(0)))
    with Rank(model) as s:
        for n in range(3):
            s.submit(Request(f"r{n}", [5, 6, 7, 8 + n], max_new_tokens=20))
            s.run()
        assert sum(bool(pickle.loads(step)) for step in s.sent_on) == 3
        gate = s.scheduler.tree_cache.gate
        assert len(gate._unread) <= 2 and len(gate._in_flight) <= 1  # what the next message lets it read


def test_all_three_features_bring_the_hook() -> None:
    for installed in (hooks.PINS, hooks.BUDGET, hooks.SJF):
        assert any(target.endswith("._broadcast_reqs_across_ranks") for target in installed)
