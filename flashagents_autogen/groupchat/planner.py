"""From who speaks to what the next ones will read: the guesses of one moment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from autogen_agentchat.agents import MessageFilterAgent, SocietyOfMindAgent
from autogen_agentchat.messages import BaseChatMessage, HandoffMessage, TextMessage
from autogen_agentchat.teams import BaseGroupChat
from autogen_agentchat.teams._group_chat._graph._digraph_group_chat import GraphFlowManager
from autogen_agentchat.teams._group_chat._magentic_one._magentic_one_orchestrator import (
    MagenticOneOrchestrator,
)
from autogen_agentchat.teams._group_chat._selector_group_chat import SelectorGroupChatManager
from autogen_agentchat.teams._group_chat._swarm_group_chat import SwarmGroupChatManager
from autogen_core import FunctionCall
from autogen_core.models import AssistantMessage, FunctionExecutionResult, FunctionExecutionResultMessage

from flashagents_runtime.chat import ToolDefinition
from flashagents_runtime.handoff import slot_marker

from . import contexts
from .guess import Guess, Upstream, filled, guess_agent, side_of
from .manager_prompts import guess_final_answer, guess_ledger, guess_selector, guess_society
from .members import (
    agents_within,
    ends_after_this_turn,
    heard,
    inner_team,
    is_assistant,
    manager_of,
    participant_of,
    task_runners,
    unread,
)
from .next_speakers import Next, first_speakers, next_speakers
from .policy import GroupChatPolicy
from .scope import RunScope, Said, Speaker

_DEEPEST = 6  # teams within teams
_MOST_TEAMS = 256  # whose speakers are remembered


class Planner:
    """Makes guesses. Reads AutoGen's objects, and changes none.

    Attributes:
        follows: how often who has followed whom, by the kind of a team and its members' names: an application
            that builds its team anew for each task goes on learning.
        tools: the tools that an agent has offered last.
    """

    def __init__(self, policy: GroupChatPolicy) -> None:
        self._policy = policy
        self.follows: dict[tuple[str, ...], Counter[tuple[str, str]]] = {}
        self.tools: WeakKeyDictionary[Any, list[ToolDefinition]] = WeakKeyDictionary()

    def followed(self, scope: RunScope, name: str) -> None:
        """A participant's turn begins: it has followed the last one."""
        if scope.team is not None and scope.last is not None and scope.last != name:
            if len(self.follows) >= _MOST_TEAMS and _kind(scope.team) not in self.follows:
                del self.follows[next(iter(self.follows))]
            self.follows.setdefault(_kind(scope.team), Counter())[scope.last, name] += 1
        scope.last = name

    def _follows(self, scope: RunScope) -> Counter[tuple[str, str]]:
        return Counter() if scope.team is None else self.follows.get(_kind(scope.team), Counter())

    # While somebody speaks.

    def while_speaking(self, speaker: Speaker, upstream: Upstream) -> list[Guess]:
        """Who will read what is being said, and what else they will be asked."""
        if speaker.role == "member":
            message = upstream.message(0)
            return list(self._after(speaker.scope, speaker.seat, [message], [upstream]))
        if speaker.role == "manager" and isinstance(speaker.key, SelectorGroupChatManager):
            return list(self._candidates(speaker.scope))
        return []

    def after_handoff(self, speaker: Speaker, message: HandoffMessage) -> list[Guess]:
        """Who will read a message that is known already."""
        scope, names = speaker.scope, speaker.scope.manager._participant_names
        if isinstance(scope.manager, SwarmGroupChatManager):
            if message.target not in names or message.target == speaker.seat:
                return []
            return list(self._participant(scope, Next(message.target), [message], []))
        return list(self._after(scope, speaker.seat, [message], []))

    def instructed(self, scope: RunScope, name: str, upstream: Upstream) -> list[Guess]:
        """Whom MagenticOne's manager speaks to."""
        if name not in scope.manager._participant_names:
            return []
        return list(self._participant(scope, Next(name), [upstream.message(0)], [upstream]))

    def satisfied(self, scope: RunScope) -> list[Guess]:
        """MagenticOne's ledger says that nothing is left to do."""
        guess = guess_final_answer(scope.manager)
        return [] if guess is None else [guess]

    def _after(
        self, scope: RunScope, seat: str, tail: Sequence[BaseChatMessage], sources: Sequence[Upstream]
    ) -> Iterator[Guess]:
        manager, society = scope.manager, scope.society
        if manager is None or _depth(scope) > _DEEPEST:
            return
        if isinstance(manager, GraphFlowManager) and sources:
            sources = [said.upstream for said in in_order(scope)]
            tail = [source.message(slot) for slot, source in enumerate(sources)]
        if society is not None:
            guess = guess_society(society, [*self._inner(scope), *tail], sources)
            if guess is not None:
                yield guess
        nexts = next_speakers(scope, seat, self._follows(scope), self._policy.candidates)
        over = ends_after_this_turn(manager)
        if over or (isinstance(manager, GraphFlowManager) and not nexts):
            if society is None and scope.outer is not None and scope.host is scope.team:
                outer = scope.outer
                yield from self._after(outer.scope, outer.name, [*self._inner(scope), *tail], sources)
            return
        if isinstance(manager, SelectorGroupChatManager) and sources and len(tail) == 1:
            guess = guess_selector(manager, seat, tail[0], sources[0])
            if guess is not None:
                yield guess
        if isinstance(manager, MagenticOneOrchestrator) and sources and len(tail) == 1:
            assert isinstance(tail[0], TextMessage)
            guess = guess_ledger(manager, tail[0], sources[0])
            if guess is not None:
                yield guess
        for nxt in nexts:
            if nxt.name != seat:
                yield from self._participant(scope, nxt, tail, sources)

    def _candidates(self, scope: RunScope) -> Iterator[Guess]:
        """While the selector thinks: those that it has often selected, with all that they will read."""
        follows = self._follows(scope)
        for nxt in next_speakers(scope, scope.last or "", follows, self._policy.candidates):
            yield from self._participant(scope, nxt, [], [])

    def _participant(
        self,
        scope: RunScope,
        nxt: Next,
        tail: Sequence[BaseChatMessage],
        sources: Sequence[Upstream],
    ) -> Iterator[Guess]:
        """What a participant will be asked once it has read its unread messages and the tail."""
        assert scope.team is not None
        manager = scope.manager
        if nxt.name in getattr(manager, "_active_speakers", ()):
            return  # it speaks just now, and has read more than its container says
        waiting = unread(scope.team, nxt.name)
        if not nxt.known:
            tail, sources = [], []
        said = {(m.source, m.to_model_text()) for m in waiting if isinstance(m, TextMessage)}
        kept = [s for s in sources if not (s.ended and (s.source, s.text) in said)]
        if len(kept) < len(sources):  # some of it has arrived there already
            gaps = {slot_marker(slot) for slot in range(len(sources))}
            others = [m for m in tail if not (isinstance(m, TextMessage) and m.content in gaps)]
            tail = [*others, *(s.message(slot) for slot, s in enumerate(kept))]
            sources = kept
        participant = participant_of(scope.team, nxt.name)
        reads, sources = _renumbered(heard(scope.team, nxt.name, [*waiting, *tail]), sources)
        yield from self.entries(participant, reads, sources, known=nxt.known, certain=nxt.certain)

    def entries(
        self,
        member: Any,
        incoming: Sequence[BaseChatMessage],
        sources: Sequence[Upstream] = (),
        *,
        known: bool = True,
        certain: bool = True,
        depth: int = 0,
    ) -> Iterator[Guess]:
        """The first request, or requests, that are made where this member reads `incoming`."""
        while isinstance(member, MessageFilterAgent):
            incoming = member._apply_filter(list(incoming))
            member = member._wrapped_agent
        if is_assistant(member):
            guess = guess_agent(
                member,
                incoming,
                sources,
                seen_tools=self.tools.get(member),
                known=known,
                certain=certain,
            )
            if guess is not None:
                yield guess
            return
        team = inner_team(member)
        if team is None or depth >= _DEEPEST:
            return
        if isinstance(member, SocietyOfMindAgent):
            if not contexts.is_known(member._model_context):
                return
            before = contexts.messages_of(contexts.grow(member._model_context, []))
            if before:
                note = HandoffMessage(
                    content="relevant previous messages", source=member.name, target="", context=before
                )
                incoming = [note, *incoming]
        for name in first_speakers(team, manager_of(team), incoming):
            inner = [*unread(team, name), *incoming]
            yield from self.entries(
                participant_of(team, name),
                inner,
                sources,
                known=known,
                certain=certain,
                depth=depth + 1,
            )

    def _inner(self, scope: RunScope) -> list[BaseChatMessage]:
        """What the team has said in this run so far, without its task."""
        thread = scope.manager._message_thread[scope.first or 0 :]
        return [message for message in thread if isinstance(message, BaseChatMessage)]

    # At the start of a run.

    def heads(self, scope: RunScope, but: Sequence[Any]) -> Iterator[Guess]:
        """The beginnings of the prompts of all that may speak in this run."""
        team = scope.team
        assert team is not None
        skip = {id(member) for member in but}
        for participant in team._participants:
            waiting = unread(team, participant.name)
            for agent in agents_within(participant):
                if id(agent) not in skip and is_assistant(agent):
                    skip.add(id(agent))
                    direct = inner_team(participant) is None and agent is not None
                    guess = guess_agent(
                        agent, waiting if direct else [], seen_tools=self.tools.get(agent), known=False
                    )
                    if guess is not None:
                        yield guess

    # Agents behind tools.

    def task_given(self, owner: Any, name: str, upstream: Upstream) -> list[Guess]:
        """Whoever is behind this tool of the owner is asked what upstream says."""
        tool = next((tool for tool in task_runners(owner) if tool.name == name), None)
        if tool is None:
            return []
        return list(self.entries(tool._task_runner, [upstream.message(0)], [upstream]))

    def tool_result(self, owner: Any, tool: Any, inner: Any, upstream: Upstream) -> list[Guess]:
        """What the owner of a tool will be asked when the agent behind the tool has spoken."""
        side = side_of(owner._model_client)
        history = owner._model_context._messages
        if side is None or not contexts.is_known(owner._model_context) or not history:
            return []
        last = history[-1]
        if not isinstance(last, AssistantMessage) or not isinstance(last.content, list):
            return []
        calls = [call for call in last.content if isinstance(call, FunctionCall)]
        if len(calls) != 1 or calls[0].name != tool.name:
            return []
        again = owner._max_tool_iterations > 1
        if not again and not owner._reflect_on_tool_use:
            return []
        said = slot_marker(0)
        if not tool._return_value_as_last_message:
            said = f"{inner.name}: {said}"
        result = FunctionExecutionResult(content=said, name=tool.name, call_id=calls[0].id, is_error=False)
        grown = contexts.grow(owner._model_context, [FunctionExecutionResultMessage(content=[result])])
        schemas = contexts.list_tools(owner._workbench) if again else []
        if schemas is None:
            return []
        tools = side.tools([*schemas, *owner._handoff_tools]) if again else []
        chat = side.chat([*owner._system_messages, *contexts.messages_of(grown)])
        return [Guess(owner, owner.name, side, filled(chat), tools, (upstream,))]


def _renumbered(
    messages: Sequence[BaseChatMessage], sources: Sequence[Upstream]
) -> tuple[list[BaseChatMessage], list[Upstream]]:
    """The messages with their gaps numbered as they come, and the sources of those gaps."""
    gaps = {slot_marker(slot): source for slot, source in enumerate(sources)}
    out: list[BaseChatMessage] = []
    kept: list[Upstream] = []
    for message in messages:
        source = gaps.get(message.content) if isinstance(message, TextMessage) else None
        if source is not None:
            message = source.message(len(kept))
            kept.append(source)
        out.append(message)
    return out, kept


def in_order(scope: RunScope) -> list[Said]:
    """What is said at once, in the order in which others will read it.

    AutoGen's teams publish messages as they are finished: those that have ended come first. Of those that
    have not, the ones that began first are expected first.
    """
    team_order = getattr(scope.team, "fan_in_order", None)
    if callable(team_order):  # a team of ours that orders by source
        return sorted(scope.said, key=lambda said: team_order(said.seat))
    ended = [said for said in scope.said if said.upstream.ended]
    ended.sort(key=lambda said: said.upstream.ended_at)
    return ended + [said for said in scope.said if not said.upstream.ended]


def _kind(team: BaseGroupChat) -> tuple[str, ...]:
    return (type(team).__name__, *team._participant_names)


def _depth(scope: RunScope) -> int:
    return 1 if scope.outer is None else 1 + _depth(scope.outer.scope)


__all__ = ["Planner", "in_order"]
