"""After a run that was cut off or failed: the team is usable, counts anew, and leaves no callbacks.

AutoGen 7100 and 4776 (cancel), and what was seen in 0.7.5: `_active_speakers` and `_current_turn` leak,
`link_future` never unlinks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from autogen_agentchat.conditions import MaxMessageTermination, TextMentionTermination
from autogen_agentchat.messages import BaseAgentEvent, BaseChatMessage, StopMessage
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core import CancellationToken

from flashagents_autogen import (
    FlashGraphFlow,
    FlashMagenticOneGroupChat,
    FlashMapReduce,
    FlashRoundRobinGroupChat,
    FlashSelectorGroupChat,
    TeamFixes,
)
from flashagents_autogen.teams import map_reduce_graph
from flashagents_runtime import Reply
from helpers.teams import Gate, Speaker, answered, assistants, conversation

NEVER = Reply(text="abcdef", interval=60)


async def cut(
    team: Any, reached: Any, task: str | None = "Go.", token: CancellationToken | None = None
) -> None:
    """Start a run, and cancel it once `reached()` has returned."""
    run = asyncio.create_task(team.run(task=task, cancellation_token=token))
    await reached()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(run, 5)


async def test_7100_the_next_run_goes_on_where_the_last_one_was_cut_off() -> None:
    gate = Gate()
    a, b, c = Speaker("a"), Speaker("b", wait=gate), Speaker("c")
    team = FlashRoundRobinGroupChat([a, b, c], max_turns=3)
    await cut(team, gate.reached)
    gate.event.set()
    # b speaks again, for it has not answered, then all of three turns.
    assert await conversation(team, "Go on.") == [
        *("user: Go on.", "b: b says so", "c: c says so", "a: a says so"),
        "stop: Maximum number of turns 3 reached.",
    ]
    # Nobody is told anything twice, and nobody misses anything.
    assert a.told == [["user: Go."], ["user: Go on.", "b: b says so", "c: c says so"]]
    assert b.told == [["user: Go.", "a: a says so"], ["user: Go on."]]
    assert c.told == [["user: Go.", "a: a says so", "user: Go on.", "b: b says so"]]


async def test_7100_opted_out_the_next_run_stops_after_one_turn() -> None:
    gate = Gate()
    team = FlashRoundRobinGroupChat(
        [Speaker("a", wait=gate), Speaker("b")], max_turns=4, fixes=TeamFixes(usable_after_cancel=False)
    )
    await cut(team, gate.reached)
    gate.event.set()
    assert await conversation(team, "Go on.") == [
        *("user: Go on.", "b: b says so", "stop: The group chat is stopped.")
    ]


async def test_an_assistants_context_has_nothing_twice() -> None:
    agents, engine = assistants("ab", "one", NEVER, "two", "three")
    team = FlashRoundRobinGroupChat(list(agents), max_turns=2)

    async def b_speaks() -> None:
        while len(answered(engine)) < 2:
            await asyncio.sleep(0)

    await cut(team, b_speaks, "first task")
    await team.run(task="second task")
    b = bytes(answered(engine)[2].input_ids).decode()
    assert [b.count(text) for text in ("first task", "second task", "one")] == [1, 1, 1]
    assert b.index("first task") < b.index("one") < b.index("second task")


async def test_resumed_without_a_task_the_speaker_who_was_cut_off_speaks() -> None:
    gate = Gate()
    team = FlashRoundRobinGroupChat([Speaker("a"), Speaker("b", wait=gate)], max_turns=2)
    await cut(team, gate.reached)
    gate.event.set()
    assert await conversation(team) == [
        *("b: b says so", "a: a says so", "stop: Maximum number of turns 2 reached.")
    ]


async def test_what_was_said_before_the_reader_left_has_been_heard() -> None:
    """The reader leaves at a's answer, before a's container has passed it on."""
    a, b = Speaker("a"), Speaker("b")
    team = FlashRoundRobinGroupChat([a, b], max_turns=3)
    stream = team.run_stream(task="Go.")
    async for item in stream:
        if isinstance(item, BaseChatMessage) and item.source == "a":
            break
    await stream.aclose()
    assert (await conversation(team, "Go on."))[1:-1] == ["b: b says so", "a: a says so", "b: b says so"]
    assert [line for turn in b.told for line in turn] == [
        *("user: Go.", "a: a says so", "user: Go on.", "a: a says so")
    ]


@pytest.mark.parametrize("allow_repeated", [False, True])
async def test_a_selector_may_choose_the_speaker_who_was_cut_off(allow_repeated: bool) -> None:
    gate = Gate()
    agents, _ = assistants("xy", "a", "b", "a")
    a, b = Speaker("a"), Speaker("b", wait=gate)
    team = FlashSelectorGroupChat(
        [a, b], agents[0]._model_client, max_turns=2, allow_repeated_speaker=allow_repeated
    )
    await cut(team, gate.reached)
    assert team._manager is not None and team._manager._previous_speaker == "a"  # type: ignore[attr-defined]


async def test_a_graph_goes_on_at_the_node_that_was_cut_off() -> None:
    """Also AutoGen 7043: AutoGen says that the graph is complete."""
    gate = Gate()
    a, b, c = Speaker("a"), Speaker("b", wait=gate), Speaker("c")
    graph = map_reduce_graph([a, b], c)
    for parallel in (False, True):
        team = FlashGraphFlow([a, b, c], graph, parallel=parallel)
        gate.event.clear()
        await cut(team, gate.reached)
        gate.event.set()
        if parallel:
            assert await conversation(team) == [
                *("b: b says so", "c: c says so", "stop: Digraph execution is complete")
            ]
        else:
            assert (await conversation(team))[-2:] == ["c: c says so", "stop: Digraph execution is complete"]


async def test_an_agent_that_failed_is_asked_again() -> None:
    fails = [True]

    async def sometimes() -> None:
        if fails.pop():
            raise OSError("no network")

    a, b = Speaker("a"), Speaker("b", wait=sometimes)
    team = FlashRoundRobinGroupChat([a, b], max_turns=2)
    with pytest.raises(RuntimeError, match="no network"):
        await team.run(task="Go.")
    fails.append(False)
    assert await conversation(team) == [
        *("b: b says so", "a: a says so", "stop: Maximum number of turns 2 reached.")
    ]


async def test_4776_turns_of_a_run_that_was_cut_off_do_not_count() -> None:
    gate = Gate()
    condition = MaxMessageTermination(4)
    team = FlashRoundRobinGroupChat(
        [Speaker("a"), Speaker("b", wait=gate)], termination_condition=condition, max_turns=5
    )
    await cut(team, gate.reached)
    gate.event.set()
    assert team._manager is not None and team._manager._current_turn == 0
    # The condition counts to four anew: task and three answers.
    assert (await conversation(team, "Go on."))[:-1] == [
        *("user: Go on.", "b: b says so", "a: a says so", "b: b says so")
    ]


async def test_4776_opted_out_turns_of_the_run_that_was_cut_off_count() -> None:
    gate = Gate()
    team = FlashRoundRobinGroupChat(
        [Speaker("a"), Speaker("b", wait=gate)],
        termination_condition=MaxMessageTermination(4),
        fixes=TeamFixes(turn_counters=False),
    )
    await cut(team, gate.reached)
    gate.event.set()
    assert (await conversation(team, "Go on."))[:-1] == ["user: Go on.", "b: b says so"]


LEDGER = (
    '{"is_request_satisfied": {"reason": "r", "answer": %s}, "is_progress_being_made": '
    '{"reason": "r", "answer": true}, "is_in_loop": {"reason": "r", "answer": false}, '
    '"instruction_or_question": {"reason": "r", "answer": "do"}, '
    '"next_speaker": {"reason": "r", "answer": "a"}}'
)


@pytest.mark.parametrize("fixed", [True, False])
async def test_the_rounds_of_magentic_one_do_not_leak_into_the_next_task(fixed: bool) -> None:
    one_task = ["facts", "plan", LEDGER % "false", LEDGER % "true", "final"]
    agents, _ = assistants("x", *one_task, *one_task)
    team = FlashMagenticOneGroupChat(
        [Speaker("a")], agents[0]._model_client, fixes=TeamFixes(turn_counters=fixed)
    )
    await team.run(task="One.")
    await team.run(task="Two.")
    assert team._manager is not None
    assert team._manager._n_rounds == (2 if fixed else 4)  # type: ignore[attr-defined]


# ---- callbacks: 505 of them after 500 chunks with AutoGen's own team


@pytest.mark.parametrize("stop_at_once", [True, False])
@pytest.mark.parametrize("end", ["finished", "cancelled"])
async def test_a_run_leaves_no_callback(stop_at_once: bool, end: str) -> None:
    agents, engine = assistants("ab", "x" * 50, "y" * 50 if end == "finished" else NEVER)
    token = CancellationToken()
    team = FlashRoundRobinGroupChat(list(agents), max_turns=2, fixes=TeamFixes(stop_at_once=stop_at_once))
    if end == "finished":
        most = 0
        async for _ in team.run_stream(task="Go.", cancellation_token=token):
            most = max(most, len(token._callbacks))
        assert most == 1
    else:

        async def b_speaks() -> None:
            while len(answered(engine)) < 2:
                await asyncio.sleep(0)

        run = asyncio.create_task(team.run(task="Go.", cancellation_token=token))
        await b_speaks()
        token.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(run, 5)
    assert token._callbacks == []


async def test_a_runs_own_token_holds_what_is_pending_only() -> None:
    agents, _ = assistants("a", "x" * 200)
    team = FlashRoundRobinGroupChat(list(agents), max_turns=1)
    most = 0
    async for _ in team.run_stream(task="Go."):
        assert team.current_run is not None
        most = max(most, len(team.current_run.token._callbacks))
    assert most < 10


@pytest.mark.parametrize("team_class", [FlashRoundRobinGroupChat, RoundRobinGroupChat])
async def test_opted_out_callbacks_pile_up_as_autogens_do(team_class: Any) -> None:
    agents, _ = assistants("a", "x" * 50)
    options = {"fixes": TeamFixes.none()} if team_class is FlashRoundRobinGroupChat else {}
    token = CancellationToken()
    await team_class(list(agents), max_turns=1, **options).run(task="Go.", cancellation_token=token)
    assert len(token._callbacks) > 50


# ---- termination


class Sees(TextMentionTermination):
    """Remembers what it was shown."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.shown: list[list[str]] = []

    async def __call__(self, messages: Sequence[BaseAgentEvent | BaseChatMessage]) -> StopMessage | None:
        self.shown.append([m.to_text() for m in messages])
        return await super().__call__(messages)


@pytest.mark.parametrize("fixed", [True, False])
async def test_8206_termination_sees_the_messages_of_all_who_spoke_together(fixed: bool) -> None:
    """Also AutoGen 5395. a says the word and is done first; AutoGen shows what b says alone."""
    gate = Gate()
    a, b, c = Speaker("a", "STOP"), Speaker("b", wait=gate), Speaker("c")
    condition = Sees("STOP")
    team = FlashGraphFlow(
        [a, b, c],
        map_reduce_graph([a, b], c),
        termination_condition=condition,
        fixes=TeamFixes(termination_sees_all=fixed),
    )

    async def let_b_end_last() -> None:
        await gate.reached()
        while not a.told:
            await asyncio.sleep(0)
        for _ in range(50):
            await asyncio.sleep(0)
        gate.event.set()

    async with asyncio.TaskGroup() as group:
        group.create_task(let_b_end_last())
        run = group.create_task(conversation(team, "Go."))
    assert condition.shown[1] == (["STOP", "b says so"] if fixed else ["b says so"])
    assert ("c: c says so" in run.result()) is not fixed


async def test_a_map_reduce_that_is_to_end_starts_nobody_else() -> None:
    gate = Gate()
    slow, reducer, condition = Speaker("slow", wait=gate), Speaker("reducer"), Sees("STOP")
    team = FlashMapReduce([Speaker("quick", "STOP"), slow], reducer, termination_condition=condition)
    run = asyncio.create_task(conversation(team, "Go."))
    await gate.reached()
    while len(condition.shown) < 2:
        await asyncio.sleep(0)
    gate.event.set()
    assert (await run)[1:3] == ["quick: STOP", "slow: slow says so"]
    assert condition.shown == [["Go."], ["STOP"]] and reducer.told == []
