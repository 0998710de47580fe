"""The Flash teams in which one agent speaks at a time."""

from __future__ import annotations

from typing import Any, ClassVar

from autogen_agentchat.teams import MagenticOneGroupChat, RoundRobinGroupChat, SelectorGroupChat, Swarm
from autogen_agentchat.teams._group_chat._events import GroupChatStart
from autogen_agentchat.teams._group_chat._magentic_one._magentic_one_group_chat import (
    MagenticOneGroupChatConfig,
)
from autogen_agentchat.teams._group_chat._magentic_one._magentic_one_orchestrator import (
    MagenticOneOrchestrator,
)
from autogen_agentchat.teams._group_chat._round_robin_group_chat import (
    RoundRobinGroupChatConfig,
    RoundRobinGroupChatManager,
)
from autogen_agentchat.teams._group_chat._selector_group_chat import (
    SelectorGroupChatConfig,
    SelectorGroupChatManager,
)
from autogen_agentchat.teams._group_chat._swarm_group_chat import SwarmConfig, SwarmGroupChatManager
from autogen_core import CancellationToken, MessageContext, rpc

from ._manager import FlashManager
from ._team import FlashTeam, FlashTeamConfig

# ---- round robin


class FlashRoundRobinManager(FlashManager, RoundRobinGroupChatManager):
    """See `FlashManager`."""

    selection = ("_next_speaker_index",)


class FlashRoundRobinConfig(RoundRobinGroupChatConfig, FlashTeamConfig):
    """Configuration of a `FlashRoundRobinGroupChat`."""


class FlashRoundRobinGroupChat(FlashTeam, RoundRobinGroupChat):
    """AutoGen's `RoundRobinGroupChat`, overlapping and mended; see `FlashTeam` for what it takes beyond.

    Example:
        >>> team = FlashRoundRobinGroupChat([planner, critic], max_turns=4)
        >>> result = await team.run(task="Plan a trip.")
    """

    component_config_schema = FlashRoundRobinConfig
    component_provider_override = "flashagents_autogen.FlashRoundRobinGroupChat"
    manager_class = FlashRoundRobinManager


# ---- selector


class FlashSelectorManager(FlashManager, SelectorGroupChatManager):
    """See `FlashManager`."""

    selection = ("_previous_speaker",)


class FlashSelectorConfig(SelectorGroupChatConfig, FlashTeamConfig):
    """Configuration of a `FlashSelectorGroupChat`."""


class FlashSelectorGroupChat(FlashTeam, SelectorGroupChat):
    """AutoGen's `SelectorGroupChat`, overlapping and mended; see `FlashTeam` for what it takes beyond."""

    component_config_schema = FlashSelectorConfig
    component_provider_override = "flashagents_autogen.FlashSelectorGroupChat"
    manager_class = FlashSelectorManager

    def manager_arguments(self) -> dict[str, Any]:
        """See `FlashTeam.manager_arguments`."""
        return {
            **super().manager_arguments(),
            "model_client": self._model_client,
            "selector_prompt": self._selector_prompt,
            "allow_repeated_speaker": self._allow_repeated_speaker,
            "selector_func": self._selector_func,
            "max_selector_attempts": self._max_selector_attempts,
            "candidate_func": self._candidate_func,
            "model_context": self._model_context,
            "model_client_streaming": self._model_client_streaming,
        }


# ---- swarm


class FlashSwarmManager(FlashManager, SwarmGroupChatManager):
    """See `FlashManager`."""

    selection = ("_current_speaker",)


class FlashSwarmConfig(SwarmConfig, FlashTeamConfig):
    """Configuration of a `FlashSwarm`."""


class FlashSwarm(FlashTeam, Swarm):
    """AutoGen's `Swarm`, overlapping and mended; see `FlashTeam` for what it takes beyond."""

    component_config_schema = FlashSwarmConfig
    component_provider_override = "flashagents_autogen.FlashSwarm"
    manager_class = FlashSwarmManager


# ---- Magentic-One


class FlashMagenticOneOrchestrator(FlashManager, MagenticOneOrchestrator):  # type: ignore[misc]
    """See `FlashManager`. The orchestrator speaks to a model itself: that is cut off like an agent."""

    selection: ClassVar[tuple[str, ...]] = ()

    @rpc
    async def handle_start(self, message: GroupChatStart, ctx: MessageContext) -> None:  # type: ignore[override]
        """Plan the task and ask the first agent."""
        if self._team.fixes.turn_counters:
            self._n_rounds = 0  # AutoGen counts on from the task before
        run = self._team.current_run
        if run is None:
            await super().handle_start(message, ctx)  # type: ignore[call-arg]
            return
        with run.may_be_cut() as region:
            if not region.cut:
                await super().handle_start(message, ctx)  # type: ignore[call-arg]

    async def _orchestrate_step(self, cancellation_token: CancellationToken) -> None:
        run = self._team.current_run
        if run is None:
            await super()._orchestrate_step(cancellation_token)
            return
        with run.may_be_cut() as region:
            if not region.cut:
                await super()._orchestrate_step(cancellation_token)


class FlashMagenticOneConfig(MagenticOneGroupChatConfig, FlashTeamConfig):
    """Configuration of a `FlashMagenticOneGroupChat`."""


class FlashMagenticOneGroupChat(FlashTeam, MagenticOneGroupChat):
    """AutoGen's `MagenticOneGroupChat`, overlapping and mended; see `FlashTeam` for what it takes beyond."""

    component_config_schema = FlashMagenticOneConfig
    component_provider_override = "flashagents_autogen.FlashMagenticOneGroupChat"
    manager_class = FlashMagenticOneOrchestrator

    def manager_arguments(self) -> dict[str, Any]:
        """See `FlashTeam.manager_arguments`."""
        return {
            **super().manager_arguments(),
            "model_client": self._model_client,
            "max_stalls": self._max_stalls,
            "final_answer_prompt": self._final_answer_prompt,
        }


__all__ = [
    "FlashMagenticOneGroupChat",
    "FlashRoundRobinGroupChat",
    "FlashSelectorGroupChat",
    "FlashSwarm",
]
