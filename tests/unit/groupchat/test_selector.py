"""SelectorGroupChat: an agent speaks into the selector's prompt; likely candidates are warmed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from autogen_agentchat.teams import SelectorGroupChat

from helpers.overlap import EAGER, assistant, both, client_on, overlapping

NAMES = ("planner", "local", "language")


def text(i: int) -> str:
    return f"Answer number {i}: " + f"take the train to city {i}, then walk. " * 4


def script(order: tuple[str, ...], selected: bool = True) -> list[str]:
    out = []
    for i, name in enumerate(order):
        out += [name, text(i)] if selected else [text(i)]
    return out


def team(client: Any, turns: int = 5, **args: Any) -> SelectorGroupChat:
    agents = [assistant(name, client) for name in NAMES]
    return SelectorGroupChat(agents, model_client=client, max_turns=turns, **args)


async def test_agents_speak_into_the_selectors_prompt() -> None:
    order = ("planner", "local", "language", "planner", "local")
    runtime, _ = await both(team, script(order))
    selections = [turn for turn in runtime.turns if turn.agent == "SelectorGroupChatManager"]
    assert [turn.right for turn in selections] == [None, True, True, True, True]
    for turn in selections[1:]:
        slot = turn.slots[0]
        assert slot.prewarmed >= slot.end - slot.start - 16 and slot.issued_early > 0


async def test_who_has_often_followed_is_warmed_while_one_speaks() -> None:
    order = ("planner", "local", "language", "planner", "local", "language", "planner", "local")
    runtime, _ = await both(lambda c: team(c, turns=len(order)), script(order))
    later = [turn for turn in runtime.turns if turn.agent in NAMES][4:]
    assert [turn.right for turn in later] == [True] * 4
    assert all(turn.prewarmed > 200 for turn in later)


async def test_a_team_that_is_built_anew_is_known() -> None:
    order = ("planner", "local", "language")
    async with overlapping() as runtime:
        for _ in range(2):
            flash = team(client_on(*script(order)), turns=3)
            runtime.attach(flash)
            await flash.run(task="Plan a trip.")
    agents = [turn.right for turn in runtime.turns if turn.agent in NAMES]
    assert agents == [None, None, None, None, True, True]


async def test_nobody_is_guessed_without_candidates() -> None:
    order = ("planner", "local", "planner", "local", "planner")
    runtime, _ = await both(team, script(order), policy=replace(EAGER, candidates=0))
    assert all(turn.right is None for turn in runtime.turns if turn.agent in NAMES)


async def test_of_two_who_may_not_repeat_the_other_one_is_next() -> None:
    def make(client: Any) -> SelectorGroupChat:
        agents = [assistant(name, client) for name in NAMES[:2]]
        return SelectorGroupChat(agents, model_client=client, max_turns=4)

    runtime, _ = await both(make, ["planner", text(0), text(1), text(2), text(3)])
    agents = [turn for turn in runtime.turns if turn.agent in NAMES]
    assert [turn.right for turn in agents[1:]] == [True] * 3


async def test_a_function_that_selects_is_asked_by_autogen_alone() -> None:
    calls: list[int] = []

    def select(thread: Any) -> str:
        calls.append(len(thread))
        return NAMES[len(thread) % 3]

    runtime, _ = await both(
        lambda c: team(c, turns=7, selector_func=select), script(("a",) * 7, selected=False)
    )
    assert len(calls) == 14  # two teams, seven turns each
    assert runtime.hit_rate().right >= 3  # by frequency


async def test_a_candidate_function_is_asked_by_autogen_alone() -> None:
    calls: list[int] = []

    def candidates(thread: Any) -> list[str]:
        calls.append(len(thread))
        return list(NAMES)

    order = ("planner", "local", "language")
    await both(lambda c: team(c, turns=3, candidate_func=candidates), script(order))
    assert len(calls) == 6


async def test_a_name_that_is_no_name_is_asked_again() -> None:
    answers = ["who?", "planner", text(0), "local", text(1)]
    runtime, _ = await both(lambda c: team(c, turns=2), answers)
    assert not [event for event in runtime.events if event.kind == "error"]
    assert runtime.turns[3].right is True


async def test_streaming_selection() -> None:
    runtime, _ = await both(
        lambda c: team(c, turns=3, model_client_streaming=True), script(("planner", "local", "language"))
    )
    assert runtime.turns[2].right is True
