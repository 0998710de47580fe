"""`FlashGraphFlow`: AutoGen's GraphFlow, also without its barrier between supersteps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from autogen_agentchat.messages import BaseChatMessage
from autogen_agentchat.teams import GraphFlow
from autogen_agentchat.teams._group_chat._events import GroupChatRequestPublish, GroupChatStart
from autogen_agentchat.teams._group_chat._graph._digraph_group_chat import GraphFlowConfig
from autogen_core import MessageContext, event

from ..groupchat import FlashGroupChatRuntime
from ._container import FlashContainer
from ._fan_in import FanIn, fan_in_of
from ._fixes import TeamFixes
from ._graph_manager import FlashGraphFlowManager
from ._run import CutRegion, TeamRun
from ._team import FlashTeam, FlashTeamConfig

if TYPE_CHECKING:
    from autogen_agentchat.base import ChatAgent


class FlashGraphContainer(FlashContainer):
    """Gives its agent what it hears in the order of `FlashGraphFlow.fan_in`."""

    _team: FlashGraphFlow

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._earlier = 0  # so many messages of the buffer are from runs before this one

    @event
    async def handle_start(self, message: GroupChatStart, ctx: MessageContext) -> None:  # type: ignore[override]
        """A run begins: what is still unheard from the one before is complete now."""
        fan_in = self._team.fan_in
        if fan_in is not None:
            heard, rest = fan_in.split(self._agent.name, self._message_buffer, self._earlier)
            late, _ = FanIn(fan_in.rank).split(self._agent.name, rest)
            self._message_buffer = heard + late
            self._earlier = len(self._message_buffer)
        await super().handle_start(message, ctx)  # type: ignore[call-arg]

    def hears(self, messages: Sequence[BaseChatMessage]) -> list[BaseChatMessage]:
        """Of what is buffered (and may follow it), what the agent is given when it is asked, in order.

        For forecasts: `messages` is the buffer, with what is about to be said after it.
        """
        fan_in = self._team.fan_in
        if fan_in is None:
            return list(messages)
        return fan_in.split(self._agent.name, messages, self._earlier)[0]

    async def _speak(
        self, run: TeamRun, region: CutRegion, message: GroupChatRequestPublish, ctx: MessageContext
    ) -> None:
        unheard: list[BaseChatMessage] = []
        fan_in = self._team.fan_in
        if fan_in is not None:
            self._message_buffer, unheard = fan_in.split(
                self._agent.name, self._message_buffer, self._earlier
            )
            self._earlier = 0
        try:
            await super()._speak(run, region, message, ctx)
        finally:
            self._message_buffer += unheard

    async def save_state(self) -> Mapping[str, Any]:
        """AutoGen's state, and how much of the buffer is from earlier runs."""
        return {**await super().save_state(), "earlier": self._earlier}

    async def load_state(self, state: Mapping[str, Any]) -> None:
        """Also takes a state of AutoGen's own container."""
        await super().load_state(state)
        self._earlier = int(state.get("earlier", len(self._message_buffer)))


class FlashGraphFlowConfig(GraphFlowConfig, FlashTeamConfig):
    """Configuration of a `FlashGraphFlow`."""

    parallel: bool = False
    ordered_fan_in: bool | None = None


class FlashGraphFlow(FlashTeam, GraphFlow):
    """AutoGen's `GraphFlow`, overlapping and mended; see `FlashTeam` for what it takes beyond.

    Args:
        participants: see `GraphFlow`.
        graph: see `GraphFlow`.
        parallel: a node starts when its own predecessors are done. AutoGen starts the next nodes when all
            that were started together are done. A node then hears the task and those from which it can
            be reached, and nobody else in this run. Each node that ends is a turn of `max_turns`; when the
            termination condition holds, branches at work end, and no other node is started.
        ordered_fan_in: a node hears its predecessors in the order of the graph, instead of the order in
            which they were done. None is the same as `parallel`.
        arguments: those of `GraphFlow` and `FlashTeam`.

    Example:
        >>> flow = FlashGraphFlow(builder.get_participants(), builder.build(), parallel=True)
    """

    component_config_schema = FlashGraphFlowConfig
    component_provider_override = "flashagents_autogen.FlashGraphFlow"
    manager_class = FlashGraphFlowManager
    container_class = FlashGraphContainer

    def __init__(
        self,
        participants: list[ChatAgent],
        graph: Any,
        *,
        parallel: bool = False,
        ordered_fan_in: bool | None = None,
        **arguments: Any,
    ) -> None:
        super().__init__(participants, graph, **arguments)
        self.parallel: bool = parallel
        self.ordered_fan_in: bool | None = ordered_fan_in

    def _prepare_flash(self, fixes: TeamFixes, chat_runtime: FlashGroupChatRuntime | None = None) -> None:
        super()._prepare_flash(fixes, chat_runtime)
        self.parallel = False
        self.ordered_fan_in = None

    @property
    def fan_in(self) -> FanIn | None:
        """The order in which nodes hear each other; None is the order of completion, AutoGen's."""
        ordered = self.parallel if self.ordered_fan_in is None else self.ordered_fan_in
        if not (ordered or self.parallel):
            return None
        return fan_in_of(self._graph, self._participant_names, only_ancestors=self.parallel)

    @property
    def fan_in_order(self) -> Callable[[str], int] | None:
        """The place of a node among those that speak at the same time; None is the order of completion."""
        fan_in = self.fan_in
        return None if fan_in is None else fan_in.rank.__getitem__

    def manager_arguments(self) -> dict[str, Any]:
        """See `FlashTeam.manager_arguments`; AutoGen's graph emits no team events."""
        return {"graph": self._graph}

    def _flash_fields(self) -> dict[str, Any]:
        return {
            **super()._flash_fields(),
            "parallel": self.parallel,
            "ordered_fan_in": self.ordered_fan_in,
        }


__all__ = ["FlashGraphContainer", "FlashGraphFlow"]
