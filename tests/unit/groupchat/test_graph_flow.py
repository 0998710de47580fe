"""GraphFlow: all static successors are foreseen; conditional ones are guesses within a budget."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from autogen_agentchat.agents import MessageFilterAgent
from autogen_agentchat.agents._message_filter_agent import MessageFilterConfig, PerSourceFilter
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.teams import DiGraphBuilder, GraphFlow

from flashagents_runtime import GenerateRequest
from flashagents_runtime.scripted import Reply
from helpers.overlap import assistant, both, check_covered, client_on, overlapping, words

CITIES = "take the train to the next city, look at the old town, then walk on along the river. " * 2


def says(name: str) -> str:
    return f"{name} says: {CITIES}"


def by_speaker(texts: dict[str, str], words_more: dict[str, int] | None = None) -> Callable[..., Reply]:
    """An answer that depends on whose prompt it is, so that parallel agents may come in any order."""

    def answer(request: GenerateRequest) -> Reply:
        prompt = bytes(request.input_ids).decode()
        name = prompt.split("You are ", 1)[1].split(".", 1)[0]
        more = " and more" * (words_more or {}).get(name, 0)
        return words(texts.get(name, says(name)) + more)

    return answer


def graph(*edges: str, **args: Any) -> Callable[[Any], GraphFlow]:
    """A team from edges like "a>b"."""

    def make(client: Any) -> GraphFlow:
        names = dict.fromkeys(name for edge in edges for name in edge.split(">"))
        agents = {name: assistant(name, client) for name in names}
        builder = DiGraphBuilder()
        for agent in agents.values():
            builder.add_node(agent)
        for edge in edges:
            a, b = edge.split(">")
            builder.add_edge(agents[a], agents[b])
        return GraphFlow(list(agents.values()), builder.build(), **args)

    return make


async def test_chain() -> None:
    runtime, _ = await both(graph("a>b", "b>c", "c>d"), [by_speaker({})] * 4)
    check_covered(runtime, turns=3)


async def test_fan_out() -> None:
    runtime, _ = await both(graph("a>b", "a>c", "a>d"), [by_speaker({})] * 4)
    check_covered(runtime)
    assert {turn.agent for turn in runtime.turns if turn.right} == {"b", "c", "d"}


async def test_fan_in_in_the_order_of_the_graph() -> None:
    runtime, _ = await both(graph("a>b", "a>c", "b>d", "c>d"), [by_speaker({}, {"c": 20})] * 4)
    last = runtime.turns[-1]
    assert last.agent == "d" and last.right is True and len(last.slots) == 2
    assert all(slot.prewarmed >= slot.end - slot.start - 16 for slot in last.slots)


async def test_fan_in_where_the_second_branch_ends_first() -> None:
    runtime, _ = await both(graph("a>b", "a>c", "b>d", "c>d"), [by_speaker({}, {"b": 40})] * 4)
    last = runtime.turns[-1]
    assert last.agent == "d" and last.right is True
    assert all(slot.prewarmed >= slot.end - slot.start - 16 for slot in last.slots)
    assert last.slots[-1].issued_early > 0


async def test_a_node_waits_for_a_longer_branch() -> None:
    """a -> b -> d, a -> c -> e -> d: d comes after e, and is no guess before."""
    runtime, _ = await both(graph("a>b", "a>c", "b>d", "c>e", "e>d"), [by_speaker({})] * 5)
    turns = {turn.agent: turn for turn in runtime.turns}
    assert turns["e"].right is True and turns["d"].right is True


def conditional(client: Any) -> GraphFlow:
    """a -> b -> c where b approves, else back to a."""
    a, b, c = (assistant(name, client) for name in "abc")
    builder = DiGraphBuilder()
    builder.add_node(a).add_node(b).add_node(c)
    builder.add_edge(a, b).add_edge(b, c, condition="APPROVE").add_edge(b, a, condition="REDO")
    builder.set_entry_point(a)
    return GraphFlow([a, b, c], builder.build(), termination_condition=MaxMessageTermination(8))


VERDICTS = [
    says("a"),
    f"REDO: {CITIES}",
    says("a"),
    f"REDO: {CITIES}",
    says("a"),
    f"APPROVE: {CITIES}",
    says("c"),
]


async def test_conditional_nodes_are_guessed() -> None:
    runtime, _ = await both(conditional, VERDICTS)
    after_b = [turn for turn in runtime.turns if turn.after == "b"]
    assert [turn.agent for turn in after_b] == ["a", "a", "c"]
    assert all(turn.right for turn in after_b)


async def test_guesses_stop_when_too_much_was_wasted() -> None:
    client = client_on(*VERDICTS)
    team = conditional(client)
    async with overlapping(team) as runtime:
        runtime.expectations.wasted = 1 << 20
        await team.run(task="Plan a trip.")
    known = [e for e in runtime.events if e.kind == "forecast" and e.data["known"]]
    assert known and all(e.data["certain"] for e in known)


async def test_a_condition_that_is_a_function_is_asked_by_autogen_alone() -> None:
    asked: list[str] = []

    def make(client: Any) -> GraphFlow:
        a, b, c = (assistant(name, client) for name in "abc")

        def long(message: Any) -> bool:
            asked.append(message.content)
            return len(message.content) > 3

        builder = DiGraphBuilder()
        builder.add_node(a).add_node(b).add_node(c)
        builder.add_edge(a, b, condition=long).add_edge(a, c, condition=lambda m: not long(m))
        return GraphFlow([a, b, c], builder.build())

    runtime, _ = await both(make, [says("a"), says("b")])
    assert len(asked) == 4  # two edges, two runs
    assert runtime.turns[-1].right is True


async def test_filtered_agents() -> None:
    """d reads only what c says."""

    def make(client: Any) -> GraphFlow:
        a, b, c, d = (assistant(name, client) for name in "abcd")
        filtered = MessageFilterAgent(
            "d", d, MessageFilterConfig(per_source=[PerSourceFilter(source="c", position="last", count=1)])
        )
        builder = DiGraphBuilder()
        for agent in (a, b, c, filtered):
            builder.add_node(agent)
        builder.add_edge(a, b).add_edge(b, c).add_edge(c, filtered)
        return GraphFlow([a, b, c, filtered], builder.build())

    runtime, _ = await both(make, [by_speaker({})] * 4)
    check_covered(runtime, turns=3)
