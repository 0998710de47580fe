"""FlashGraphFlow: saved and loaded in a loop, without a barrier, and with an ordered fan-in."""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import Any

import pytest
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.messages import BaseChatMessage, TextMessage
from autogen_agentchat.teams import DiGraphBuilder, GraphFlow
from autogen_core import AgentId
from hypothesis import given
from hypothesis import strategies as st

from flashagents_autogen import FlashGraphFlow, FlashMapReduce, TeamFixes
from flashagents_autogen.teams import map_reduce_graph
from flashagents_autogen.teams._fan_in import fan_in_of
from flashagents_autogen.teams._graph import FlashGraphContainer
from helpers.teams import Gate, Speaker, conversation

COMPLETE = "stop: Digraph execution is complete"


def graph(*edges: tuple[Any, Any]) -> DiGraphBuilder:
    builder = DiGraphBuilder()
    for agent in dict.fromkeys(itertools.chain.from_iterable(edges)):
        builder.add_node(agent)
    for before, after in edges:
        builder.add_edge(before, after)
    return builder


# ---- state


def loop(team_class: type = FlashGraphFlow, turns: int | None = None, **options: Any) -> Any:
    """write -> review -> write ... until the review says APPROVE, then publish."""
    write, review, publish = (
        Speaker("write", "draft"),
        Speaker("review", "again", "again", "APPROVE", repeat=False),
        Speaker("publish"),
    )
    builder = DiGraphBuilder().add_node(write).add_node(review).add_node(publish)
    builder.add_edge(write, review)
    builder.add_edge(review, write, condition="again", activation_group="loop")
    builder.add_edge(review, publish, condition="APPROVE")
    builder.set_entry_point(write)
    return team_class(
        [write, review, publish],
        builder.build(),
        termination_condition=MaxMessageTermination(turns or 50),
        **options,
    )


def review_of(team: Any) -> Speaker:
    return next(agent for agent in team._participants if agent.name == "review")  # type: ignore[no-any-return]


WHOLE = [
    *("user: Go.", "write: draft", "review: again", "write: draft", "review: again", "write: draft"),
    *("review: APPROVE", "publish: publish says so", COMPLETE),
]


@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("after", [2, 3, 4, 5, 6])
async def test_7043_a_loop_goes_on_where_it_was_saved(after: int, parallel: bool) -> None:
    """Also AutoGen 7092, 7220 and 7916: AutoGen ends with "Digraph execution is complete"."""
    team = loop(turns=after, parallel=parallel)
    first = (await conversation(team, "Go."))[:-1]
    state = json.loads(json.dumps(await team.save_state()))

    other = loop(parallel=parallel)
    await other.load_state(state)
    review_of(other)._says = review_of(team)._says
    assert first + await conversation(other) == WHOLE


async def test_7043_a_node_that_is_at_work_is_saved_as_ready() -> None:
    gate = Gate()
    a, b = Speaker("a"), Speaker("b", wait=gate)
    team = FlashGraphFlow([a, b], graph((a, b)).build())
    run = asyncio.create_task(team.run(task="Go."))
    await gate.reached()
    state = await team.save_state()
    gate.event.set()
    await run

    c, d = Speaker("a"), Speaker("b")
    other = FlashGraphFlow([c, d], graph((c, d)).build())
    await other.load_state(state)
    assert await conversation(other) == ["b: b says so", COMPLETE]
    assert d.told == [["user: Go.", "a: a says so"]]


async def test_7916_a_state_that_autogen_saved_in_a_loop_goes_on_too() -> None:
    team = loop(GraphFlow, turns=3)
    await conversation(team, "Go.")
    state = await team.save_state()
    other = loop()
    await other.load_state(state)
    review_of(other)._says = review_of(team)._says
    assert await conversation(other) == WHOLE[3:]


async def test_our_state_fits_autogens_graph_flow() -> None:
    team = loop(turns=2)
    await conversation(team, "Go.")
    other = loop(GraphFlow)
    await other.load_state(await team.save_state())
    assert (await conversation(other))[0] == "review: again"


async def test_7043_opted_out_a_loop_ends_early_after_loading() -> None:
    off = TeamFixes(graph_state=False)
    team = loop(turns=3, fixes=off)
    await conversation(team, "Go.")
    other = loop(fixes=off)
    await other.load_state(await team.save_state())
    review_of(other)._says = review_of(team)._says
    assert (await conversation(other))[-1] == COMPLETE
    assert other._participants[2].told == []


async def test_a_saved_state_does_not_change_with_the_team() -> None:
    team = loop(turns=3)
    await conversation(team, "Go.")
    state = await team.save_state()
    before = json.dumps(state)
    await conversation(team)
    assert json.dumps(state) == before


# ---- no barrier


class Diamond:
    """A -> {quick, slow}; quick -> after; {after, slow} -> join. slow waits for its gate."""

    def __init__(self, **options: Any) -> None:
        self.gate = Gate()
        self.a, self.quick, self.after, self.join = (Speaker(n) for n in ("a", "quick", "after", "join"))
        self.slow = Speaker("slow", wait=self.gate)
        edges = [(self.a, self.quick), (self.a, self.slow), (self.quick, self.after)]
        builder = graph(*edges, (self.after, self.join), (self.slow, self.join))
        agents = [self.a, self.slow, self.quick, self.after, self.join]
        self.team = FlashGraphFlow(agents, builder.build(), **options)


@pytest.mark.parametrize("parallel", [False, True])
async def test_6484_a_node_starts_when_its_own_predecessors_are_done(parallel: bool) -> None:
    """Also AutoGen 6541: with the barrier, `after` waits for `slow`, which it does not need."""
    d = Diamond(parallel=parallel)
    run = asyncio.create_task(conversation(d.team, "Go."))
    await d.gate.reached()
    for _ in range(200):
        await asyncio.sleep(0)
    assert (d.after.told != []) is parallel
    d.gate.event.set()
    said = await run
    assert said[-2:] == ["join: join says so", COMPLETE]
    assert d.join.told == [
        [
            "user: Go.",
            "a: a says so",
            *(["slow: slow says so", "quick: quick says so", "after: after says so"]),
        ]
        if parallel
        else [
            "user: Go.",
            "a: a says so",
            "quick: quick says so",
            "slow: slow says so",
            "after: after says so",
        ]
    ]


async def test_a_node_hears_those_before_it_and_nobody_else() -> None:
    """`slow` is done first here: `after` must not hear it, for in another run it would not be done."""
    d = Diamond(parallel=True)
    d.gate.event.set()
    hold = Gate()
    d.quick._wait = hold
    run = asyncio.create_task(conversation(d.team, "Go."))
    await hold.reached()
    for _ in range(200):
        await asyncio.sleep(0)
    assert len(d.slow.told) == 1
    hold.event.set()
    await run
    assert d.after.told == [["user: Go.", "a: a says so", "quick: quick says so"]]
    # The next run tells it what it missed, before the new task.
    await conversation(d.team, "Again.")
    assert d.after.told[1] == [
        *("slow: slow says so", "join: join says so", "user: Again."),
        *("a: a says so", "quick: quick says so"),
    ]


@pytest.mark.parametrize("order", list(itertools.permutations("abc")))
async def test_a_reducer_hears_the_mappers_in_their_order(order: tuple[str, ...]) -> None:
    gates = {name: Gate() for name in "abc"}
    mappers = [Speaker(name, wait=gates[name]) for name in "abc"]
    reducer = Speaker("reducer")
    team = FlashMapReduce(mappers, reducer)
    run = asyncio.create_task(conversation(team, "Go."))
    for gate in gates.values():
        await gate.reached()  # all three at the same time
    for name in order:
        gates[name].event.set()
        for _ in range(100):
            await asyncio.sleep(0)
    said = await run
    assert said[1:4] == [f"{name}: {name} says so" for name in order]
    assert said[4:] == ["reducer: reducer says so", COMPLETE]
    assert [m.told for m in mappers] == [[["user: Go."]]] * 3
    assert reducer.told == [["user: Go.", "a: a says so", "b: b says so", "c: c says so"]]


async def test_the_same_as_a_graph_flow() -> None:
    mappers, reducer = [Speaker("a"), Speaker("b")], Speaker("r")
    flow = FlashGraphFlow([*mappers, reducer], map_reduce_graph(mappers, reducer), parallel=True)
    said = await conversation(flow, "Go.")
    others, other = [Speaker("a"), Speaker("b")], Speaker("r")
    assert await conversation(FlashMapReduce(others, other), "Go.") == said
    assert reducer.told == other.told


async def test_an_ordered_fan_in_without_parallelism() -> None:
    gate = Gate()
    a, b, c = Speaker("a", wait=gate), Speaker("b"), Speaker("c")
    team = FlashGraphFlow([a, b, c], map_reduce_graph([a, b], c), ordered_fan_in=True)
    run = asyncio.create_task(conversation(team, "Go."))
    await gate.reached()
    for _ in range(100):
        await asyncio.sleep(0)
    gate.event.set()
    assert (await run)[1:3] == ["b: b says so", "a: a says so"]
    assert c.told == [["user: Go.", "a: a says so", "b: b says so"]]


async def test_each_node_counts_as_a_turn() -> None:
    gate = Gate()
    agents = [Speaker("a"), Speaker("b"), Speaker("c", wait=gate), Speaker("d")]
    team = FlashMapReduce(agents[:3], agents[3], max_turns=2)
    run = asyncio.create_task(conversation(team, "Go."))
    await gate.reached()
    for _ in range(200):
        await asyncio.sleep(0)
    gate.event.set()
    # c was at work when the second turn ended: what it says belongs to the run, but d is not started.
    said = await run
    assert [line.split(":")[0] for line in said] == ["user", "a", "b", "c", "stop"]
    assert said[-1] == "stop: Maximum number of turns 2 reached."
    assert await conversation(team) == ["d: d says so", COMPLETE]


async def test_a_mapper_that_fails_ends_the_others_at_once() -> None:
    gate = Gate()

    async def fail() -> None:
        await gate.reached()
        raise OSError("no network")

    slow = Speaker("slow", wait=gate)
    team = FlashMapReduce([slow, Speaker("bad", wait=fail)], Speaker("reducer"))
    with pytest.raises(RuntimeError, match="no network"):
        await asyncio.wait_for(team.run(task="Go."), 5)
    assert slow.cut == 1


def test_a_map_needs_a_mapper() -> None:
    with pytest.raises(ValueError, match="at least one mapper"):
        FlashMapReduce([], Speaker("reducer"))
    alone = Speaker("alone")
    with pytest.raises(ValueError, match="another agent"):
        FlashMapReduce([alone], alone)


async def test_two_runs_do_the_same_thing_twice() -> None:
    team = FlashMapReduce([Speaker("a"), Speaker("b")], Speaker("r"))
    first = await conversation(team, "Go.")
    assert await conversation(team, "Go.") == first


async def test_start_nodes_begin_in_the_order_of_the_participants() -> None:
    """AutoGen keeps them in a set: another order in each process."""
    names = [f"agent_{i}" for i in range(9)]
    mappers = [Speaker(name) for name in names]
    team = FlashGraphFlow([*mappers, Speaker("r")], map_reduce_graph(mappers, Speaker("r")))
    assert [line.split(":")[0] for line in (await conversation(team, "Go."))[1:10]] == names


async def test_a_forecast_can_ask_what_a_node_will_hear() -> None:
    gate = Gate()
    a, b, r = Speaker("a", wait=gate), Speaker("b"), Speaker("r")
    team = FlashMapReduce([a, b], r)
    assert team.fan_in_order is not None and [team.fan_in_order(n) for n in "abr"] == [0, 1, 2]
    run = asyncio.create_task(conversation(team, "Go."))
    await gate.reached()
    while not (container := await container_of(team, "r"))._message_buffer[1:]:
        await asyncio.sleep(0)
    coming = [message("a", "to come")]
    heard = container.hears([*container._message_buffer, *coming])
    assert [m.source for m in heard] == ["user", "a", "b"]
    gate.event.set()
    await run
    assert [line.split(":")[0] for line in r.told[0]] == ["user", "a", "b"]
    assert FlashGraphFlow([a, b, r], map_reduce_graph([a, b], r)).fan_in_order is None


async def container_of(team: Any, name: str) -> FlashGraphContainer:
    topic = team._participant_topic_types[team._participant_names.index(name)]
    found = await team._runtime.try_get_underlying_agent_instance(
        AgentId(topic, team._team_id), FlashGraphContainer
    )
    assert isinstance(found, FlashGraphContainer)
    return found


# ---- the order itself


def message(source: str, text: str = "") -> BaseChatMessage:
    return TextMessage(content=text, source=source)


LOOPING = graph(*itertools.pairwise([Speaker(n) for n in "abcd"])).build()


@given(st.data())
def test_the_fan_in_depends_on_what_was_said_not_on_when(data: st.DataObject) -> None:
    """Whatever the interleaving of the speakers, each of whom speaks in his own order."""
    fan_in = fan_in_of(LOOPING, list("abcd"), only_ancestors=False)
    counts = data.draw(st.fixed_dictionaries({name: st.integers(0, 3) for name in "abc"}))
    slots = data.draw(st.permutations([name for name, n in counts.items() for _ in range(n)]))
    said: dict[str, int] = dict.fromkeys(counts, 0)
    messages = [message("user", "task")]
    for name in slots:
        messages.append(message(name, str(said[name])))
        said[name] += 1
    heard, unheard = fan_in.split("d", messages)
    assert unheard == []
    assert [(m.source, m.to_text()) for m in heard] == [
        ("user", "task"),
        *((name, str(k)) for k in range(3) for name in "abc" if k < counts[name]),
    ]


def test_a_predecessor_comes_before_its_successors_whatever_the_participants_order() -> None:
    fan_in = fan_in_of(LOOPING, list("dcba"), only_ancestors=True)
    assert sorted(fan_in.rank, key=lambda node: fan_in.rank[node]) == list("abcd")
    assert fan_in.ancestors is not None and fan_in.ancestors["c"] == {"a", "b"}
