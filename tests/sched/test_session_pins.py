"""Soft pins in a real scheduler: an eviction order under pressure, and never in a real request's way."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flashagents_runtime import plugin
from flashagents_runtime.intra_turn import IntegrityError, check_integrity
from flashagents_runtime.scheduling.pins import Pins
from flashagents_runtime.scheduling.worth import Worth
from helpers.kv_model import KvModel
from helpers.scheduler_harness import Request, SchedulerHarness

pytestmark = pytest.mark.engine

POOL = 512


def ids(seed: int, n: int) -> list[int]:
    """A prompt that shares nothing with another seed's."""
    return [4 + (seed * 41 + i * (2 * seed + 7)) % 490 for i in range(n)]


def warm(session: str, prompt: list[int], rid: str | None = None) -> Request:
    return Request(rid or f"warm-{session}", prompt, max_new_tokens=0, session_id=session)


def pins_of(s: SchedulerHarness) -> Pins:
    found: Pins = s.scheduler.tree_cache.pins
    return found


def cached(s: SchedulerHarness, prompt: list[int]) -> int:
    """Tokens of a prompt that the cache holds; says it without using them."""
    node, n = s.scheduler.tree_cache.root_node, 0
    while True:
        page = s.scheduler.tree_cache.page_size
        child = next(
            (c for c in node.children.values() if prompt[n : n + page] == list(c.key.token_ids)[:page]), None
        )
        if child is None or n >= len(prompt):
            return n
        key = list(child.key.token_ids)
        same = next((i for i, (a, b) in enumerate(zip(key, prompt[n:], strict=False)) if a != b), None)
        n += min(len(key), len(prompt) - n) if same is None else same
        if same is not None:
            return n
        node = child


def press(s: SchedulerHarness, tokens: int, seed: int = 50) -> None:
    """Ordinary requests, one after another, whose prompts have `tokens` tokens in all."""
    for i in range(tokens // 64):
        s.submit(Request(f"press{seed}-{i}", ids(seed + i, 60), max_new_tokens=4))
        s.run()


@pytest.fixture(scope="module", params=["page1", "page16-overlap"])
def shared(model: Path, request: pytest.FixtureRequest) -> Iterator[SchedulerHarness]:
    extra: dict[str, Any] = {"page_size": 16, "overlap": True} if request.param != "page1" else {}
    with SchedulerHarness(model, check=KvModel(), max_total_tokens=POOL, **extra) as s:
        yield s


@pytest.fixture
def s(shared: SchedulerHarness) -> SchedulerHarness:
    shared.flush()
    shared.reqs.clear()
    pins_of(shared).worth = Worth(POOL)
    return shared


def test_pinned_kv_outlives_what_was_used_later(s: SchedulerHarness) -> None:
    head, plain = ids(1, 96), ids(2, 96)
    s.submit(warm("one", head), Request("plain", plain, max_new_tokens=0))
    s.run()
    assert cached(s, head) == cached(s, plain) == 96
    press(s, 1024)
    assert cached(s, head) == 96
    assert cached(s, plain) == 0


def test_the_oldest_pin_goes_first_and_from_its_end(
    s: SchedulerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pins_of(s), "most", lambda: POOL)
    heads = {name: ids(10 + i, 144) for i, name in enumerate("abc")}
    for name, head in heads.items():
        s.submit(warm(name, head))
        s.run()
    s.submit(warm("a", heads["a"] + ids(20, 16), "warm-again"))  # now b's is the oldest
    s.run()
    s.submit(Request("large", ids(30, 128), max_new_tokens=4))
    s.run()
    assert cached(s, heads["a"]) == cached(s, heads["c"]) == 144
    assert cached(s, heads["b"]) < 144
    assert pins_of(s).evicted_tokens > 0


def test_sessions_that_come_to_nothing_leave_half_of_the_pool_to_the_others(s: SchedulerHarness) -> None:
    """An agent's conversation is still there at its next turn, whatever was forecast wrongly meanwhile."""
    said, n = ids(1, 160), 0
    for turn in range(3):
        s.submit(Request(f"turn{turn}", said, max_new_tokens=4))
        s.run()
        assert s.reqs[f"turn{turn}"].cached_tokens >= (n // s.scheduler.page_size) * s.scheduler.page_size
        n = len(said)
        for i in range(12):
            s.submit(warm(f"never{turn}-{i}", ids(100 + 12 * turn + i, 112)))
            s.run()
        said = [*said, *ids(40 + turn, 16)]
    assert pins_of(s).gave_way > 20


def never_used(s: SchedulerHarness, first: int, count: int) -> None:
    """Sessions one after another that come to nothing and are never closed."""
    for i in range(first, first + count):
        s.submit(warm(f"never{i}", ids(100 + i, 112)))
        s.run()


def test_the_more_comes_to_nothing_the_less_is_pinned(s: SchedulerHarness) -> None:
    """A conversation of three quarters of the pool is still there, where the half would have been pinned."""
    never_used(s, 0, 20)
    said = ids(1, 384)
    s.submit(Request("said", said, max_new_tokens=1))
    s.run()
    never_used(s, 20, 6)
    assert cached(s, said) >= 352


def test_what_is_used_keeps_the_share(s: SchedulerHarness) -> None:
    for i in range(12):
        s.submit(warm(f"right{i}", ids(100 + i, 112)))
        s.run()
        s.submit(Request(f"final{i}", [*ids(100 + i, 112), 5], max_new_tokens=1, session_id=f"right{i}"))
        s.run()
    assert pins_of(s).worth.share() == 1.0
    never_used(s, 20, 2)
    assert len(pins_of(s)) == 2


def test_what_a_closed_session_left_goes_before_what_others_use(s: SchedulerHarness) -> None:
    from sglang.srt.managers.io_struct import CloseSessionReqInput

    said, wrong = ids(1, 192), ids(2, 192)
    s.submit(Request("said", said, max_new_tokens=1))
    s.run()
    s.submit(warm("one", wrong))
    s.run()
    s.send(CloseSessionReqInput(session_id="one"))
    press(s, 256)  # as much as is free, and the half of what the session left
    assert cached(s, said) == 192
    assert cached(s, wrong) < 96


def test_a_real_request_takes_all_that_is_pinned_without_waiting(s: SchedulerHarness) -> None:
    for i in range(4):
        s.submit(warm(f"s{i}", ids(i, 112)))
        s.run()
    assert len(pins_of(s)) == 4
    free = s.scheduler.token_to_kv_pool_allocator.available_size()
    assert free < 100 and s.scheduler.tree_cache.evictable_size() == POOL - free
    s.submit(Request("real", ids(60, 400), max_new_tokens=8))
    assert s.step().rids == ["real"]
    s.run()
    assert len(s.output("real")) == 8


def test_what_ends_a_pin(s: SchedulerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.managers.io_struct import CloseSessionReqInput

    pins, head = pins_of(s), ids(1, 96)

    def pin(session: str) -> None:
        s.submit(warm(session, head))
        s.run()
        assert session in pins

    pin("final")
    s.submit(Request("answer", [*head, 5, 6], max_new_tokens=2, session_id="final"))
    s.run()
    assert "final" not in pins
    pin("closed")
    s.send(CloseSessionReqInput(session_id="closed"))
    s.step()
    assert "closed" not in pins
    pin("flushed")
    s.flush()
    assert "flushed" not in pins
    pin("other weights")
    s.scheduler.weight_updater.flush_cache_after_weight_update(SimpleNamespace(flush_cache=False))
    assert "other weights" not in pins
    pin("old")
    monkeypatch.setattr(pins, "_clock", lambda: 1e12)
    press(s, 1024)
    assert "old" not in pins and cached(s, head) == 0


def test_an_aborted_warm_up_is_not_pinned(s: SchedulerHarness) -> None:
    s.submit(Request("decode", ids(3, 20), max_new_tokens=8))
    s.step()
    s.submit(warm("gone", ids(1, 96)))
    s.abort("warm-gone")
    s.run()
    assert len(pins_of(s)) == 0


def test_a_prefill_only_request_without_session_is_none_of_ours(s: SchedulerHarness) -> None:
    s.submit(Request("plain", ids(1, 64), max_new_tokens=0))
    s.run()
    assert len(pins_of(s)) == 0


def test_a_session_of_its_own_namespace(s: SchedulerHarness) -> None:
    s.submit(Request("w", ids(1, 96), max_new_tokens=0, session_id="x", extra_key="tenant"))
    s.run()
    press(s, 1024)
    s.submit(Request("answer", [*ids(1, 96), 5], max_new_tokens=2, session_id="x", extra_key="tenant"))
    s.run()
    assert s.reqs["answer"].cached_tokens == 96


def test_the_integrity_check_sees_pins(s: SchedulerHarness) -> None:
    s.submit(warm("one", ids(1, 96)))
    s.run()
    check_integrity(s.scheduler)
    next(iter(pins_of(s)._pins.values())).node.pinned_by.clear()
    with pytest.raises(IntegrityError, match="does not know the pin"):
        check_integrity(s.scheduler)
    pins_of(s)._pins.clear()


def test_what_the_handshake_says(s: SchedulerHarness) -> None:
    s.submit(warm("one", ids(1, 96)))
    s.run()
    features = plugin.state(s.scheduler.tree_cache)["features"]
    assert features["soft_pins"]["active"] and features["soft_pins"]["pins"] == 1
    assert features["warmup_budget"]["active"] and features["warmup_budget"]["passes"] >= 1
    assert "sjf" not in features
