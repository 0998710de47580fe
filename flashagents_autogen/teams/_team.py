"""What all Flash teams have in common; mixed in before a team of AutoGen's."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, ClassVar, Self

from autogen_agentchat.base import ChatAgent, TaskResult, Team, TerminationCondition
from autogen_agentchat.messages import BaseAgentEvent, BaseChatMessage, MessageFactory
from autogen_agentchat.teams import BaseGroupChat
from autogen_agentchat.teams._group_chat._events import GroupChatTermination
from autogen_core import CancellationToken
from pydantic import BaseModel

from ..groupchat import FlashGroupChatRuntime
from ..groupchat.runtime import check_runtime
from ._container import FlashContainer
from ._fixes import TeamFixes
from ._manager import FlashManager
from ._overlap import set_overlap
from ._run import AgentTurn, TeamRun
from ._token import linked

Item = BaseAgentEvent | BaseChatMessage | TaskResult


class FlashTeamConfig(BaseModel):
    """What a Flash team's configuration has beyond AutoGen's."""

    overlap: bool = True
    fixes: TeamFixes = TeamFixes()


class FlashTeam(BaseGroupChat):
    """A team of AutoGen's whose agents hand off by themselves, and which can be stopped and used again.

    Args (besides AutoGen's own):
        overlap: what an agent says is prefilled into the next one's prompt while he speaks. It changes
            when things are computed, never what is said.
        fixes: which of AutoGen's bugs are mended, see `TeamFixes`.
        chat_runtime: the `FlashGroupChatRuntime` to use; None is the one that is installed, or a new one.
            Not part of the configuration.

    Attributes:
        current_run: the run that is going on; None where none is.
        last_turns: the agents' turns of the last run, in the order of their beginnings.
    """

    manager_class: ClassVar[type[FlashManager]]
    container_class: ClassVar[type[FlashContainer]] = FlashContainer

    def __init__(
        self,
        *args: Any,
        overlap: bool = True,
        fixes: TeamFixes | None = None,
        chat_runtime: FlashGroupChatRuntime | None = None,
        **kwargs: Any,
    ) -> None:
        self._prepare_flash(fixes or TeamFixes(), chat_runtime)
        super().__init__(*args, **kwargs)
        self.overlap = overlap

    def _prepare_flash(self, fixes: TeamFixes, chat_runtime: FlashGroupChatRuntime | None = None) -> None:
        """All that a team has beyond AutoGen's own; `mend` calls it for one that exists already."""
        check_runtime(chat_runtime)
        self.fixes = fixes
        self._chat_runtime = chat_runtime
        self._overlap = False
        self._manager: FlashManager | None = None
        self.current_run: TeamRun | None = None
        self.last_turns: list[AgentTurn] = []

    @property
    def overlap(self) -> bool:
        """Whether the agents overlap, from the next run on; can be set."""
        return self._overlap

    @overlap.setter
    def overlap(self, overlap: bool) -> None:
        self._overlap = overlap
        set_overlap(self, overlap, self._chat_runtime)

    # ---- AutoGen's factories

    def manager_arguments(self) -> dict[str, Any]:
        """What the manager gets beyond what all managers get."""
        return {"emit_team_events": self._emit_team_events}

    def _create_group_chat_manager_factory(
        self,
        name: str,
        group_topic_type: str,
        output_topic_type: str,
        participant_topic_types: list[str],
        participant_names: list[str],
        participant_descriptions: list[str],
        output_message_queue: asyncio.Queue[BaseAgentEvent | BaseChatMessage | GroupChatTermination],
        termination_condition: TerminationCondition | None,
        max_turns: int | None,
        message_factory: MessageFactory,
    ) -> Callable[[], Any]:
        def factory() -> FlashManager:
            self._manager = self.manager_class(
                name=name,
                group_topic_type=group_topic_type,
                output_topic_type=output_topic_type,
                participant_topic_types=participant_topic_types,
                participant_names=participant_names,
                participant_descriptions=participant_descriptions,
                output_message_queue=output_message_queue,
                termination_condition=termination_condition,
                max_turns=max_turns,
                message_factory=message_factory,
                **self.manager_arguments(),
                flash_team=self,
            )
            return self._manager

        return factory

    def _create_participant_factory(
        self,
        parent_topic_type: str,
        output_topic_type: str,
        agent: ChatAgent | Team,
        message_factory: MessageFactory,
    ) -> Callable[[], FlashContainer]:
        return lambda: self.container_class(
            parent_topic_type, output_topic_type, agent, message_factory, flash_team=self
        )

    # ---- running

    async def run_stream(
        self,
        *,
        task: str | BaseChatMessage | Sequence[BaseChatMessage] | None = None,
        cancellation_token: CancellationToken | None = None,
        output_task_messages: bool = True,
    ) -> AsyncGenerator[Item, None]:
        """See `BaseGroupChat.run_stream`; left early in whatever way, the team stops at once.

        Raises:
            asyncio.CancelledError: the token, or the task that consumes the stream, was cancelled.
            ValueError: the team runs already.
        """
        if self._is_running or self.current_run is not None:
            raise ValueError("The team is already running, it cannot run again until it is stopped.")
        run = self.current_run = TeamRun()
        self.last_turns = run.turns
        ended = False
        try:
            token: CancellationToken = run.token
            watch, stop = cancellation_token, run.stop_soon
            if not self.fixes.stop_at_once:
                stop = run.token.cancel
                if cancellation_token is not None and not self.fixes.callbacks:
                    token, watch = cancellation_token, None
            with linked(watch, stop):
                stock = super().run_stream(
                    task=task, cancellation_token=token, output_task_messages=output_task_messages
                )
                items = run.through(stock) if self.fixes.stop_at_once else stock
                async with contextlib.aclosing(items):
                    async for item in items:
                        ended = ended or isinstance(item, TaskResult)
                        if watch is not None and self.fixes.stop_at_once and watch.is_cancelled():
                            run.stop()  # the next wait raises; what is buffered is not given out any more
                            continue
                        yield item
        finally:
            try:
                if not ended and self._manager is not None:
                    await self._repair(self._manager)
            finally:
                self.current_run = None

    async def _repair(self, manager: FlashManager) -> None:
        """After a run that was cut off or failed."""
        if self.fixes.usable_after_cancel:
            manager.take_back()
        if self.fixes.turn_counters:
            await manager.forget_turns()

    # ---- configuration

    def _to_config(self) -> Any:
        fields = dict(super()._to_config())
        return self.component_config_schema(**fields, **self._flash_fields())  # type: ignore[attr-defined]

    def _flash_fields(self) -> dict[str, Any]:
        """What `_to_config` adds and `_from_config` sets, by name."""
        return {"overlap": self.overlap, "fixes": self.fixes}

    @classmethod
    def _from_config(cls, config: Any) -> Self:
        team = super()._from_config(config)  # type: ignore[misc]
        for name in team._flash_fields():
            setattr(team, name, getattr(config, name))
        return team  # type: ignore[no-any-return]


__all__ = ["FlashTeam", "FlashTeamConfig"]
