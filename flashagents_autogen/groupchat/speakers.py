"""Finds out whose request a call is. AutoGen does not say; two things tell.

An assistant passes its own message objects on, so they name it, in a team or out of one, also behind a
tool. Everybody else is known by the message handler that the call is made in.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, ref

from autogen_agentchat.agents import AssistantAgent, SocietyOfMindAgent
from autogen_agentchat.teams import BaseGroupChat

from .._side_channel import ClientCall
from .members import (
    agents_within,
    handler,
    is_assistant,
    participant_of,
    speaking_agent,
    speaks_through,
    task_runners,
    topic_of,
)
from .scope import RunScope, Seat, Speaker


def _nothing() -> None:
    """As a reference to something that is gone."""


class Speakers:
    """Everybody who may call, as far as we have heard of them.

    Agents are held weakly; seats only while their run lasts.
    """

    def __init__(self) -> None:
        self._agents: WeakKeyDictionary[Any, WeakSet[AssistantAgent]] = WeakKeyDictionary()  # by client
        # The owner of a tool and the tool, by the agent behind it.
        self._owners: WeakKeyDictionary[Any, tuple[ref[AssistantAgent], ref[Any]]] = WeakKeyDictionary()
        self._seats: dict[int, Seat] = {}  # by id of the speaking agent
        self._topics: dict[str, Seat] = {}  # by topic type; the manager's has no name

    def note(self, agent: Any) -> None:
        """An agent has been heard of; also those behind its tools."""
        if isinstance(agent, AssistantAgent):
            known = self._agents.setdefault(agent._model_client, WeakSet())
            if agent in known:
                return
            known.add(agent)
            for tool in task_runners(agent):
                inner = tool._task_runner
                self._owners[inner] = (ref(agent), ref(tool))
                for other in agents_within(inner):
                    self.note(other)

    def enter(self, scope: RunScope) -> None:
        """A run begins."""
        team = scope.team
        assert team is not None
        self._topics[team._group_chat_manager_topic_type] = Seat(scope, "")
        for participant in team._participants:
            seat = Seat(scope, participant.name)
            self._topics[topic_of(team, participant.name)] = seat
            self._seats[id(speaking_agent(participant))] = seat
            for agent in agents_within(participant):
                self.note(agent)

    def leave(self, scope: RunScope) -> None:
        """It has ended."""
        self._topics = {topic: seat for topic, seat in self._topics.items() if seat.scope is not scope}
        self._seats = {key: seat for key, seat in self._seats.items() if seat.scope is not scope}

    def seat_of(self, agent: Any) -> Seat | None:
        """Where an agent speaks in a run."""
        return self._seats.get(id(agent))

    def seat_here(self) -> Seat | None:
        """The seat whose message is being handled here."""
        here = handler()
        return None if here is None else self._topics.get(here.type)

    def owner_of(self, agent: Any) -> tuple[AssistantAgent, Any] | None:
        """The agent that has this one behind a tool, and the tool."""
        owner, tool = (known() for known in self._owners.get(agent, (_nothing, _nothing)))
        return None if owner is None or tool is None else (owner, tool)

    def who(self, call: ClientCall, free: RunScope) -> Speaker | None:
        """Whose call it is; None where nobody can say."""
        agent = self._assistant(call)
        if agent is not None:
            seat = self.seat_of(agent)
            if seat is not None:
                return Speaker(agent, agent.name, "member", seat.scope, seat.name)
            if self.owner_of(agent) is not None:
                here = self.seat_here()
                return Speaker(agent, agent.name, "tool", free if here is None else here.scope)
            return Speaker(agent, agent.name, "free", free)
        here = self.seat_here()
        if here is None:
            return None
        team = here.scope.team
        assert team is not None
        if not here.name:
            manager = here.scope.manager
            if getattr(manager, "_model_client", None) is not call.client:
                return None
            return Speaker(manager, manager._name, "manager", here.scope)
        return self._by_seat(call, team, here)

    def _by_seat(self, call: ClientCall, team: BaseGroupChat, seat: Seat) -> Speaker | None:
        agent = speaking_agent(participant_of(team, seat.name))
        if getattr(agent, "_model_client", None) is not call.client:
            return None
        if isinstance(agent, SocietyOfMindAgent) or not isinstance(agent, AssistantAgent):
            return Speaker(agent, agent.name, "member", seat.scope, seat.name)
        # An assistant whose context makes new messages; but not an agent behind one of its tools.
        behind = any(True for _ in task_runners(agent))
        return None if behind else Speaker(agent, agent.name, "member", seat.scope, seat.name)

    def _assistant(self, call: ClientCall) -> AssistantAgent | None:
        known: Iterable[AssistantAgent] = self._agents.get(call.client, ())
        mine = [agent for agent in known if agent._model_client is call.client and is_assistant(agent)]
        for same in (True, False):
            found = [agent for agent in mine if speaks_through(agent, call.messages, same=same)]
            if len(found) == 1:
                return found[0]
            if found:
                return None
        return None


__all__ = ["Speakers"]
