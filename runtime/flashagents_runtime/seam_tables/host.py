"""The host process and `flashagents serve`; some of it only a server imports."""

from __future__ import annotations

from .seam import Seam

HOST: tuple[Seam, ...] = (
    # ---- the host process
    Seam(
        "sglang.srt.entrypoints.engine",
        "without CUDA the children are forked, not spawned: this function sets the start method",
        attributes=("_set_envs_and_config",),
    ),
    Seam(
        "sglang.srt.entrypoints.engine.Engine",
        "the engine that a host process runs; subclassed to start its children through our functions",
        attributes=(
            "server_args_class",
            "run_scheduler_process_func",
            "run_detokenizer_process_func",
            "tokenizer_manager",
            "server_args",
            "loop",
            "_scheduler_init_result",
            "_serialize_tensors_per_rank",
        ),
    ),
    Seam(
        "sglang.srt.server_args.prepare_server_args",
        "`flashagents serve` reads SGLang's own arguments",
        "(argv)",
    ),
    Seam(
        "sglang.srt.entrypoints.http_server.launch_server",
        "`flashagents serve` runs SGLang's own server, its children through our functions",
    ),
    Seam(
        "sglang.srt.entrypoints.http_server.app",
        "`flashagents serve` puts its limits around SGLang's HTTP application",
    ),
    Seam(
        "sglang.srt.function_call.function_call_parser.FunctionCallParser",
        "finds tool calls in answers, and makes the grammars that enforce them",
        attributes=(
            "has_tool_call",
            "parse_non_stream",
            "parse_stream_chunk",
            "get_structure_constraint",
        ),
    ),
    Seam(
        "sglang.srt.function_call.utils.get_json_schema_constraint",
        "enforces calls of models whose own form has no grammar",
        "(tools, tool_choice, parallel_tool_calls=True)",
    ),
    Seam(
        "sglang.srt.entrypoints.openai.protocol.Tool",
        "the form in which the function-call parser takes tools",
    ),
    Seam(
        "sglang.srt.parser.reasoning_parser.ReasoningParser",
        "takes thoughts out of answers",
        attributes=("parse_stream_chunk", "parse_stream_end"),
    ),
    Seam(
        "sglang.srt.parser.template_detection.detect_reasoning_pattern",
        "whether the model thinks without being asked",
        "(template)",
    ),
    Seam(
        "sglang.srt.server_args.PortArgs",
        "the instance id names the engine's shared memory: ours carries the token of the run folder",
        attributes=("init_new", "instance_id"),
    ),
    Seam(
        "sglang.srt.managers.scheduler.run_scheduler_process",
        "called in the scheduler process, after the shims are in place",
    ),
    Seam(
        "sglang.srt.managers.detokenizer_manager.run_detokenizer_process",
        "called in the detokenizer process, after the shims are in place",
    ),
    Seam(
        "sglang.srt.managers.tokenizer_manager.TokenizerManager",
        "takes requests and aborts, answers calls",
        attributes=(
            "generate_request",
            "abort_request",
            "close_session",
            "get_internal_state",
            "get_loads",
            "flush_cache",
            "load_lora_adapter",
            "load_lora_adapter_from_tensors",
            "unload_lora_adapter",
            "model_config",
            "tokenizer",
        ),
    ),
    Seam(
        "sglang.srt.managers.io_struct.GenerateReqInput",
        "one request",
        attributes=(
            "rid",
            "input_ids",
            "sampling_params",
            "stream",
            "lora_path",
            "priority",
            "session_id",
            "extra_key",
            "cache_salt",
            "routed_dp_rank",
            "image_data",
            "require_reasoning",
            "return_logprob",
            "top_logprobs_num",
            "return_text_in_logprobs",
        ),
    ),
    Seam(
        "sglang.srt.managers.io_struct.CloseSessionReqInput",
        "tells the scheduler that a prefill session is over",
        attributes=("session_id",),
    ),
    Seam(
        "sglang.srt.managers.io_struct.LoadLoRAAdapterReqInput",
        "loads an adapter while the engine runs",
        attributes=("lora_name", "lora_path", "pinned"),
    ),
    Seam(
        "sglang.srt.managers.io_struct.LoadLoRAAdapterFromTensorsReqInput",
        "the same for tensors, and under `load_format=dummy`, where SGLang's loader reads no adapter",
        attributes=("lora_name", "config_dict", "serialized_named_tensors", "pinned"),
    ),
    Seam(
        "sglang.srt.managers.io_struct.UnloadLoRAAdapterReqInput",
        "unloads one",
        attributes=("lora_name",),
    ),
    Seam(
        "sglang.srt.utils.msgspec_utils.msgspec_to_builtins",
        "internal state in plain types for the wire",
    ),
)
