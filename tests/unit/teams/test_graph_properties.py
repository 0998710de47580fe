"""Random graphs: the same as AutoGen's with the barrier, the same whatever the timing without it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from autogen_agentchat.teams import DiGraph, DiGraphBuilder, GraphFlow
from hypothesis import given, settings
from hypothesis import strategies as st

from flashagents_autogen import FlashGraphFlow
from helpers.teams import Speaker, conversation

pytestmark = pytest.mark.long

Edges = frozenset[tuple[int, int]]


@st.composite
def dags(draw: st.DrawFn) -> tuple[int, Edges]:
    """2 to 6 nodes; edges go from lower to higher numbers."""
    n = draw(st.integers(2, 6))
    pairs = [(i, j) for j in range(n) for i in range(j)]
    return n, frozenset(draw(st.lists(st.sampled_from(pairs), unique=True)))


def turns_of_the_loop(n: int) -> Callable[[], Awaitable[None]]:
    async def wait() -> None:
        for _ in range(n):
            await asyncio.sleep(0)

    return wait


def build(n: int, edges: Edges, delays: Sequence[int]) -> tuple[list[Speaker], DiGraph]:
    agents = [Speaker(f"n{i}", wait=turns_of_the_loop(delays[i])) for i in range(n)]
    builder = DiGraphBuilder()
    for agent in agents:
        builder.add_node(agent)
    for i, j in sorted(edges):
        builder.add_edge(agents[i], agents[j])
    return agents, builder.build()


async def run(team_class: Any, n: int, edges: Edges, delays: Sequence[int], **options: Any) -> Any:
    agents, graph = build(n, edges, delays)
    team = team_class(agents, graph, **options)
    said = [await conversation(team, "One."), await conversation(team, "Two.")]
    return said, {agent.name: agent.told for agent in agents}


def reach(node: int, edges: Edges) -> set[int]:
    before = {i for i, j in edges if j == node}
    return before.union(*(reach(i, edges) for i in before))


DELAYS = st.lists(st.integers(0, 60), min_size=6, max_size=6)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(dag=dags(), delays=DELAYS)
async def test_with_the_barrier_it_says_what_autogens_graph_says(
    dag: tuple[int, Edges], delays: list[int]
) -> None:
    """AutoGen's start nodes come in no fixed order: compared are the sets of each step."""
    ours, heard = await run(FlashGraphFlow, *dag, delays)
    stock, stock_heard = await run(GraphFlow, *dag, delays)
    for mine, theirs in zip(ours, stock, strict=True):
        assert sorted(mine) == sorted(theirs) and mine[-1] == theirs[-1]
    for name, turns in heard.items():
        assert [sorted(turn) for turn in turns] == [sorted(turn) for turn in stock_heard[name]]


@settings(max_examples=40, deadline=None, derandomize=True)
@given(dag=dags(), delays=DELAYS, others=DELAYS)
async def test_without_the_barrier_nobody_hears_anything_else_for_the_timing(
    dag: tuple[int, Edges], delays: list[int], others: list[int]
) -> None:
    n, edges = dag
    said, heard = await run(FlashGraphFlow, n, edges, delays, parallel=True)
    again, heard_again = await run(FlashGraphFlow, n, edges, others, parallel=True)
    assert heard == heard_again
    assert [sorted(of_run) for of_run in said] == [sorted(of_run) for of_run in again]
    for i in range(n):
        first, second = heard[f"n{i}"]
        ancestors = sorted(reach(i, edges))
        # The task, and then those before it, each after all that it builds on.
        assert first[0] == "user: One." and {line[:2] for line in first[1:]} == {f"n{a}" for a in ancestors}
        place = {int(line[1]): k for k, line in enumerate(first) if k}
        assert all(place[a] < place[b] for a, b in edges if a in place and b in place)
        # The second run tells it the rest of the first one, the new task, and again those before it.
        assert sorted(second) == sorted(
            ["user: Two.", *(f"n{j}: n{j} says so" for j in range(n) if j != i and j not in ancestors)]
            + [f"n{a}: n{a} says so" for a in ancestors]
        )
