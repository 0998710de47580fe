"""Teams that overlap: whose prompts are prefilled while whom speaks."""

from __future__ import annotations

from typing import Any

from autogen_agentchat.teams import RoundRobinGroupChat

from flashagents_runtime.trace import SessionEnd, Trace
from helpers.overlap import assistant, client_on, overlapping

ANSWERS = [f"Answer {i}: " + "the train leaves in the morning and the evening " * 4 for i in range(4)]


async def test_chunks_lie_under_the_turn_before() -> None:
    client = client_on(*ANSWERS)
    agents: Any = [assistant(name, client) for name in ("planner", "guide", "linguist", "summary")]
    team = RoundRobinGroupChat(agents, max_turns=4)
    with Trace() as trace:
        async with overlapping(team):
            await team.run(task="Plan a trip to Rome for four people in May.")
    view = trace.view
    assert [turn.agent for turn in view.turns] == ["planner", "guide", "linguist", "summary"]
    assert len({turn.workflow for turn in view.turns}) == 1
    assert len(view.handoffs) == 3
    assert view.chunks and {chunk.agent for chunk in view.chunks} <= {turn.agent for turn in view.turns}
    for turn, row in zip(view.turns, view.rows, strict=True):
        mine = [chunk for chunk in view.chunks if chunk.agent == turn.agent]
        if turn.agent != "planner":
            assert mine and all(chunk.end <= turn.end for chunk in mine)
            assert row.prewarmed > 0 and row.ahead > 0
    ends = [event for event in trace.events if isinstance(event, SessionEnd)]
    assert all(end.computed == end.prewarmed + end.wasted for end in ends)
    assert sum(end.prewarmed for end in ends) >= sum(row.prewarmed for row in view.rows) > 0


async def test_a_prompt_that_is_never_asked_for_is_its_agents_waste() -> None:
    client = client_on(*ANSWERS)
    agents: Any = [assistant(name, client) for name in ("planner", "guide")]
    team = RoundRobinGroupChat(agents, max_turns=1)
    with Trace() as trace:
        async with overlapping(team):
            await team.run(task="Plan a trip to Rome for four people in May.")
    view = trace.view
    [turn] = view.turns
    lost = [end for end in view.sessions if not end.rid and end.computed]
    assert lost and all((end.agent, end.workflow) == ("guide", turn.workflow) for end in lost)
    assert view.summary.wasted == sum(end.computed for end in lost)
    assert (turn.workflow, "guide") in view.lanes
