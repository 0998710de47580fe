"""`install()`: one line, idempotent, and undone without a trace. Shapes of AutoGen's internals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.teams import BaseGroupChat, RoundRobinGroupChat
from autogen_agentchat.teams._group_chat._selector_group_chat import SelectorGroupChatManager

import flashagents_autogen
from flashagents_autogen import FlashGroupChatRuntime, FlashRoundRobinGroupChat, GroupChatPolicy
from flashagents_autogen.groupchat import AutoGenShapeError, default_runtime
from flashagents_autogen.groupchat.shapes import SHAPES, Shape, check_shape, check_shapes
from helpers.overlap import EAGER, assistant, chunks, client_on, overlapping

LONG = "look at the old town, then walk on along the river, and write down what you see. " * 2


@pytest.fixture
def installed() -> Iterator[FlashGroupChatRuntime]:
    yield flashagents_autogen.install(FlashGroupChatRuntime(EAGER))
    flashagents_autogen.uninstall()


def pair(client: Any) -> RoundRobinGroupChat:
    return RoundRobinGroupChat([assistant("a", client), assistant("b", client)], max_turns=2)


async def test_every_team_overlaps_also_those_that_were_there_before() -> None:
    client = client_on(LONG, LONG)
    team = pair(client)
    runtime = flashagents_autogen.install(FlashGroupChatRuntime(EAGER))
    try:
        assert flashagents_autogen.current_runtime() is runtime is default_runtime()
        await team.run(task="Go.")
        assert runtime.turns[-1].right is True
    finally:
        flashagents_autogen.uninstall()
        await runtime.close()


async def test_after_uninstall_autogen_is_as_it_was() -> None:
    before = (vars(BaseGroupChat)["run_stream"], vars(AssistantAgent)["on_messages_stream"])
    for _ in range(2):
        first = flashagents_autogen.install()
        assert flashagents_autogen.install() is first
        flashagents_autogen.uninstall()
        flashagents_autogen.uninstall()
    assert (vars(BaseGroupChat)["run_stream"], vars(AssistantAgent)["on_messages_stream"]) == before
    assert flashagents_autogen.current_runtime() is None
    client = client_on(LONG, LONG)
    await pair(client).run(task="Go.")
    assert chunks(client.engine) == 0  # type: ignore[arg-type]


async def test_an_attached_team_stays_with_its_runtime(installed: FlashGroupChatRuntime) -> None:
    client = client_on(LONG, LONG)
    team = pair(client)
    async with overlapping(team) as own:
        await team.run(task="Go.")
    assert len(own.turns) == 2 and not installed.turns
    await installed.close()


async def test_a_detached_team_does_not_overlap() -> None:
    client = client_on(LONG, LONG)
    team = pair(client)
    async with overlapping(team) as runtime:
        runtime.detach(team)
        runtime.detach(team)
        await team.run(task="Go.")
        assert "run_stream" not in vars(team)
    assert not runtime.turns and chunks(client.engine) == 0  # type: ignore[arg-type]


def test_only_teams_are_attached() -> None:
    with pytest.raises(TypeError, match="link"):
        FlashGroupChatRuntime().attach("team")


@pytest.mark.parametrize("bad", [{"waste": 2}, {"share": 0}, {"candidates": -1}, {"keep": 0}])
def test_policies_are_checked(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        GroupChatPolicy(**bad)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.symbol.rpartition(":")[2])
def test_the_installed_autogen_has_the_shape(shape: Shape) -> None:
    check_shape(shape)


@pytest.mark.parametrize(
    ("shape", "problem"),
    [
        (Shape("autogen_agentchat.teams:NoTeam.run", "-"), "is missing"),
        (Shape("autogen_agentchat.nothing:Team", "-"), "is missing"),
        (Shape("autogen_agentchat.teams:BaseGroupChat.reset", "-", parameters=("hard",)), "takes"),
        (Shape("autogen_agentchat.teams:BaseGroupChat.__init__", "-", sets=("_gone",)), "does not set _gone"),
    ],
)
def test_another_shape_is_a_clear_error(shape: Shape, problem: str) -> None:
    with pytest.raises(AutoGenShapeError, match=problem) as caught:
        check_shape(shape)
    assert caught.value.symbol in str(caught.value) and caught.value.version in str(caught.value)


def test_a_release_that_has_lost_something_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(SelectorGroupChatManager, "construct_message_history")
    with pytest.raises(AutoGenShapeError, match=r"construct_message_history is missing in .* 0\.7"):
        check_shapes.__wrapped__()


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        (GroupChatPolicy(candidates=1), r"give FlashGroupChatRuntime\(policy\)"),
        (True, r"install\(mend=True\)"),
        ("runtime", "not 'runtime'"),
    ],
)
def test_what_is_no_runtime_changes_nothing(installed: FlashGroupChatRuntime, wrong: Any, hint: str) -> None:
    with pytest.raises(TypeError, match=hint):
        flashagents_autogen.install(wrong)
    assert flashagents_autogen.current_runtime() is installed
    with pytest.raises(TypeError, match="should be a FlashGroupChatRuntime"):
        FlashRoundRobinGroupChat([assistant("a", client_on())], chat_runtime=wrong)


def test_what_is_no_policy() -> None:
    with pytest.raises(TypeError, match="should be a GroupChatPolicy, not 'eager'"):
        FlashGroupChatRuntime("eager")  # type: ignore[arg-type]
