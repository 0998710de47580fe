"""The place of one agent in a Flash team: AutoGen's container, which can be cut off and repaired."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from autogen_agentchat.base import Response, Team
from autogen_agentchat.teams._group_chat._chat_agent_container import ChatAgentContainer
from autogen_agentchat.teams._group_chat._events import (
    GroupChatAgentResponse,
    GroupChatError,
    GroupChatRequestPublish,
    SerializableException,
)
from autogen_core import DefaultTopicId, MessageContext, event, trace_invoke_agent_span

from ._run import CutRegion, TeamRun

if TYPE_CHECKING:
    from ._team import FlashTeam


class FlashContainer(ChatAgentContainer):
    """Asks its agent as AutoGen's container does; what the agent was told it is not told again."""

    def __init__(self, *args: Any, flash_team: FlashTeam, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._team = flash_team

    @event
    async def handle_request(self, message: GroupChatRequestPublish, ctx: MessageContext) -> None:  # type: ignore[override]
        """Have the agent speak; nothing at all where the run was stopped before."""
        run = self._team.current_run
        if run is None:  # asked from outside of a run of ours
            await super().handle_request(message, ctx)  # type: ignore[call-arg]
            return
        with run.may_be_cut() as region:
            if region.cut:
                return
            await self._speak(run, region, message, ctx)

    async def _speak(
        self, run: TeamRun, region: CutRegion, message: GroupChatRequestPublish, ctx: MessageContext
    ) -> None:
        with run.turn(self._agent.name) as turn:
            try:
                if isinstance(self._agent, Team):
                    await super().handle_request(message, ctx)  # type: ignore[call-arg]
                else:
                    await self._ask_agent(region, ctx)
            except asyncio.CancelledError as e:
                self._forget_told()
                turn.cut = True
                if run.cut_off or self._is_cancelled():
                    raise
                # It came from within the agent. AutoGen would wait for its answer for ever.
                await self._report(
                    RuntimeError(f"agent {self._agent.name} was cancelled from within: {e!r}"), ctx
                )
            except Exception:
                self._forget_told()
                raise

    async def _ask_agent(self, region: CutRegion, ctx: MessageContext) -> None:
        agent = self._agent
        assert not isinstance(agent, Team)
        with trace_invoke_agent_span(
            agent_name=agent.name, agent_description=agent.description, agent_id=str(self.id)
        ):
            try:
                response: Response | None = None
                async for item in agent.on_messages_stream(self._message_buffer, ctx.cancellation_token):
                    if isinstance(item, Response):
                        # It has spoken: from here on to the end it is passed on, also in a stopped run.
                        region.leave()
                        response = item
                        await self._log_message(item.chat_message)
                    else:
                        await self._log_message(item)
                if response is None:
                    raise RuntimeError(f"agent {agent.name} gave no Response from on_messages_stream")
            except Exception as e:
                await self._report(e, ctx)
                raise
        self._message_buffer.clear()
        await self.publish_message(
            GroupChatAgentResponse(response=response, name=agent.name),
            topic_id=DefaultTopicId(type=self._parent_topic_type),
            cancellation_token=ctx.cancellation_token,
        )

    async def _report(self, error: Exception, ctx: MessageContext) -> None:
        """Tell the manager, which ends the run with this error."""
        await self.publish_message(
            GroupChatError(error=SerializableException.from_exception(error)),
            topic_id=DefaultTopicId(type=self._parent_topic_type),
            cancellation_token=ctx.cancellation_token,
        )

    def _forget_told(self) -> None:
        # An agent takes what it is given into its context before it speaks; AutoGen would give it the
        # same messages again in the next run.
        if self._team.fixes.usable_after_cancel:
            self._message_buffer.clear()

    @staticmethod
    def _is_cancelled() -> bool:
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0


__all__ = ["FlashContainer"]
