"""The manager of a graph: start nodes in order, full state, and, where asked for, no superstep barrier."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from autogen_agentchat.messages import BaseAgentEvent, BaseChatMessage, StopMessage
from autogen_agentchat.teams._group_chat._base_group_chat_manager import BaseGroupChatManager
from autogen_agentchat.teams._group_chat._events import (
    GroupChatAgentResponse,
    GroupChatTeamResponse,
    SerializableException,
)
from autogen_agentchat.teams._group_chat._graph._digraph_group_chat import GraphFlowManager
from autogen_core import MessageContext, event

from ._manager import FlashManager, delta_of

if TYPE_CHECKING:
    from ._graph import FlashGraphFlow


class FlashGraphFlowManager(FlashManager, GraphFlowManager):
    """See `FlashManager`, and `FlashGraphFlow` for `parallel`."""

    _team: FlashGraphFlow

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._stop: StopMessage | None = None  # the run ends with it once all have answered
        self._order_start_nodes()

    def _order_start_nodes(self) -> None:
        # AutoGen keeps them in a set of strings: another order in each process.
        order = {name: i for i, name in enumerate(self._participant_names)}
        self._ready = deque(sorted(self._ready, key=lambda node: order.get(node, len(order))))

    def _reset_execution_state(self) -> None:
        super()._reset_execution_state()
        self._triggered_activation_groups = {}
        self._order_start_nodes()

    # ---- no barrier between supersteps

    @event
    async def handle_agent_response(  # type: ignore[override]
        self, message: GroupChatAgentResponse | GroupChatTeamResponse, ctx: MessageContext
    ) -> None:
        """Take a node's answer; with `parallel`, start at once whom it was the last one to wait for."""
        if not self._team.parallel:
            await super().handle_agent_response(message, ctx)  # type: ignore[call-arg]
            return
        try:
            delta = delta_of(message)
            await self.update_message_thread(delta)
            self._active_speakers.remove(message.name)
            if self._stop is not None:
                if not self._active_speakers:
                    stop, self._stop = self._stop, None
                    await self._signal_termination(stop)
            elif (
                not await self._apply_termination_condition(delta, increment_turn_count=True) and self._ready
            ):
                await self._transition_to_next_speakers(ctx.cancellation_token)
        except Exception as e:
            await self._signal_termination_with_error(SerializableException.from_exception(e))
            raise

    async def _apply_termination_condition(
        self, delta: Sequence[BaseAgentEvent | BaseChatMessage], increment_turn_count: bool = False
    ) -> bool:
        if self._team.parallel:
            self._said = list(delta)
            if self._active_speakers and not self._ready:
                # Nobody is ready, but somebody still works: the graph is not complete.
                return await BaseGroupChatManager._apply_termination_condition(
                    self, delta, increment_turn_count
                )
        return await super()._apply_termination_condition(delta, increment_turn_count)

    async def _signal_termination(self, message: StopMessage) -> None:
        if self._active_speakers:
            # Other branches are at work. Nobody else is started; what these say still belongs to the run.
            self._stop = message
        else:
            await super()._signal_termination(message)

    def take_back(self) -> None:
        """See `FlashManager.take_back`."""
        self._stop = None
        super().take_back()

    def _ask_again(self, speakers: list[str]) -> None:
        for speaker in reversed(speakers):
            if speaker not in self._ready:
                self._ready.appendleft(speaker)

    # ---- state

    async def save_state(self) -> Mapping[str, Any]:
        """AutoGen's state, and what it leaves out: nodes at work, and why nodes were started."""
        state = deepcopy(dict(await super().save_state()))
        if self._team.fixes.graph_state:
            state["ready"] = [*self._active_speakers, *self._ready]
            state["triggered_activation_groups"] = {
                node: sorted(groups) for node, groups in self._triggered_activation_groups.items() if groups
            }
        return state

    async def load_state(self, state: Mapping[str, Any]) -> None:
        """Also takes a state that AutoGen's own GraphFlow saved."""
        await super().load_state(deepcopy(dict(state)))
        if self._team.fixes.graph_state:
            triggered = state.get("triggered_activation_groups")
            if triggered is None:
                triggered = self._triggers_of_ready()
            self._triggered_activation_groups = {node: set(groups) for node, groups in triggered.items()}

    def _triggers_of_ready(self) -> dict[str, list[str]]:
        """What must have started the nodes that are ready, in a state that does not say so."""
        found: dict[str, list[str]] = {}
        for node in self._ready:
            for group, condition in self._activation.get(node, {}).items():
                any_of = condition == "any" and self._enqueued_any[node][group]
                if any_of or (condition == "all" and self._remaining[node][group] <= 0):
                    found.setdefault(node, []).append(group)
        return found


__all__ = ["FlashGraphFlowManager"]
