"""The manager of a Flash team: AutoGen's own for that team, with its bugs mended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from autogen_agentchat.messages import BaseAgentEvent, BaseChatMessage
from autogen_agentchat.teams._group_chat._base_group_chat_manager import BaseGroupChatManager
from autogen_agentchat.teams._group_chat._events import (
    GroupChatAgentResponse,
    GroupChatTeamResponse,
    SerializableException,
)
from autogen_core import CancellationToken, MessageContext, event

if TYPE_CHECKING:
    from ._team import FlashTeam


def delta_of(
    message: GroupChatAgentResponse | GroupChatTeamResponse,
) -> list[BaseAgentEvent | BaseChatMessage]:
    """What a speaker adds to the conversation."""
    if isinstance(message, GroupChatTeamResponse):
        return list(message.result.messages)
    return [*(message.response.inner_messages or []), message.response.chat_message]


class FlashManager(BaseGroupChatManager):
    """To be mixed in before a manager of AutoGen's."""

    # Attributes in which the selection of a speaker is remembered; taken back when he was cut off.
    selection: ClassVar[tuple[str, ...]] = ()

    def __init__(self, *args: Any, flash_team: FlashTeam, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._team = flash_team
        self._before_selection: dict[str, Any] | None = None
        self._said: list[BaseAgentEvent | BaseChatMessage] = []

    @event
    async def handle_agent_response(  # type: ignore[override]
        self, message: GroupChatAgentResponse | GroupChatTeamResponse, ctx: MessageContext
    ) -> None:
        """Take a speaker's answer, and go on once all have answered who were asked together."""
        if self._active_speakers == [message.name]:
            self._before_selection = None
        self._said += delta_of(message)
        await super().handle_agent_response(message, ctx)  # type: ignore[call-arg]

    async def _apply_termination_condition(
        self, delta: Sequence[BaseAgentEvent | BaseChatMessage], increment_turn_count: bool = False
    ) -> bool:
        if increment_turn_count and self._team.fixes.termination_sees_all:
            delta = self._said
        self._said = []
        return await super()._apply_termination_condition(delta, increment_turn_count)

    async def _transition_to_next_speakers(self, cancellation_token: CancellationToken) -> None:
        run = self._team.current_run
        if run is None:
            await super()._transition_to_next_speakers(cancellation_token)
            return
        with run.may_be_cut() as region:
            if not region.cut:
                self._before_selection = {name: getattr(self, name) for name in self.selection}
                await super()._transition_to_next_speakers(cancellation_token)

    async def _signal_termination_with_error(self, error: SerializableException) -> None:
        await super()._signal_termination_with_error(error)
        # AutoGen shows the error when all are done who speak at the same time.
        if self._team.current_run is not None and self._team.fixes.stop_at_once:
            self._team.current_run.cut()

    # ---- after a run that did not end by itself

    def take_back(self) -> None:
        """Whoever was asked and has not answered is asked again by the next run."""
        unanswered, self._active_speakers = self._active_speakers, []
        self._said = []
        if self._before_selection is not None:
            for name, value in self._before_selection.items():
                setattr(self, name, value)
            self._before_selection = None
        self._ask_again(unanswered)

    def _ask_again(self, speakers: list[str]) -> None:
        """For managers that keep a queue of speakers."""

    async def forget_turns(self) -> None:
        """The turns of the run that was cut off do not count."""
        self._current_turn = 0
        if self._termination_condition is not None:
            await self._termination_condition.reset()


__all__ = ["FlashManager", "delta_of"]
