"""Every AutoGen internal that the Flash teams touch, beyond those of the group-chat runtime."""

from __future__ import annotations

from ..groupchat.shapes import Shape, check_shape

_TEAMS = "autogen_agentchat.teams._group_chat."
_BASE = _TEAMS + "_base_group_chat:BaseGroupChat."
_MANAGER = _TEAMS + "_base_group_chat_manager:BaseGroupChatManager."
_CONTAINER = _TEAMS + "_chat_agent_container:ChatAgentContainer."
_GRAPH = _TEAMS + "_graph._digraph_group_chat:GraphFlowManager."
_MAGENTIC = _TEAMS + "_magentic_one._magentic_one_orchestrator:MagenticOneOrchestrator."
_TOKEN = "autogen_core._cancellation_token:CancellationToken."

_ALL_MANAGERS = (
    *("name", "group_topic_type", "output_topic_type", "participant_topic_types", "participant_names"),
    *("participant_descriptions", "output_message_queue", "termination_condition", "max_turns"),
    "message_factory",
)

SHAPES = (
    Shape(
        _BASE + "run_stream",
        "a run is stopped at once and repaired",
        parameters=("task", "cancellation_token", "output_task_messages"),
    ),
    Shape(
        _BASE + "__init__",
        "a run is stopped at once and repaired",
        sets=("_initialized", "_is_running", "_termination_condition", "_max_turns", "_emit_team_events"),
    ),
    Shape(_BASE + "_create_group_chat_manager_factory", "our managers", parameters=_ALL_MANAGERS),
    Shape(
        _BASE + "_create_participant_factory",
        "our containers",
        parameters=("parent_topic_type", "output_topic_type", "agent", "message_factory"),
    ),
    Shape(
        _MANAGER + "__init__",
        "speakers that were cut off are asked again; their turns do not count",
        parameters=(*_ALL_MANAGERS, "emit_team_events"),
        sets=("_active_speakers", "_current_turn", "_termination_condition"),
    ),
    Shape(
        _MANAGER + "_transition_to_next_speakers",
        "nobody is asked in a stopped run",
        parameters=("cancellation_token",),
    ),
    Shape(
        _MANAGER + "_apply_termination_condition",
        "termination sees every speaker's messages",
        parameters=("delta", "increment_turn_count"),
    ),
    Shape(_MANAGER + "handle_agent_response", "a speaker has answered", parameters=("message", "ctx")),
    Shape(_MANAGER + "update_message_thread", "a speaker has answered", parameters=("messages",)),
    Shape(_MANAGER + "_signal_termination_with_error", "errors end a run", parameters=("error",)),
    Shape(
        _CONTAINER + "__init__",
        "an agent speaks, and can be cut off",
        parameters=("parent_topic_type", "output_topic_type", "agent", "message_factory"),
        sets=("_agent", "_message_buffer", "_parent_topic_type"),
    ),
    Shape(_CONTAINER + "handle_request", "an agent speaks", parameters=("message", "ctx")),
    Shape(_CONTAINER + "handle_start", "a run begins", parameters=("message", "ctx")),
    Shape(_CONTAINER + "_log_message", "an agent's events", parameters=("message",)),
    Shape(
        _TEAMS + "_round_robin_group_chat:RoundRobinGroupChatManager.__init__",
        "our manager",
        parameters=(*_ALL_MANAGERS, "emit_team_events"),
        sets=("_next_speaker_index",),
    ),
    Shape(
        _TEAMS + "_selector_group_chat:SelectorGroupChatManager.__init__",
        "our manager",
        parameters=(
            *(*_ALL_MANAGERS, "model_client", "selector_prompt", "allow_repeated_speaker", "selector_func"),
            *("max_selector_attempts", "candidate_func", "emit_team_events", "model_context"),
            "model_client_streaming",
        ),
        sets=("_previous_speaker",),
    ),
    Shape(
        _TEAMS + "_swarm_group_chat:SwarmGroupChatManager.__init__",
        "our manager",
        parameters=(*_ALL_MANAGERS, "emit_team_events"),
        sets=("_current_speaker",),
    ),
    Shape(
        _MAGENTIC + "__init__",
        "our orchestrator",
        parameters=(
            *(*_ALL_MANAGERS[:6], "max_turns", "message_factory", "model_client", "max_stalls"),
            *("final_answer_prompt", "output_message_queue", "termination_condition", "emit_team_events"),
        ),
        sets=("_n_rounds",),
    ),
    Shape(_MAGENTIC + "handle_start", "the plan is made", parameters=("message", "ctx")),
    Shape(_MAGENTIC + "_orchestrate_step", "the ledger is made", parameters=("cancellation_token",)),
    Shape(
        _GRAPH + "__init__",
        "our manager",
        parameters=(*_ALL_MANAGERS, "graph"),
        sets=("_graph", "_ready", "_remaining", "_triggered_activation_groups"),
    ),
    Shape(_GRAPH + "_build_lookup_tables", "full state", sets=("_activation", "_enqueued_any")),
    Shape(
        _GRAPH + "_reset_execution_state",
        "start nodes in order",
        sets=("_ready", "_remaining", "_enqueued_any"),
    ),
    Shape(_TOKEN + "__init__", "one callback a run", sets=("_cancelled", "_lock", "_callbacks")),
    Shape(_TOKEN + "link_future", "futures are forgotten when they are done", parameters=("future",)),
)

# At import: `AutoGenShapeError` names the symbol and the installed release.
for _shape in SHAPES:
    check_shape(_shape)

__all__ = ["SHAPES"]
