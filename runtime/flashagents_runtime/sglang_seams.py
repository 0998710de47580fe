"""Every SGLang internal that this project touches, in one table.

Nothing else in the runtime imports `sglang`. `SEAMS` lists each upstream symbol with the reason and the
shape we rely on; `check()` compares the table with the installed SGLang, and the plug-in refuses to
start where a row does not fit. docs/sglang-hooks.md is generated from the table
(``python -m flashagents_runtime.sglang_seams``), and tests/engine/test_seams.py checks both.

Importing this module imports no SGLang; `symbol()`, `check()` and `installed_version()` do.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import inspect
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from packaging.version import Version

from .errors import SeamError

__all__ = [
    "HOST_SEAMS",
    "LORA_SEAMS",
    "SCHEDULER_SEAMS",
    "SEAMS",
    "SGLANG_VERSION",
    "Seam",
    "SeamError",
    "check",
    "installed_version",
    "markdown",
    "require",
    "require_version",
    "symbol",
]

SGLANG_VERSION = "0.5.18"
IMPORT_FAILS = "SGLang is installed and cannot be imported"
"""Marks the line of `check` about an SGLang that a missing driver, say, keeps from being imported."""
"""The one release of SGLang whose internals the table describes."""


@dataclass(frozen=True)
class Seam:
    """One upstream symbol.

    `target` is its dotted path. `signature` is that of a function, without annotations, or None.
    `attributes` are those of a class or module that are read or written. `hooked` says that the plug-in
    wraps it (AROUND).
    """

    target: str
    reason: str
    signature: str | None = None
    attributes: tuple[str, ...] = ()
    hooked: bool = False


_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
_POLICY = "sglang.srt.managers.schedule_policy"
_ADDER = f"{_POLICY}.PrefillAdder"
_ALLOCATION = "sglang.srt.mem_cache.allocation"
_RADIX = "sglang.srt.mem_cache.radix_cache"
_REGISTRY = "sglang.srt.mem_cache.registry"
_HOOKS = "sglang.srt.plugins.hook_registry"

SCHEDULER_SEAMS: tuple[Seam, ...] = (
    # ---- the plug-in
    Seam(
        f"{_HOOKS}.HookRegistry",
        "wraps the hooked functions below, also where modules hold copies of them",
        attributes=("_apply_target", "_patched"),
    ),
    Seam(
        f"{_HOOKS}.HookRegistry._apply_target",
        "applies a hook on top of other plug-ins'",
        "(target, hooks)",
    ),
    Seam(f"{_HOOKS}.HookType", "the kind of every hook: AROUND", attributes=("AROUND",)),
    Seam(
        f"{_REGISTRY}.register_radix_cache_backend",
        "`--radix-cache-backend flashagents` is what switches the plug-in on",
        "(name, factory)",
    ),
    Seam(f"{_REGISTRY}.get_radix_cache_factory", "registers the backend once a process", "(name)"),
    Seam(
        f"{_REGISTRY}.default_radix_cache_factory",
        "the cache of configurations that ours does not serve",
        "(ctx)",
    ),
    Seam(
        f"{_REGISTRY}.TreeCacheBuildContext",
        "what the cache is built for: decides which features can run",
        attributes=(
            "server_args",
            "params",
            "is_hybrid_swa",
            "is_hybrid_ssm",
            "enable_hierarchical_cache",
            "disable_radix_cache",
            "tp_worker",
            "model_config",
            "is_dsa",
        ),
    ),
    Seam(
        f"{_SCHEDULER}.get_internal_state",
        "adds the `flashagents` entry: version, active hooks, features and figures",
        "(self, recv_req)",
        hooked=True,
    ),
    # ---- exact penalties
    Seam(
        "sglang.srt.managers.schedule_batch.ScheduleBatch.cumulate_penalty_output_tokens",
        "counts the same token at each decode step, whether or not another request came between",
        "(self)",
        hooked=True,
    ),
    Seam(
        "sglang.srt.managers.schedule_batch.ScheduleBatch",
        "the batch whose penalties are counted",
        attributes=("reqs", "device", "enable_overlap", "sampling_info"),
    ),
    Seam(
        "sglang.srt.sampling.penaltylib.orchestrator.BatchedPenalizerOrchestrator.cumulate_output_tokens",
        "takes the tokens that are counted",
        "(self, output_ids)",
    ),
    # ---- intra-turn prefix cache: admission and allocation
    Seam(
        f"{_SCHEDULER}._get_new_batch_prefill_raw",
        "an admission pass starts and ends; knows the waiting queue",
        "(self, prefill_delayer_single_pass, running_batch)",
        hooked=True,
    ),
    Seam(
        f"{_ADDER}.add_one_req",
        "publishes the request that it admitted",
        "(self, req, has_chunked_req, truncation_align_size)",
        hooked=True,
    ),
    Seam(f"{_ADDER}.add_chunked_req", "publishes the chunk that it admitted", "(self, req)", hooked=True),
    Seam(
        _ADDER,
        "what was admitted, and the budget that publishing gives back",
        attributes=(
            "can_run_list",
            "tree_cache",
            "token_to_kv_pool_allocator",
            "page_size",
            "rem_total_tokens",
            "rem_total_token_offset",
            "cur_rem_token_offset",
            "rem_chunk_tokens",
        ),
    ),
    Seam(
        f"{_ALLOCATION}.alloc_for_extend",
        "marks the batch whose slots are allocated",
        "(batch)",
        hooked=True,
    ),
    Seam(
        f"{_ALLOCATION}.alloc_token_slots",
        "hands out the published slots (page size 1)",
        "(tree_cache, num_tokens)",
        hooked=True,
    ),
    Seam(
        f"{_ALLOCATION}.alloc_paged_token_slots_extend",
        "hands out the published slots (page sizes above 1)",
        "(tree_cache, prefix_lens, prefix_lens_cpu, seq_lens, seq_lens_cpu, last_loc, extend_num_tokens,"
        " req_pool_indices=None, batch=None)",
        hooked=True,
    ),
    Seam(
        "sglang.srt.managers.scheduler_components.output_streamer.SchedulerOutputStreamer"
        ".get_cached_tokens_details",
        "adds `shared_in_turn` to a request's figures",
        "(self, req)",
        hooked=True,
    ),
    Seam(
        f"{_SCHEDULER}.on_idle",
        "checks the integrity of the cache, only under FLASHAGENTS_CHECK=1",
        "(self)",
        hooked=True,
    ),
    Seam(
        "sglang.srt.managers.schedule_batch.Req",
        "a request's prefix, path and lock in the tree, and what makes it private; its next decode step",
        attributes=(
            "decode_batch_idx",
            "prefix_indices",
            "extend_range",
            "full_untruncated_fill_ids",
            "origin_input_ids",
            "output_ids",
            "extra_key",
            "cache_salt",
            "last_node",
            "cache_protected_len",
            "req_pool_idx",
            "kv",
            "input_embeds",
            "positional_embed_overrides",
            "multimodal_inputs",
            "session",
            "retracted_stain",
            "priority",
        ),
    ),
    # ---- intra-turn prefix cache: the tree and the pool
    Seam(
        f"{_RADIX}.RadixCache",
        "the tree that is published to; subclassed",
        attributes=(
            "root_node",
            "page_size",
            "disable",
            "is_eagle",
            "eviction_policy",
            "evictable_leaves",
            "evictable_size",
            "protected_size",
            "protected_size_",
            "match_prefix",
            "req_to_token_pool",
            "token_to_kv_pool_allocator",
        ),
    ),
    Seam(
        f"{_RADIX}.RadixCache._record_store_event",
        "announces a published node",
        "(self, node, medium=None)",
    ),
    Seam(f"{_RADIX}.RadixCache._split_node", "marks both halves", "(self, key, child, split_len)"),
    Seam(
        f"{_RADIX}.RadixKey",
        "the published part as a key, in the request's namespace",
        "(token_ids, extra_key=None, is_bigram=False, limit=None, cache_salt=None)",
        attributes=("child_key",),
    ),
    Seam(
        f"{_RADIX}.TreeNode",
        "published nodes, which carry `published_in`; the integrity check",
        "(id=None, priority=0)",
        attributes=("children", "parent", "key", "value", "lock_ref", "id", "priority"),
    ),
    Seam(
        "sglang.srt.mem_cache.base_prefix_cache.MatchPrefixParams",
        "refreshes the prefixes of waiting requests before an eviction",
        attributes=("key",),
    ),
    Seam(
        "sglang.srt.mem_cache.common.evict_from_tree_cache",
        "makes room for a published part",
        "(tree_cache, num_tokens)",
    ),
    Seam(
        "sglang.srt.mem_cache.allocator.token.TokenToKVPoolAllocator",
        "allocates single slots; its free list, for the integrity check",
        attributes=("alloc", "available_size", "free_pages", "release_pages", "size", "get_kvcache"),
    ),
    Seam(
        "sglang.srt.mem_cache.allocator.paged.PagedTokenToKVPoolAllocator",
        "allocates whole pages; its free list, for the integrity check",
        attributes=("alloc", "available_size", "free_pages", "release_pages", "num_pages", "get_kvcache"),
    ),
    Seam("sglang.srt.mem_cache.memory_pool.MHATokenToKVPool", "the only pool that is published to"),
    # ---- prefill sessions: pins, budget, order (scheduling)
    Seam(
        f"{_SCHEDULER}.get_new_batch_prefill",
        "holds warm-ups back before a prefill pass, and cancels those that nobody waits for",
        "(self, running_batch)",
        hooked=True,
    ),
    Seam(
        f"{_SCHEDULER}.process_batch_result",
        "measures how long a pass of warm-ups lasted",
        "(self, batch, result)",
        hooked=True,
    ),
    Seam(
        f"{_SCHEDULER}.close_session",
        "ends the pin of a prefill session",
        "(self, recv_req)",
        hooked=True,
    ),
    Seam(
        f"{_POLICY}.SchedulePolicy.calc_priority",
        "real requests before warm-ups, under any policy; shortest job first",
        "(self, waiting_queue, running_batch=None)",
        hooked=True,
    ),
    Seam(
        "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager"
        ".flush_cache_after_weight_update",
        "new weights end all pins",
        "(self, recv_req)",
        hooked=True,
    ),
    Seam(
        f"{_SCHEDULER}.maybe_sleep_on_idle",
        "does not sleep until a message comes while warm-ups are held",
        "(self)",
        hooked=True,
    ),
    Seam(
        _SCHEDULER,
        "its queue and batches, before a prefill pass",
        attributes=(
            "waiting_queue",
            "running_batch",
            "chunked_req",
            "abort_request",
            "session_controller",
            "idle_sleeper",
        ),
    ),
    Seam(
        "sglang.srt.managers.schedule_batch.Req",
        "tells warm-ups from real requests; their expected work; whether and how they ended",
        attributes=(
            "session_id",
            "sampling_params",
            "num_matched_prefix_tokens",
            "finished",
            "finished_reason",
            "rid",
        ),
    ),
    Seam(
        "sglang.srt.sampling.sampling_params.SamplingParams",
        "`max_new_tokens=0` is a warm-up; a hint of the answer's length",
        attributes=("max_new_tokens", "custom_params"),
    ),
    Seam("sglang.srt.managers.schedule_batch.FINISH_ABORT", "a warm-up that was aborted is not pinned"),
    Seam("sglang.srt.managers.io_struct.AbortReq", "cancels a warm-up", attributes=("rid",)),
    Seam(
        f"{_POLICY}.match_prefix_for_req",
        "what the cache holds of a waiting request",
        "(tree_cache, req, token_ids=None, *, cow_mamba=False, include_req=False)",
    ),
    Seam(
        f"{_RADIX}.RadixCache",
        "evicts by the pins' order",
        attributes=("evict", "_delete_leaf", "reset", "cache_finished_req", "eviction_strategy"),
    ),
    Seam(
        "sglang.srt.mem_cache.allocator.paged",
        "its two Triton kernels are replaced on machines without CUDA (cpu_shims)",
        attributes=("alloc_extend_kernel", "alloc_decode_kernel", "alloc_extend_naive"),
    ),
)
"""What the plug-in touches; checked in each scheduler process before anything is wrapped."""

HOST_SEAMS: tuple[Seam, ...] = (
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
        "sglang.srt.managers.io_struct.UnloadLoRAAdapterReqInput",
        "unloads one",
        attributes=("lora_name",),
    ),
    Seam(
        "sglang.srt.utils.msgspec_utils.msgspec_to_builtins",
        "internal state in plain types for the wire",
    ),
)
"""What the host process and `flashagents serve` touch; some of it only a server imports."""

_LORA = "sglang.srt.lora"

LORA_SEAMS: tuple[Seam, ...] = (
    # ---- lora_sharing: adapters
    Seam(
        f"{_LORA}.lora_manager.LoRAManager",
        "the adapters that are loaded, and the layers that carry them",
        attributes=(
            "base_hf_config",
            "configs",
            "loras",
            "lora_refs",
            "lora_modules",
            "num_pinned_loras",
            "max_lora_rank",
            "dtype",
            "device",
            "create_lora_update_result",
        ),
    ),
    Seam(
        f"{_LORA}.lora_manager.LoRAManager.init_lora_adapters",
        "the state of a scheduler begins with its LoRA manager",
        "(self, lora_paths=None)",
        hooked=True,
    ),
    Seam(
        f"{_LORA}.lora_manager.LoRAManager.init_memory_pool",
        "the ranks are known: members' V projections go to the device",
        "(self)",
        hooked=True,
    ),
    Seam(
        f"{_LORA}.lora_manager.LoRAManager._load_lora_adapter",
        "checks a member of a sharing group, and takes V's part out of its CPU weights",
        "(self, lora_ref)",
        hooked=True,
    ),
    Seam(
        f"{_LORA}.lora_manager.LoRAManager._load_lora_adapter_from_tensors",
        "the same for adapters that are sent",
        "(self, lora_ref, tensors, config_dict, added_tokens_config=None)",
        hooked=True,
    ),
    Seam(
        f"{_LORA}.lora_manager.LoRAManager._unload_lora_adapter",
        "forgets a member and what it has cached",
        "(self, lora_ref)",
        hooked=True,
    ),
    Seam(
        f"{_LORA}.lora_manager.LoRAManager.prepare_lora_batch",
        "notes which member each request of a batch is",
        "(self, forward_batch)",
        hooked=True,
    ),
    Seam(
        "sglang.srt.managers.tp_worker.TpModelWorker.forward_batch_generation",
        "under `base`, tells the pass which of its tokens are in the tree already",
        "(self, batch, forward_batch=None, pp_proxy_tensors=None, is_verify=False,"
        " skip_attn_backend_init=None, *, capture_hidden_mode=None)",
        hooked=True,
    ),
    Seam(
        f"{_LORA}.lora.LoRAAdapter",
        "an adapter's CPU weights, Q, K and V stacked",
        attributes=("layers", "scaling", "config", "normalize_qkv_proj"),
    ),
    Seam(
        f"{_LORA}.layers.QKVParallelLinearWithLoRA.apply_lora",
        "writes the low-rank rows of the pass's tokens",
        "(self, base_output, x)",
        hooked=True,
    ),
    # ---- lora_sharing: requests, pool and attention
    Seam(
        "sglang.srt.managers.schedule_batch.Req.__init__",
        "a member's requests live in the namespace of its group",
        hooked=True,
    ),
    Seam(
        "sglang.srt.model_executor.pool_configurator.DefaultPoolConfigurator._compute_cell_size",
        "a slot of the pool costs its rows too",
        "(self, kvc, num_layers)",
        hooked=True,
    ),
    Seam(
        "sglang.srt.layers.attention.attention_registry",
        "the attention backend is registered under our name; on a CPU it stands in for torch_native",
        attributes=("ATTENTION_BACKENDS", "register_attention_backend"),
    ),
    Seam(
        "sglang.srt.layers.attention.attention_registry.register_attention_backend",
        "the same",
        "(name)",
    ),
    Seam("sglang.srt.layers.attention.attention_registry.ATTENTION_BACKENDS", "the same"),
    Seam(
        "sglang.srt.layers.attention.base_attn_backend.AttentionBackend",
        "subclassed: attention over V_base and the low-rank rows",
        attributes=(
            "init_forward_metadata",
            "init_forward_metadata_out_graph",
            "init_cuda_graph_state",
            "get_cuda_graph_seq_len_fill_value",
            "forward_extend",
            "forward_decode",
            "support_triton",
        ),
    ),
    Seam(
        "sglang.srt.server_args.add_attention_backend_choices",
        "lets a command line name our attention backend",
        "(choices)",
    ),
    Seam("sglang.srt.mem_cache.memory_pool.KVWriteLoc", "where a layer writes its K and V"),
    Seam(
        "sglang.kernels.ops.kvcache.kv_indices.create_flashinfer_kv_indices_triton",
        "page tables on a GPU",
    ),
)
"""What `lora_sharing` touches besides; checked in a scheduler process where it is configured."""

SEAMS = SCHEDULER_SEAMS + LORA_SEAMS + HOST_SEAMS


def installed_version() -> str | None:
    """The version of the installed SGLang distribution, or None."""
    try:
        return importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError:
        return None


def require_version() -> None:
    """Raise SeamError unless the installed SGLang is exactly `SGLANG_VERSION`."""
    version = installed_version()
    if version is None:
        raise SeamError(f"SGLang is not installed; this release needs sglang=={SGLANG_VERSION}")
    if Version(version) != Version(SGLANG_VERSION):
        raise SeamError(f"SGLang {version} is installed; this release extends exactly {SGLANG_VERSION}")


@functools.cache
def symbol(target: str) -> Any:
    """The upstream object at dotted path `target`, which must be a row of the table.

    Functions come back as they are at the first call: call through their module to see later hooks.
    Raises KeyError for a path that is not in the table, ImportError or AttributeError where it is gone.
    """
    if target not in _by_target():
        raise KeyError(f"{target} is not listed in SEAMS")
    return _resolve(target)


@functools.cache
def _by_target() -> dict[str, Seam]:
    return {seam.target: seam for seam in SEAMS}


def check(seams: Iterable[Seam] = SEAMS) -> list[str]:
    """Compare the table with the installed SGLang; one line for each misfit, none if all fit.

    Another release is a misfit in itself; the symbols that do not fit it are named as well.
    """
    lines: list[str] = []
    try:
        require_version()
    except SeamError as e:
        lines.append(str(e))
        if installed_version() is None:
            return lines
    broken: dict[str, list[str]] = {}
    for seam in seams:
        try:
            lines += _misfits(seam)
        except _ImportFailsError as e:  # one cause, such as a missing driver, takes many rows with it
            broken.setdefault(str(e), []).append(seam.target)
    for cause, targets in broken.items():
        more = f" and {len(targets) - 1} more" if len(targets) > 1 else ""
        lines.append(f"{targets[0]}{more}: {IMPORT_FAILS}: {cause}")
    return lines


def require(seams: Iterable[Seam] = SEAMS) -> None:
    """Raise SeamError if any row does not fit the installed SGLang."""
    lines = check(seams)
    if lines:
        raise SeamError("this SGLang does not fit:\n  " + "\n  ".join(lines))


class _ImportFailsError(ImportError):
    """A module is there and fails as it is imported."""


def _resolve(target: str) -> Any:
    """As `pkgutil.resolve_name`, which takes a module that fails to import for one that is not there."""
    first, *rest = target.split(".")
    found: Any = importlib.import_module(first)
    path = first
    for name in rest:
        path = f"{path}.{name}"
        if inspect.ismodule(found) and not hasattr(found, name):
            try:
                importlib.import_module(path)
            except ModuleNotFoundError as e:
                if e.name != path and not path.startswith(f"{e.name}."):
                    raise _ImportFailsError(f"{type(e).__name__}: {e}") from e
            except Exception as e:
                raise _ImportFailsError(f"{type(e).__name__}: {e}") from e
        found = getattr(found, name)
    return found


def _misfits(seam: Seam) -> Iterator[str]:
    try:
        obj = _resolve(seam.target)
    except _ImportFailsError:
        raise
    except (ImportError, AttributeError) as e:
        yield f"{seam.target}: not found ({e})"
        return
    if seam.signature is not None and (found := _signature(obj)) != seam.signature:
        yield f"{seam.target}: expected {seam.signature}, found {found}"
    known = _attribute_names(obj)
    for name in seam.attributes:
        if name not in known and not hasattr(obj, name):
            yield f"{seam.target}: has no attribute {name!r}"


def _signature(obj: Any) -> str:
    signature = inspect.signature(obj)  # follows __wrapped__, so hooks do not hide the original
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    return str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))


def _attribute_names(obj: Any) -> set[str]:
    """Names that the methods of a class mention: its instance attributes are among them."""
    names: set[str] = set()
    for cls in getattr(obj, "__mro__", ()):
        names.update(getattr(cls, "__annotations__", ()))
        for member in vars(cls).values():
            code = getattr(inspect.unwrap(member) if callable(member) else member, "__code__", None)
            if code is not None:
                names.update(code.co_names)
    return names


def markdown() -> str:
    """docs/sglang-hooks.md: the table in words."""
    lines = [
        "# SGLang seams",
        "",
        f"Every symbol of SGLang {SGLANG_VERSION} that this project touches, and why. Generated from",
        "`runtime/flashagents_runtime/sglang_seams.py` by `python -m flashagents_runtime.sglang_seams`;",
        "`tests/engine/test_seams.py` checks each row against the installed SGLang.",
        "",
        "Symbols marked *hooked* are wrapped by the plug-in, and only in a scheduler that was started with",
        "`--radix-cache-backend flashagents`. All others are called, read or subclassed.",
        "",
    ]
    for hooked, title in ((True, "Hooked"), (False, "Used")):
        lines += [f"## {title}", "", "| symbol | reason | shape |", "|---|---|---|"]
        for seam in SEAMS:
            if seam.hooked is hooked:
                shape = f"`{seam.signature}`" if seam.signature else ""
                if seam.attributes:
                    shape += (" " if shape else "") + ", ".join(f"`{name}`" for name in seam.attributes)
                lines.append(f"| `{seam.target}` | {seam.reason} | {shape} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    import sys

    sys.stdout.write(markdown())
