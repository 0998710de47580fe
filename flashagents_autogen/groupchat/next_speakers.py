"""Who speaks next, as far as it can be known while somebody speaks. One function for each kind of team."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.base import Handoff
from autogen_agentchat.messages import BaseChatMessage, HandoffMessage
from autogen_agentchat.teams import GraphFlow, RoundRobinGroupChat, Swarm
from autogen_agentchat.teams._group_chat._graph._digraph_group_chat import DiGraphEdge, GraphFlowManager
from autogen_agentchat.teams._group_chat._magentic_one._magentic_one_orchestrator import (
    MagenticOneOrchestrator,
)
from autogen_agentchat.teams._group_chat._round_robin_group_chat import RoundRobinGroupChatManager
from autogen_agentchat.teams._group_chat._selector_group_chat import SelectorGroupChatManager
from autogen_agentchat.teams._group_chat._swarm_group_chat import SwarmGroupChatManager

from .members import speaking_agent
from .scope import RunScope, Said


@dataclass(frozen=True)
class Next:
    """A participant that may speak next.

    Attributes:
        name: its name.
        certain: it will, if the run goes on.
        known: what it will read is what has been said and is being said; False: more comes before.
    """

    name: str
    certain: bool = True
    known: bool = True


def next_speakers(scope: RunScope, seat: str, follows: Counter[tuple[str, str]], most: int) -> list[Next]:
    """Who may follow the speaker in `seat`, the likeliest first.

    Args:
        scope: the run.
        seat: who speaks.
        follows: how often who has followed whom in this team.
        most: of those that are not certain, at most so many.
    """
    manager = scope.manager
    if isinstance(manager, RoundRobinGroupChatManager):
        return [Next(manager._participant_names[manager._next_speaker_index])]
    if isinstance(manager, SwarmGroupChatManager):
        return _swarm(scope, seat)[: max(most, 1)]
    if isinstance(manager, SelectorGroupChatManager):
        return _selector(manager, seat, follows, most)
    if isinstance(manager, GraphFlowManager):
        found = _graph(manager, scope.said)
        guesses = [nxt for nxt in found if not nxt.certain]
        guesses.sort(key=lambda nxt: -follows[seat, nxt.name])
        return [nxt for nxt in found if nxt.certain] + guesses[:most]
    if isinstance(manager, MagenticOneOrchestrator):
        return []  # its manager speaks first
    return _by_frequency(manager, seat, follows, most)


def first_speakers(team: Any, manager: Any, task: Sequence[BaseChatMessage]) -> list[str]:
    """Who begins when a team is run with this task; empty where a model decides."""
    names: list[str] = team._participant_names
    if len(names) == 1:
        return names
    if isinstance(team, RoundRobinGroupChat):
        return [names[0 if manager is None else manager._next_speaker_index]]
    if isinstance(team, Swarm):
        for message in reversed(task):
            if isinstance(message, HandoffMessage) and message.target in names:
                return [message.target]
        return [names[0] if manager is None else manager._current_speaker]
    if isinstance(team, GraphFlow):
        if manager is not None:
            return list(manager._ready)
        return sorted(team._graph.get_start_nodes())
    return []


def _swarm(scope: RunScope, seat: str) -> list[Next]:
    """Those that the speaker can hand off to; what they will read begins with what has been said."""
    assert scope.team is not None
    participant = next((p for p in scope.team._participants if p.name == seat), None)
    agent = speaking_agent(participant)
    targets = [handoff.target for handoff in getattr(agent, "_handoffs", {}).values()]
    return [Next(name, certain=False, known=False) for name in targets if name != seat]


def _selector(
    manager: SelectorGroupChatManager, seat: str, follows: Counter[tuple[str, str]], most: int
) -> list[Next]:
    names = manager._participant_names
    if manager._selector_func is None and manager._candidate_func is None:
        others = names if manager._allow_repeated_speaker else [name for name in names if name != seat]
        if len(others) == 1:
            return [Next(others[0])]
    return _by_frequency(manager, seat, follows, most)


def _by_frequency(manager: Any, seat: str, follows: Counter[tuple[str, str]], most: int) -> list[Next]:
    names = [name for name in manager._participant_names if follows[seat, name] and name != seat]
    names.sort(key=lambda name: -follows[seat, name])
    return [Next(name, certain=False) for name in names[:most]]


def _graph(manager: GraphFlowManager, said: Sequence[Said]) -> list[Next]:
    """Nodes that will be ready once everybody who speaks now has spoken.

    A condition on the text is decided once the text is whole (a plain text is looked for, a function of
    the user's is not called); until then its node is a guess.
    """
    remaining = {target: dict(groups) for target, groups in manager._remaining.items()}
    unsure: set[str] = set()
    found: dict[str, bool] = dict.fromkeys(manager._ready, True)
    texts = {s.seat: s.upstream.text if s.upstream.ended else None for s in said}
    for speaker in manager._active_speakers:
        for edge in manager._edges.get(speaker, ()):
            holds = _holds(edge, texts.get(speaker))
            if holds is False:
                continue
            target, group = edge.target, edge.activation_group
            if holds is None:
                unsure.add(target)
            if manager._activation[target][group] == "all":
                remaining[target][group] -= 1
                if remaining[target][group] > 0:
                    continue
            found.setdefault(target, True)
    return [Next(name, certain=name not in unsure) for name in found]


def _holds(edge: DiGraphEdge, text: str | None) -> bool | None:
    if edge.condition_function is not None:
        return None
    if isinstance(edge.condition, str):
        return None if text is None else edge.condition in text
    return True


def handoff_in(agent: Any, names: Sequence[str]) -> Handoff | None:
    """The hand-off that an assistant makes when it calls tools of these names: the first one counts."""
    if not isinstance(agent, AssistantAgent):
        return None
    for name in names:
        handoff = agent._handoffs.get(name)
        if handoff is not None:
            return handoff if type(handoff) is Handoff else None
    return None


__all__ = ["Next", "first_speakers", "handoff_in", "next_speakers"]
