"""Swarm: the next agent is known the moment the name of its hand-off is decoded."""

from __future__ import annotations

from typing import Any

from autogen_agentchat.base import Handoff
from autogen_agentchat.conditions import HandoffTermination, MaxMessageTermination
from autogen_agentchat.teams import Swarm

from flashagents_runtime.chat import ToolCall
from flashagents_runtime.scripted import Reply
from helpers.overlap import assistant, both, call

NAMES = ("triage", "flights", "hotels")


def lookup(city: str) -> str:
    """Look a city up."""
    return f"{city} is nice."


def team(client: Any, answers: int = 2, **args: Any) -> Swarm:
    agents = [
        assistant(name, client, handoffs=[other for other in NAMES if other != name], **args)
        for name in NAMES
    ]
    return Swarm(agents, termination_condition=MaxMessageTermination(1 + answers))


async def test_the_next_agent_is_foreseen_when_its_name_is_decoded() -> None:
    script = [call("transfer_to_flights"), call("transfer_to_hotels"), call("transfer_to_triage"), "Done."]
    runtime, _ = await both(lambda c: team(c, 4), script)
    rate = runtime.hit_rate()
    assert (rate.turns, rate.foreseen, rate.right) == (3, 3, 3)
    for turn in list(runtime.turns)[1:]:
        assert turn.cached >= turn.prompt - 20 and turn.prewarmed > 300
    # It was known before the call had ended.
    events = list(runtime.events)
    decoded = next(i for i, e in enumerate(events) if e.kind == "forecast" and e.data["known"])
    assert decoded < next(i for i, e in enumerate(events) if e.kind == "turn")


async def test_text_beside_the_call_is_foreseen_too() -> None:
    script = [call("transfer_to_flights", "Flights it is, I will hand you over."), "Done."]
    runtime, _ = await both(team, script)
    assert runtime.turns[1].right is True


async def test_reasoning_before_the_call_is_seen_at_its_end() -> None:
    script = [call("transfer_to_hotels", thought="They need a hotel."), "Done."]
    runtime, _ = await both(team, script)
    assert runtime.turns[1].right is True


async def test_other_tools_beside_the_handoff_are_not_guessed() -> None:
    both_calls = Reply(
        text=[""],
        token_ids=[list(b"calls")],
        tool_calls=[
            ToolCall(name="lookup", arguments='{"city": "Rome"}'),
            ToolCall(name="transfer_to_flights", arguments="{}"),
        ],
    )
    runtime, _ = await both(lambda c: team(c, tools=[lookup]), [both_calls, "Done."])
    turn = runtime.turns[1]
    assert turn.forecast == "head" and turn.prewarmed > 100


async def test_an_agent_that_speaks_on_needs_no_guess() -> None:
    runtime, _ = await both(lambda c: team(c, 4), ["Where to?", "And when?", "I see.", "Fine."])
    assert runtime.hit_rate().turns == 0


async def test_names_that_begin_alike() -> None:
    def make(client: Any) -> Swarm:
        agents = [
            assistant("a", client, handoffs=["ab", "abc"]),
            assistant("ab", client, handoffs=["a"]),
            assistant("abc", client, handoffs=["a"]),
        ]
        return Swarm(agents, termination_condition=MaxMessageTermination(3))

    runtime, _ = await both(make, [call("transfer_to_abc"), "Done."])
    assert runtime.turns[1].agent == "abc" and runtime.turns[1].right is True


async def test_a_message_of_the_users_own_goes_with_the_handoff() -> None:
    def make(client: Any) -> Swarm:
        handoff = Handoff(target="flights", message="Over to you, and be quick about it, please.")
        agents = [assistant("triage", client, handoffs=[handoff]), assistant("flights", client)]
        return Swarm(agents, termination_condition=MaxMessageTermination(3))

    runtime, _ = await both(make, [call("transfer_to_flights"), "Done."])
    assert runtime.turns[1].right is True


async def test_a_handoff_to_a_person_ends_the_run() -> None:
    def make(client: Any) -> Swarm:
        agents = [assistant("triage", client, handoffs=["flights", "user"]), assistant("flights", client)]
        return Swarm(agents, termination_condition=HandoffTermination("user"))

    await both(make, [call("transfer_to_user")])
