"""Every AutoGen internal that the group-chat runtime touches, with a check that it is still there.

AutoGen's attributes are set in `__init__`, so a class does not have them; what a function's code names
(`co_names`) says whether it sets them, without building anything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from inspect import signature
from typing import Any

from flashagents_runtime import FlashAgentsError


class AutoGenShapeError(FlashAgentsError, RuntimeError):
    """An AutoGen symbol that we hook or read is missing or has another shape in the installed release.

    Attributes:
        symbol: its dotted name.
        package: the distribution that it is in.
        version: the installed release of it.
    """

    def __init__(self, symbol: str, package: str, problem: str) -> None:
        self.symbol = symbol
        self.package = package
        self.version = _version(package)
        super().__init__(
            f"{symbol} {problem} in {package} {self.version}; the group-chat runtime is made for 0.7.5 and "
            "later 0.7.x. Install such a release, or go on without install() and FlashGroupChatRuntime: "
            "everything works, but agents do not overlap"
        )


@dataclass(frozen=True)
class Shape:
    """One thing that has to be there.

    Attributes:
        symbol: "module:Class" or "module:Class.method".
        parameters: names that the method takes, in this order, after `self`.
        sets: attributes that the code of the method names.
        why: what we do with it.
    """

    symbol: str
    why: str
    parameters: tuple[str, ...] = ()
    sets: tuple[str, ...] = ()


_TEAMS = "autogen_agentchat.teams._group_chat."
_MAGENTIC = _TEAMS + "_magentic_one._magentic_one_orchestrator:MagenticOneOrchestrator"
SHAPES = (
    Shape(
        _TEAMS + "_base_group_chat:BaseGroupChat.run_stream",
        "a run begins and ends: sessions open and close",
        parameters=("task", "cancellation_token", "output_task_messages"),
    ),
    Shape(
        _TEAMS + "_base_group_chat:BaseGroupChat.__init__",
        "who is in a team, and where its agents live",
        sets=(
            "_participants",
            "_participant_names",
            "_participant_topic_types",
            "_group_chat_manager_topic_type",
            "_team_id",
            "_runtime",
        ),
    ),
    Shape(
        _TEAMS + "_base_group_chat_manager:BaseGroupChatManager.__init__",
        "whose turn it is",
        sets=(
            "_active_speakers",
            "_current_turn",
            "_max_turns",
            "_message_thread",
            "_name",
            "_participant_descriptions",
            "_participant_names",
            "_termination_condition",
        ),
    ),
    Shape(
        _TEAMS + "_chat_agent_container:ChatAgentContainer.__init__",
        "what an agent has not read yet",
        sets=("_agent", "_message_buffer"),
    ),
    Shape(
        _TEAMS + "_round_robin_group_chat:RoundRobinGroupChatManager.select_speaker",
        "the next speaker of a RoundRobinGroupChat",
        sets=("_next_speaker_index",),
    ),
    Shape(
        _TEAMS + "_selector_group_chat:SelectorGroupChatManager.__init__",
        "the selector's prompt",
        sets=(
            "_model_client",
            "_selector_prompt",
            "_model_context",
            "_previous_speaker",
            "_allow_repeated_speaker",
            "_selector_func",
            "_candidate_func",
        ),
    ),
    Shape(
        _TEAMS + "_selector_group_chat:SelectorGroupChatManager.construct_message_history",
        "the selector's prompt",
        parameters=("message_history",),
    ),
    Shape(
        _TEAMS + "_selector_group_chat:SelectorGroupChatManager._mentioned_agents",
        "whom the selector has named",
        parameters=("message_content", "agent_names"),
    ),
    Shape(
        _TEAMS + "_graph._digraph_group_chat:GraphFlowManager.__init__",
        "the next nodes of a GraphFlow",
        sets=("_graph", "_edges", "_remaining", "_ready"),
    ),
    Shape(
        _TEAMS + "_graph._digraph_group_chat:GraphFlowManager._build_lookup_tables",
        "the next nodes of a GraphFlow",
        sets=("_activation",),
    ),
    Shape(
        _TEAMS + "_graph._digraph_group_chat:GraphFlow.__init__",
        "the first nodes of a GraphFlow",
        sets=("_graph",),
    ),
    Shape(
        _TEAMS + "_swarm_group_chat:SwarmGroupChatManager.__init__",
        "who begins in a Swarm that goes on",
        sets=("_current_speaker",),
    ),
    Shape(
        "autogen_agentchat.conditions._terminations:MaxMessageTermination.__init__",
        "whether a turn is the last",
        sets=("_message_count", "_max_messages", "_include_agent_event"),
    ),
    Shape(
        "autogen_agentchat.base._termination:OrTerminationCondition.__init__",
        "whether a turn is the last",
        sets=("_conditions",),
    ),
    Shape(
        _MAGENTIC + "._get_final_answer_prompt", "the prompt of MagenticOne's answer", parameters=("task",)
    ),
    Shape(
        _MAGENTIC + "._get_compatible_context", "the prompt of MagenticOne's ledger", parameters=("messages",)
    ),
    Shape(
        _MAGENTIC + "._thread_to_context",
        "the prompt of MagenticOne's ledger",
    ),
    Shape(
        _TEAMS
        + "_magentic_one._magentic_one_orchestrator:MagenticOneOrchestrator._get_progress_ledger_prompt",
        "the prompt of MagenticOne's ledger",
        parameters=("task", "team", "names"),
    ),
    Shape(
        _MAGENTIC + ".__init__",
        "the prompt of MagenticOne's ledger",
        sets=("_model_client", "_task", "_team_description", "_n_rounds"),
    ),
    Shape(
        "autogen_agentchat.agents._assistant_agent:AssistantAgent.__init__",
        "what an agent's prompt is made of",
        sets=(
            "_model_client",
            "_system_messages",
            "_model_context",
            "_memory",
            "_workbench",
            "_handoff_tools",
            "_handoffs",
            "_output_content_type",
            "_reflect_on_tool_use",
            "_max_tool_iterations",
        ),
    ),
    Shape(
        "autogen_agentchat.agents._assistant_agent:AssistantAgent.on_messages_stream",
        "agents that are called by hand become known",
        parameters=("messages", "cancellation_token"),
    ),
    Shape(
        "autogen_agentchat.agents._society_of_mind_agent:SocietyOfMindAgent.__init__",
        "the prompt of a SocietyOfMindAgent",
        sets=("_team", "_model_client", "_instruction", "_response_prompt"),
    ),
    Shape(
        "autogen_agentchat.agents._message_filter_agent:MessageFilterAgent._apply_filter",
        "what a filtered agent will read",
        parameters=("messages",),
    ),
    Shape(
        "autogen_agentchat.agents._message_filter_agent:MessageFilterAgent.__init__",
        "whom a filter is for",
        sets=("_wrapped_agent",),
    ),
    Shape(
        "autogen_agentchat.agents._assistant_agent:AssistantAgent._call_llm",
        "agents that make their prompts in another way are not guessed",
        parameters=("model_client", "model_client_stream", "system_messages", "model_context"),
    ),
    Shape(
        "autogen_agentchat.agents._assistant_agent:AssistantAgent._add_messages_to_context",
        "agents that read in another way are not guessed",
        parameters=("model_context", "messages"),
    ),
    Shape(
        "autogen_core.tools._static_workbench:StaticWorkbench.__init__",
        "agents behind tools",
        sets=("_tools",),
    ),
    Shape(
        "autogen_agentchat.tools._task_runner_tool:TaskRunnerTool.__init__",
        "agents and teams behind tools",
        sets=("_task_runner", "_return_value_as_last_message"),
    ),
    Shape(
        "autogen_core._message_handler_context:MessageHandlerContext.agent_id",
        "which member of a team makes a call",
    ),
    Shape(
        "autogen_core._single_threaded_agent_runtime:SingleThreadedAgentRuntime.__init__",
        "the members of a team",
        sets=("_instantiated_agents",),
    ),
    Shape(
        "autogen_core.model_context._chat_completion_context:ChatCompletionContext.__init__",
        "what an agent has read",
        sets=("_messages",),
    ),
)


@cache
def check_shapes() -> None:
    """Check all of `SHAPES`, once a process.

    Raises:
        AutoGenShapeError: the first one that does not fit.
    """
    for shape in SHAPES:
        check_shape(shape)


def check_shape(shape: Shape) -> None:
    """Check one of them; raises AutoGenShapeError where it does not fit."""
    package = shape.symbol.partition(".")[0].replace("_", "-")
    name = shape.symbol.replace(":", ".")
    module, _, path = shape.symbol.partition(":")
    try:
        found: Any = import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError):
        raise AutoGenShapeError(name, package, "is missing") from None
    if shape.parameters:
        have = [p for p in _parameters(found) if p not in ("self", "cls")]
        if have[: len(shape.parameters)] != list(shape.parameters):
            raise AutoGenShapeError(name, package, f"takes {have} instead of {list(shape.parameters)}")
    for attribute in shape.sets:
        if attribute not in _names(found):
            raise AutoGenShapeError(name, package, f"does not set {attribute}")


def _parameters(function: Callable[..., Any]) -> list[str]:
    return list(signature(function).parameters)


def _names(function: Any) -> tuple[str, ...]:
    function = getattr(function, "__wrapped__", function)
    code = getattr(function, "__code__", None)
    return () if code is None else code.co_names


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "(not installed)"


__all__ = ["SHAPES", "AutoGenShapeError", "Shape", "check_shape", "check_shapes"]
