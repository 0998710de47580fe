"""The Flash teams as AutoGen components, beside the stock ones, and what they check of AutoGen."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.base import TaskResult, Team
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.messages import TextMessage
from autogen_agentchat.teams import (
    DiGraphBuilder,
    GraphFlow,
    MagenticOneGroupChat,
    RoundRobinGroupChat,
    SelectorGroupChat,
    Swarm,
)

import flashagents_autogen
from flashagents_autogen import (
    FlashAgentsChatCompletionClient,
    FlashGraphFlow,
    FlashMagenticOneGroupChat,
    FlashMapReduce,
    FlashRoundRobinGroupChat,
    FlashSelectorGroupChat,
    FlashSwarm,
    TeamFixes,
    current_runtime,
    install,
    uninstall,
)
from flashagents_autogen.groupchat import AutoGenShapeError, FlashGroupChatRuntime
from flashagents_autogen.groupchat.hooks import follower_of
from flashagents_autogen.teams import _shapes
from flashagents_autogen.teams._team import FlashTeam
from flashagents_runtime import ScriptedEngine, ToolCall
from flashagents_runtime.scripted import Reply, ScriptItem


def client(*script: ScriptItem) -> FlashAgentsChatCompletionClient:
    return FlashAgentsChatCompletionClient(engine=ScriptedEngine(script))


def pair(model: FlashAgentsChatCompletionClient, **options: Any) -> list[Any]:
    """Two agents; the first one may hand off to the second."""
    return [
        AssistantAgent("a", model_client=model, model_client_stream=True, handoffs=["b"], **options),
        AssistantAgent("b", model_client=model, model_client_stream=True, **options),
    ]


def make_round_robin(cls: Any, model: Any, **options: Any) -> Any:
    return cls(pair(model), max_turns=3, **options)


def make_selector(cls: Any, model: Any, **options: Any) -> Any:
    return cls(pair(model), model, max_turns=3, **options)


def make_swarm(cls: Any, model: Any, **options: Any) -> Any:
    return cls(pair(model), termination_condition=MaxMessageTermination(6), **options)


def make_graph(cls: Any, model: Any, **options: Any) -> Any:
    a, b = pair(model)
    c = AssistantAgent("c", model_client=model, model_client_stream=True)
    builder = DiGraphBuilder().add_node(a).add_node(b).add_node(c)
    builder.add_edge(a, b).add_edge(a, c)
    return cls(builder.get_participants(), builder.build(), **options)


def make_magentic(cls: Any, model: Any, **options: Any) -> Any:
    return cls(pair(model), model, **options)


Make = Callable[..., Any]
KINDS: dict[str, tuple[Make, type[FlashTeam], type[Team]]] = {
    "round_robin": (make_round_robin, FlashRoundRobinGroupChat, RoundRobinGroupChat),
    "selector": (make_selector, FlashSelectorGroupChat, SelectorGroupChat),
    "swarm": (make_swarm, FlashSwarm, Swarm),
    "graph": (make_graph, FlashGraphFlow, GraphFlow),
    "magentic_one": (make_magentic, FlashMagenticOneGroupChat, MagenticOneGroupChat),
}


def unstarted() -> FlashAgentsChatCompletionClient:
    """A client that can be dumped: its engine starts with the first call, and none is made."""
    return FlashAgentsChatCompletionClient(temperature=0)


@pytest.mark.fetch  # an assistant asks its client for model_info, which is read from the default model
@pytest.mark.parametrize("kind", KINDS)
def test_a_team_survives_dump_and_load(kind: str) -> None:
    make, flash, _ = KINDS[kind]
    fixes = TeamFixes(callbacks=False)
    team = make(flash, unstarted(), overlap=False, fixes=fixes, name="crew", description="of two")
    dumped = team.dump_component()
    assert dumped.provider == f"flashagents_autogen.{flash.__name__}"
    loaded = Team.load_component(dumped)
    assert type(loaded) is flash
    assert (loaded.name, loaded.description) == ("crew", "of two")
    assert (loaded.overlap, loaded.fixes) == (False, fixes)
    assert loaded.dump_component() == dumped


@pytest.mark.fetch  # as above
def test_a_parallel_graph_survives_dump_and_load() -> None:
    team = make_graph(FlashGraphFlow, unstarted(), parallel=True, ordered_fan_in=True)
    loaded = Team.load_component(team.dump_component())
    assert isinstance(loaded, FlashGraphFlow)
    assert (loaded.parallel, loaded.ordered_fan_in) == (True, True)
    assert loaded.fan_in == team.fan_in


@pytest.mark.fetch  # as above
def test_a_map_reduce_survives_dump_and_load() -> None:
    model = unstarted()
    mappers: list[Any] = pair(model)
    reducer = AssistantAgent("c", model_client=model)
    team = FlashMapReduce(mappers, reducer, name="review", termination_condition=MaxMessageTermination(9))
    dumped = team.dump_component()
    loaded = Team.load_component(dumped)
    assert isinstance(loaded, FlashMapReduce) and loaded.parallel
    assert [m.name for m in loaded.mappers] == ["a", "b"] and loaded.reducer.name == "c"
    assert loaded.dump_component() == dumped


@pytest.mark.fetch  # as above
def test_a_nested_flash_team_survives_dump_and_load() -> None:
    inner = make_round_robin(FlashRoundRobinGroupChat, unstarted(), name="inner")
    team = FlashRoundRobinGroupChat([inner], max_turns=1)
    loaded: Any = Team.load_component(team.dump_component())
    assert type(loaded._participants[0]) is FlashRoundRobinGroupChat


@pytest.mark.fetch  # as above
def test_a_config_of_the_stock_team_can_be_loaded_by_ours() -> None:
    dumped = make_round_robin(RoundRobinGroupChat, unstarted()).dump_component()
    dumped.provider = "flashagents_autogen.FlashRoundRobinGroupChat"
    loaded = Team.load_component(dumped)
    assert isinstance(loaded, FlashRoundRobinGroupChat) and loaded.overlap and loaded.fixes == TeamFixes()


# ---- the same conversations as AutoGen's own teams


HANDOFF = Reply(tool_calls=[ToolCall(name="transfer_to_b", arguments="{}")])
LEDGER = (
    '{"is_request_satisfied":{"reason":"r","answer":%s},"is_progress_being_made":{"reason":"r","answer":true},'
    '"is_in_loop":{"reason":"r","answer":false},"instruction_or_question":{"reason":"r","answer":"do %s"},'
    '"next_speaker":{"reason":"r","answer":"%s"}}'
)
SCRIPTS: dict[str, list[ScriptItem]] = {
    "round_robin": ["one", "two", "three"],
    "selector": ["a", "one", "b", "two", "a", "three"],
    "swarm": [HANDOFF, "one", "two", "three", "four", "five"],
    "magentic_one": [
        *("facts", "plan", LEDGER % ("false", "this", "b"), "one", LEDGER % ("false", "that", "a"), "two"),
        *(LEDGER % ("true", "", "a"), "the end"),
    ],
}


def by_prompt(request: Any) -> str:
    """An answer that depends on the prompt alone, for branches that ask in no fixed order."""
    return f"answer to {len(request.input_ids)} bytes"


async def transcript(team: Any, tasks: list[str]) -> list[tuple[str, str, str]]:
    found: list[tuple[str, str, str]] = []
    for task in tasks:
        async for item in team.run_stream(task=task):
            if isinstance(item, TaskResult):
                found.append(("stop", "", str(item.stop_reason)))
            else:
                text = re.sub(r"(id|call_id)='\w+'", "id", item.to_text())  # new in each run
                found.append((type(item).__name__, item.source, text))
    return found


@pytest.mark.parametrize("kind", KINDS)
async def test_a_flash_team_says_what_autogens_own_says(kind: str) -> None:
    make, flash, stock = KINDS[kind]
    results = []
    for cls in (flash, stock):
        script = SCRIPTS.get(kind) or [by_prompt] * 3
        model = client(*script, *script)
        said = await transcript(make(cls, model), ["Plan a trip.", "And back."])
        prompts = [r.input_ids for r in model.engine.requests if r.sampling.max_new_tokens != 0]  # type: ignore[attr-defined]
        results.append((said, prompts))
    assert results[0][0] == results[1][0]
    assert results[0][1] == results[1][1]


@pytest.mark.parametrize("kind", ["round_robin", "selector", "swarm", "graph"])
async def test_state_goes_from_one_to_the_other(kind: str) -> None:
    make, flash, stock = KINDS[kind]
    script = SCRIPTS.get(kind) or [by_prompt] * 3
    for first, second in ((flash, stock), (stock, flash)):
        team = make(first, client(*script))
        await team.run(task="Plan a trip.")
        state = await team.save_state()
        other = make(second, client())
        await other.load_state(state)
        again = dict(await other.save_state())
        names = again["agent_states"]
        assert names.keys() == state["agent_states"].keys()
        for name, of_agent in names.items():
            common = of_agent.keys() & state["agent_states"][name].keys()
            assert {k: of_agent[k] for k in common} == {k: state["agent_states"][name][k] for k in common}


async def test_turns_are_measured() -> None:
    team = make_round_robin(FlashRoundRobinGroupChat, client("one", "two", "three"))
    await team.run(task="Go.")
    assert [turn.agent for turn in team.last_turns] == ["a", "b", "a"]
    assert all(turn.ended is not None and turn.began <= turn.ended for turn in team.last_turns)
    assert not any(turn.cut for turn in team.last_turns)


async def test_message_types_of_the_users_own_are_known() -> None:
    class Note(TextMessage):
        type: str = "Note"  # type: ignore[assignment]

    team = FlashRoundRobinGroupChat(pair(client("one")), max_turns=1, custom_message_types=[Note])
    result = await team.run(task=Note(content="Go.", source="user"))
    assert isinstance(result.messages[0], Note)


# ---- overlap


def test_a_team_attaches_itself_to_a_runtime() -> None:
    runtime = FlashGroupChatRuntime()
    team = make_round_robin(FlashRoundRobinGroupChat, client(), chat_runtime=runtime)
    assert follower_of(team) is runtime
    team.overlap = False
    assert follower_of(team) is not runtime


def test_without_overlap_a_team_is_not_followed_even_where_all_are() -> None:
    runtime = install()
    try:
        assert current_runtime() is runtime
        team = make_round_robin(FlashRoundRobinGroupChat, client(), overlap=False)
        follower = follower_of(team)
        assert follower is not runtime and follower is not None
        assert follower.begin_run(team) is None
        assert follower_of(make_round_robin(FlashRoundRobinGroupChat, client())) is runtime
    finally:
        uninstall()


# ---- AutoGen's shape


@pytest.mark.parametrize("shape", _shapes.SHAPES, ids=lambda shape: shape.symbol.rpartition(":")[2])
def test_every_internal_is_as_we_know_it(shape: Any) -> None:
    _shapes.check_shape(shape)


def test_an_internal_of_another_shape_is_named_with_the_release(monkeypatch: pytest.MonkeyPatch) -> None:
    def changed(self: Any, surprise: int) -> None: ...

    monkeypatch.setattr(GraphFlow, "run_stream", changed)
    from autogen_agentchat.teams import BaseGroupChat

    monkeypatch.setattr(BaseGroupChat, "run_stream", changed)
    with pytest.raises(AutoGenShapeError, match=r"BaseGroupChat.run_stream takes .*autogen-agentchat 0\.7"):
        for shape in _shapes.SHAPES:
            _shapes.check_shape(shape)


def test_our_managers_take_what_autogens_take() -> None:
    """`manager_arguments` names every parameter that is not common to all managers."""
    for make, flash, _ in KINDS.values():
        team = make(flash, client())
        stock = team._base_group_chat_manager_class
        own = set(inspect.signature(stock.__init__).parameters) - {"self", *_shapes._ALL_MANAGERS}
        assert set(team.manager_arguments()) == own


def test_the_teams_are_exported_and_imported_when_asked_for() -> None:
    for name in ("FlashGraphFlow", "FlashMapReduce", "FlashSwarm", "TeamFixes"):
        assert name in flashagents_autogen.__all__
        assert getattr(flashagents_autogen, name).__module__.startswith("flashagents_autogen.teams")
