"""Pools too small for their load, and warm-ups that are of no use: real requests are served as on stock."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flashagents_runtime import plugin
from flashagents_runtime.intra_turn import check_integrity
from helpers.kv_model import KvModel
from helpers.pressure import Disturb, Timeline, Turn, play, tokens, workflows
from helpers.scheduler_harness import Request, SchedulerHarness

pytestmark = pytest.mark.engine

POOL = 512
SETTINGS = {
    "plain": {},
    "overlap": {"overlap": True},
    "page16-chunks": {"page_size": 16, "chunked_prefill_size": 128},
}


def stock(model: Path, load: list[list[Turn]], **settings: Any) -> Timeline:
    """The load alone on SGLang's own cache, with nothing of ours attached to it."""
    with SchedulerHarness(model, max_total_tokens=POOL, radix_cache_backend=None, **settings) as s:
        assert not hasattr(s.scheduler.tree_cache, "flashagents")
        return play(s, load)


def check(s: SchedulerHarness, line: Timeline, alone: Timeline) -> None:
    """Nothing failed, nothing is left, nobody has been told anything else."""
    assert line.outputs == alone.outputs
    assert line.stolen_from_waiting == 0, "a warm-up began while a real request waited"
    s.run()
    check_integrity(s.scheduler)
    tree, allocator = s.scheduler.tree_cache, s.scheduler.token_to_kv_pool_allocator
    assert tree.protected_size() == 0
    assert allocator.available_size() + tree.evictable_size() == s.scheduler.max_total_num_tokens


# ---- warm-ups that are of no use


def wrong(rng: random.Random) -> Disturb:
    """Sessions that never close, each for a prompt that never comes."""

    def disturb(s: SchedulerHarness, n: int) -> None:
        s.submit(Request(f"wrong{n}", tokens(rng, rng.randint(4, 200)), 0, session_id=f"wrong{n}"))

    return disturb


def huge(rng: random.Random) -> Disturb:
    """Prompts as large as the pool, and larger."""

    def disturb(s: SchedulerHarness, n: int) -> None:
        if n % 3 == 0:
            size = rng.choice([POOL // 2, POOL - 8, POOL, 4 * POOL])
            s.submit(Request(f"huge{n}", tokens(rng, size), 0, session_id=f"huge{n}"))

    return disturb


def endless(rng: random.Random) -> Disturb:
    """Three upstream agents that never come to an end."""
    streams = {name: tokens(rng, 8) for name in "abc"}

    def disturb(s: SchedulerHarness, n: int) -> None:
        name = "abc"[n % 3]
        streams[name] += tokens(rng, 16)
        s.submit(Request(f"endless{n}", streams[name], 0, session_id=name))

    return disturb


def flood(rng: random.Random) -> Disturb:
    """As many at once as the queue takes, some of them aborted."""

    def disturb(s: SchedulerHarness, n: int) -> None:
        room = min(8, 60 - len(s.scheduler.waiting_queue))
        for i in range(max(room, 0)):
            rid = f"flood{n:05d}-{i:02d}"
            s.submit(Request(rid, tokens(rng, rng.randint(4, 60)), 0, session_id=rid))
            if i % 5 == 0:
                s.abort(rid)

    return disturb


DISTURBANCES: list[Callable[[random.Random], Disturb]] = [wrong, huge, endless, flood]
# Workflows, turns of each, and what goes on beside them.
LOADS: dict[str, list[tuple[int, int, list[Callable[[random.Random], Disturb]]]]] = {
    "plain": [(10, 4, [wrong]), (50, 2, DISTURBANCES)],
    "overlap": [(50, 2, [wrong, endless])],
    "page16-chunks": [(200, 1, [wrong]), (10, 4, [huge, flood])],
}


@pytest.mark.parametrize("settings", SETTINGS)
def test_useless_warm_ups_make_no_real_request_wait(model: Path, settings: str) -> None:
    """Admitted and finished step by step when stock admits and finishes; nothing is shared in this load."""
    extra: dict[str, Any] = SETTINGS[settings]
    loads = [(workflows(n, n, turns, history=False), beside) for n, turns, beside in LOADS[settings]]
    alone = [stock(model, load, **extra) for load, _ in loads]
    assert max(line.latency(0.99) for line in alone) > 50, "the pool is large enough"
    with SchedulerHarness(model, max_total_tokens=POOL, **extra) as s:
        for (load, beside), line_alone in zip(loads, alone, strict=True):
            for disturbance in beside:
                s.flush()
                line = play(s, load, disturbance(random.Random(1)))
                check(s, line, line_alone)
                assert line.admitted == line_alone.admitted
                # With overlap an end is heard of a step later, or in a step that warm-ups had.
                early = {rid: line_alone.finished[rid] - at for rid, at in line.finished.items()}
                assert set(early.values()) <= ({0, 1} if "overlap" in extra else {0})
                assert line.retractions == line_alone.retractions
        figures = plugin.state(s.scheduler.tree_cache)["features"]
        assert figures["warmup_budget"]["chunks"] > 20
        assert figures["soft_pins"]["gave_way"] > 5


def test_agents_with_a_history_keep_their_cache(model: Path) -> None:
    """Turns that continue the one before, and together fill three quarters of the pool: nothing is computed
    again for the sake of what nobody needs."""
    load = workflows(5, 4, 5, history=True)
    alone = stock(model, load)
    with SchedulerHarness(model, max_total_tokens=POOL) as s:
        for disturbance in DISTURBANCES:
            s.flush()
            line = play(s, load, disturbance(random.Random(5)))
            check(s, line, alone)
            assert line.latency(0.99) <= 1.1 * alone.latency(0.99)
            assert line.computed <= 1.1 * alone.computed


def test_right_forecasts_make_the_same_load_shorter(model: Path) -> None:
    """The other side: what is warmed while agents think is not computed when they speak."""
    load = workflows(7, 4, 5, history=True)
    for turns in load:
        for turn in turns:
            turn.think, turn.session = 12, turn.rid
    alone = stock(model, load)
    by_time = [turn for turns in load for turn in turns]

    def forecast(s: SchedulerHarness, n: int) -> None:
        if n % 4 == 0 and n // 4 < len(by_time):
            turn = by_time[n // 4]
            s.submit(Request(f"warm-{turn.rid}", turn.prompt[:-1], 0, session_id=turn.session))

    with SchedulerHarness(model, check=KvModel(), max_total_tokens=POOL) as s:
        line = play(s, load, forecast)
        check(s, line, alone)
        assert line.computed < alone.computed
        assert line.latency(0.5) <= alone.latency(0.5)


@pytest.mark.parametrize("settings", SETTINGS)
def test_a_burst_of_sessions_cannot_lock_the_pool(model: Path, settings: str) -> None:
    """What dead-locks sessions whose KV is locked (SGLang's issue 27024): each holds a part, all want more.

    Forty sessions grow to a quarter of the pool each, all of their final requests come at once, and none of
    the sessions is ever closed.
    """
    rng = random.Random(11)
    prompts = {f"s{i:02d}": tokens(rng, POOL // 4) for i in range(40)}
    with SchedulerHarness(model, max_total_tokens=POOL, **SETTINGS[settings]) as s:
        for part in (1, 2, 3):
            for name, prompt in prompts.items():
                rid = f"{name}-{part}"
                s.submit(Request(rid, prompt[: part * POOL // 16], 0, session_id=name))
            for _ in range(8):
                s.step()
        for name, prompt in prompts.items():
            s.submit(Request(f"{name}-final", prompt, 4, session_id=name))
        late = iter(range(10**6))

        def again() -> None:
            """Their sessions go on asking, as if the answer had not come."""
            name = rng.choice(sorted(prompts))
            s.submit(Request(f"{name}-late{next(late):06d}", prompts[name][:100], 0, session_id=name))

        for _ in range(2000):
            again()
            s.step()
            if all(f"{name}-final" in s.reqs and s.reqs[f"{name}-final"].finished() for name in prompts):
                break
        else:
            pytest.fail("the pool is locked")
        assert all(len(s.output(f"{name}-final")) == 4 for name in prompts)
        s.run()
        check_integrity(s.scheduler)
        assert s.scheduler.tree_cache.protected_size() == 0


def test_a_warm_up_without_room_leaves_room_for_a_shorter_request(model: Path) -> None:
    """SGLang looks at nobody else once a request had no room, until a running one ends."""
    rng = random.Random(3)
    with SchedulerHarness(model, max_total_tokens=POOL) as s:
        s.submit(Request("running", tokens(rng, POOL // 2), 200))
        s.step()
        s.step()
        s.submit(Request("warm", tokens(rng, POOL // 2), 0, session_id="s"))
        for _ in range(3):
            s.step()
        assert [req.rid for req in s.scheduler.waiting_queue] == ["warm"]
        s.submit(Request("short", tokens(rng, 16), 2))
        assert s.step().rids == ["short"]
        s.abort("warm")
        s.run()


@pytest.mark.parametrize("page_size", [1, 16])
def test_a_warm_up_longer_than_a_pass_is_cut_to_one(model: Path, page_size: int) -> None:
    rng = random.Random(4)
    long = tokens(rng, 300)
    with SchedulerHarness(
        model, check=KvModel(), max_total_tokens=POOL, chunked_prefill_size=128, page_size=page_size
    ) as s:
        s.submit(Request("long", long, 0, session_id="s"), Request("next", long, 0, session_id="t"))
        assert s.step().extend_lens == [128]
        s.submit(Request("real", tokens(rng, 40), 2))
        assert s.step().rids == ["real"], "nothing stands in its way"
        s.run()
        assert s.reqs["long"].finished() and len(s.reqs["long"].origin_input_ids) == 128
        assert len(s.reqs["next"].origin_input_ids) == 256  # goes on where the first one stopped
        assert s.scheduler.tree_cache.gate.figures.cut == 2
        s.submit(Request("final", long, 2, session_id="s"))
        s.run()
        assert s.reqs["final"].cached_tokens == 256
