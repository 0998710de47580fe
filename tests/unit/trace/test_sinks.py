"""Recording: off by default, bounded, and never in the way of what is recorded."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from flashagents_runtime import ScriptedEngine, trace
from flashagents_runtime.trace import Mark, Trace, events
from helpers.clients import scripted, user

MARK = Mark(name="x", time=1.0)


@pytest.fixture(autouse=True)
def nobody_listens() -> Iterator[None]:
    assert not trace.recording()
    yield
    assert not trace.recording(), "a test left a sink behind"


def test_a_trace_records_from_start_to_stop() -> None:
    mine = Trace()
    trace.record(MARK)
    with mine:
        assert mine.start() is mine, "twice is once"
        trace.record(MARK)
    trace.record(MARK)
    assert mine.events == [MARK]


def test_the_ring_is_bounded_and_counts_what_it_drops() -> None:
    mine = Trace(capacity=3)
    for i in range(5):
        mine.record(Mark(name=str(i), time=i))
    assert [e.name for e in mine.events if isinstance(e, Mark)] == ["2", "3", "4"]
    assert mine.dropped == 2
    with pytest.raises(ValueError, match="room for one"):
        Trace(capacity=0)


class Broken:
    calls = 0

    def record(self, event: Any) -> None:
        self.calls += 1
        raise OSError("disk full")


async def test_a_sink_that_raises_is_logged_once_and_dropped(caplog: pytest.LogCaptureFixture) -> None:
    broken = Broken()
    events.add_sink(broken)
    client, _ = scripted("One.", "Two.")
    with caplog.at_level(logging.ERROR), Trace() as mine:
        assert (await client.create([user()])).content == "One."
        assert (await client.create([user()])).content == "Two."
    assert broken.calls == 1
    assert len([r for r in caplog.records if "trace sink" in r.message]) == 1
    assert len(mine) == 2, "the others go on"


def test_scopes_nest() -> None:
    with trace.scope(workflow="w", agent="a"):
        with trace.scope(agent="b"):
            assert trace.current_scope() == trace.Scope("b", "w")
        assert trace.current_scope() == trace.Scope("a", "w")
    assert trace.current_scope() == trace.Scope()


async def test_engines_have_names_of_their_own() -> None:
    one, two = ScriptedEngine(), ScriptedEngine(model="org/Model-7B")
    assert trace.engine_name(one) == "", "not started"
    await one.start()
    await two.start()
    names = {trace.engine_name(one), trace.engine_name(two)}
    assert len(names) == 2
    assert trace.engine_name(one) == trace.engine_name(one)
    assert any(name.startswith("scripted:Model-7B#") for name in names)
