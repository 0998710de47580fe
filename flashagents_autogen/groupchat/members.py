"""Reads AutoGen's teams: who is in them, what they have not read yet, whose turn it is.

All of it is private to AutoGen (`shapes.SHAPES`) and none of it is changed here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from autogen_agentchat.agents import AssistantAgent, MessageFilterAgent, SocietyOfMindAgent
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.messages import BaseChatMessage
from autogen_agentchat.teams import BaseGroupChat
from autogen_agentchat.tools._task_runner_tool import TaskRunnerTool
from autogen_core import AgentId, MessageHandlerContext
from autogen_core.models import LLMMessage

from .hooks import original_of


def handler() -> AgentId | None:
    """The member of an agent runtime whose message is being handled here."""
    try:
        return MessageHandlerContext.agent_id()
    except RuntimeError:
        return None


def _instance(team: BaseGroupChat, topic_type: str) -> Any:
    instances = getattr(team._runtime, "_instantiated_agents", {})
    return instances.get(AgentId(topic_type, team._team_id))


def manager_of(team: BaseGroupChat) -> Any:
    """The team's group-chat manager; None before its first run."""
    return _instance(team, team._group_chat_manager_topic_type)


def topic_of(team: BaseGroupChat, name: str) -> str:
    """The topic type of a participant."""
    return f"{name}_{team._team_id}"


def unread(team: BaseGroupChat, name: str) -> list[BaseChatMessage]:
    """What has been said to a participant since it spoke last."""
    container = _instance(team, topic_of(team, name))
    return [] if container is None else list(container._message_buffer)


def heard(team: BaseGroupChat, name: str, messages: list[BaseChatMessage]) -> list[BaseChatMessage]:
    """What a participant is given of these messages, in order: all of it, but where its team sorts them."""
    hears = getattr(_instance(team, topic_of(team, name)), "hears", None)
    return list(hears(messages)) if callable(hears) else messages


def participant_of(team: BaseGroupChat, name: str) -> Any:
    """A participant by its name; None where there is none."""
    return next((p for p in team._participants if p.name == name), None)


def is_assistant(agent: Any) -> bool:
    """An `AssistantAgent` whose way of making prompts is AutoGen's own."""
    if not isinstance(agent, AssistantAgent):
        return False
    cls = type(agent)
    stock = original_of(AssistantAgent.on_messages_stream)
    return (
        original_of(cls.on_messages_stream) is stock
        and "on_messages_stream" not in vars(agent)
        and cls._call_llm.__func__ is AssistantAgent._call_llm.__func__  # type: ignore[attr-defined]
        and cls._add_messages_to_context is AssistantAgent._add_messages_to_context
    )


def speaking_agent(participant: Any) -> Any:
    """Who really speaks where this participant does: filters are looked through."""
    while isinstance(participant, MessageFilterAgent):
        participant = participant._wrapped_agent
    return participant


def task_runners(agent: Any) -> Iterator[TaskRunnerTool]:
    """Tools of an agent that run another agent or a team; none of an agent that does not let us look."""
    try:
        tools = [tool for workbench in agent._workbench for tool in getattr(workbench, "_tools", ())]
    except Exception:
        return
    yield from (tool for tool in tools if isinstance(tool, TaskRunnerTool))


def inner_team(agent: Any) -> BaseGroupChat | None:
    """The team inside a `SocietyOfMindAgent`, or the team that a participant is."""
    if isinstance(agent, BaseGroupChat):
        return agent
    if isinstance(agent, SocietyOfMindAgent) and isinstance(agent._team, BaseGroupChat):
        return agent._team
    return None


def agents_within(member: Any, seen: set[int] | None = None) -> Iterator[Any]:
    """All agents that can speak where this team or agent runs, those behind tools too; each once."""
    seen = set() if seen is None else seen
    member = speaking_agent(member)
    if id(member) in seen:
        return
    seen.add(id(member))
    team = inner_team(member)
    if not isinstance(member, BaseGroupChat):
        yield member
    if team is not None:
        seen.add(id(team))
        for participant in team._participants:
            yield from agents_within(participant, seen)
    for tool in task_runners(member):
        yield from agents_within(tool._task_runner, seen)


def teams_within(member: Any) -> Iterator[BaseGroupChat]:
    """The teams inside a team or agent, itself included, outer ones first."""
    found: dict[int, BaseGroupChat] = {}
    waiting, seen = [member], set()
    while waiting:
        member = speaking_agent(waiting.pop(0))
        if id(member) in seen:
            continue
        seen.add(id(member))
        team = inner_team(member)
        if team is not None:
            found.setdefault(id(team), team)
            waiting += team._participants
        waiting += [tool._task_runner for tool in task_runners(member)]
    yield from found.values()


def speaks_through(agent: AssistantAgent, messages: Sequence[LLMMessage], *, same: bool = True) -> bool:
    """Whether a call with these messages is this agent's: it passes on the very objects that it holds.

    Args:
        agent: who may be calling.
        messages: of the call.
        same: compare the last message by identity; False also takes an equal one, for agents whose
            images were taken out.
    """
    system, history = agent._system_messages, agent._model_context._messages
    if len(messages) < len(system) or any(a is not b for a, b in zip(system, messages, strict=False)):
        return False
    if not history or len(messages) == len(system):
        return bool(system) and not history and len(messages) == len(system)
    return messages[-1] is history[-1] or (not same and messages[-1] == history[-1])


def ends_after_this_turn(manager: Any) -> bool:
    """Whether the run is known to end once the agent that speaks now has spoken one message."""
    limit = None if hasattr(manager, "_n_rounds") else manager._max_turns  # MagenticOne counts its own rounds
    if limit is not None and manager._current_turn + 1 >= limit:
        return True
    return _ends(manager._termination_condition)


def _ends(condition: Any) -> bool:
    if type(condition) is MaxMessageTermination and not condition._include_agent_event:
        return bool(condition._message_count + 1 >= condition._max_messages)
    if type(condition).__name__ == "OrTerminationCondition":
        return any(_ends(part) for part in getattr(condition, "_conditions", ()))
    return False


__all__ = [
    "agents_within",
    "ends_after_this_turn",
    "handler",
    "heard",
    "inner_team",
    "is_assistant",
    "manager_of",
    "participant_of",
    "speaking_agent",
    "speaks_through",
    "task_runners",
    "teams_within",
    "topic_of",
    "unread",
]
