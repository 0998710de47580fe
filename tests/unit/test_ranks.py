"""The first rank's time in all ranks, without SGLang."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from flashagents_runtime.scheduling import ranks
from flashagents_runtime.scheduling.ranks import LeadersClock, Tick
from flashagents_runtime.sglang_seams import SeamError

PLAIN = SimpleNamespace(session_id=None)
OF_A_SESSION = SimpleNamespace(session_id="a")


class Time:
    def __init__(self) -> None:
        self.now = 5000.0

    def __call__(self) -> float:
        return self.now


def never() -> float:
    raise AssertionError("only the first rank reads its clock")


@pytest.fixture
def local() -> Time:
    return Time()


@pytest.fixture
def first(local: Time) -> LeadersClock:
    return LeadersClock(local)


@pytest.fixture
def other() -> LeadersClock:
    clock = LeadersClock(lambda: 0.0)
    clock._local = never
    return clock


def step(first: LeadersClock, other: LeadersClock, *messages: Any) -> tuple[list[Any], list[Any]]:
    """One step of both; what each has received."""
    sent = first.lead(list(messages))
    return first.follow(sent), other.follow(pickle.loads(pickle.dumps(sent)))


def test_all_ranks_have_the_first_one_s_time_and_messages(
    first: LeadersClock, other: LeadersClock, local: Time
) -> None:
    local.now += 7
    assert step(first, other, PLAIN, OF_A_SESSION) == ([PLAIN, OF_A_SESSION],) * 2
    assert first() == other() == 7


def test_within_a_step_time_stands_still(first: LeadersClock, local: Time) -> None:
    first.follow(first.lead([PLAIN]))
    local.now += 7
    assert first() == 0


@pytest.mark.parametrize(
    ("before", "busy", "later", "timed"),
    [
        pytest.param([PLAIN], True, 1, False, id="no-session-yet"),
        pytest.param([OF_A_SESSION], True, 1, True, id="a-session-s"),
        pytest.param([SimpleNamespace(batch=[PLAIN, OF_A_SESSION])], True, 1, True, id="one-of-several"),
        pytest.param([SimpleNamespace(batch=[PLAIN])], True, 1, False, id="none-of-several"),
        pytest.param([OF_A_SESSION], False, 1, False, id="idle"),
        pytest.param([OF_A_SESSION], True, 61, False, id="long-ago"),
    ],
)
def test_steps_without_messages_are_timed_where_a_session_needs_it(
    first: LeadersClock, local: Time, before: list[Any], busy: bool, later: float, timed: bool
) -> None:
    first.follow(first.lead(before))
    first.busy = busy
    local.now += later
    sent = first.lead([])
    assert bool(sent) is timed
    assert first.follow(sent) == []
    assert first.timed is timed
    assert first() == (later if timed else 0)


def test_steady_is_what_follows_a_timed_step(first: LeadersClock) -> None:
    seen = []
    first.heard = lambda: seen.append(first.steady)
    for messages in ([PLAIN], [PLAIN], [], [PLAIN]):
        first.follow(first.lead(messages))
    assert seen == [True, True, False]


def test_a_clock_that_was_set_back_stands_still(first: LeadersClock, local: Time) -> None:
    for now in (5010.0, 4000.0, 5011.0):
        local.now = now
        first.follow(first.lead([PLAIN]))
        assert first() == max(now - 5000.0, 10)


def test_a_rank_that_has_decided_otherwise_ends(first: LeadersClock, other: LeadersClock) -> None:
    for clock in (first, other):
        clock.decide(["a", "b"], [0, 5], [7, 7])
    step(first, other, PLAIN)
    first.decide(["c"], [0], [9])
    other.decide(["c"], [1], [8])
    sent = first.lead([PLAIN])
    first.follow(sent)
    with pytest.raises(SeamError, match=r"decided differently.*FLASHAGENTS_DISABLE"):
        other.follow(sent)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No clock of another test."""
    monkeypatch.setattr(ranks, "live", type(ranks.live)())
    yield


def broadcast(sent: list[Any] | None) -> Any:
    """SGLang's, of a rank that receives from itself, or from the first one."""
    return [PLAIN, Tick(3.0, 0)] if sent is None else sent


@pytest.mark.usefixtures("alone")
def test_the_hook_leaves_a_scheduler_without_ranks_alone() -> None:
    assert ranks.around_broadcast(lambda self, reqs: reqs, None, [PLAIN]) == [PLAIN]


@pytest.mark.usefixtures("alone")
def test_the_hook_of_the_first_rank_and_of_another() -> None:
    clock = LeadersClock()
    assert ranks.around_broadcast(lambda self, reqs: broadcast(reqs), None, [OF_A_SESSION]) == [OF_A_SESSION]
    clock._now = 0.0
    assert ranks.around_broadcast(lambda self, reqs: broadcast(reqs), None, None) == [PLAIN]
    assert clock() == 3.0
