"""Which configurations the sharing schemes serve; what they do not is refused by name at the start."""

from __future__ import annotations

from typing import Any

_STOCK = (
    ("pp_size", 1),
    ("dp_size", 1),
    ("ep_size", 1),
    ("nnodes", 1),
    ("attn_cp_size", 1),
    ("dcp_size", 1),
    ("enable_dp_attention", False),
    ("enable_attn_tp_input_scattered", False),
    ("enable_prefill_cp", False),
    ("enable_two_batch_overlap", False),
    ("enable_pdmux", False),
    ("enable_hisparse", False),
    ("enable_hierarchical_cache", False),
    ("enable_memory_saver", False),
    ("dllm_algorithm", None),
    ("disaggregation_mode", "null"),
    ("speculative_algorithm", None),
)

_RANK_BY_RANK = ("enable_lora_overlap_loading", "lora_drain_wait_threshold")
"""With these SGLang admits requests by what a rank's own device or clock says."""


def arguments_refusal(args: Any) -> str | None:
    """Why adapters cannot share a cache under these ServerArgs; None if they can."""
    for name, stock in _STOCK:
        if getattr(args, name) != stock:
            return f"{name}={getattr(args, name)!r} has not been tried with it"
    for name in _RANK_BY_RANK if args.tp_size > 1 else ():
        value = getattr(args, name)
        if value:
            return f"{name}={value!r} with tp_size={args.tp_size}: its ranks would decide differently"
    return None


_PADDED = (
    ("num_attention_heads", "original_num_attention_heads"),
    ("num_key_value_heads", "original_total_num_kv_heads"),
    ("intermediate_size", "original_intermediate_size"),
)
"""What SGLang's CPU engine rounds up to a multiple of the ranks, and where it notes what was there before."""


def padding_refusal(config: Any, ranks: int) -> str | None:
    """Why adapters do not fit a model (its Hugging Face configuration) over `ranks`; None if they do.

    SGLang cuts an adapter as if it had the heads that the CPU engine has added to the model.
    """
    for name, before in _PADDED if ranks > 1 else ():
        now, was = getattr(config, name, None), getattr(config, before, None)
        if was is not None and was != now:
            return (
                f"with tp_size={ranks} SGLang's CPU engine pads the model's {name} from {was} to {now}, "
                "and adapters cannot follow"
            )
    return None


def attention_refusal(runner: Any) -> str | None:
    """Why our attention backend cannot serve a ModelRunner; None if it can."""
    model, pool = runner.model_config, runner.token_to_kv_pool
    if model.attention_arch.name != "MHA" or model.is_encoder_decoder or model.is_multimodal:
        return "only decoder models with plain MHA or GQA attention have been tried with it"
    if runner.sliding_window_size is not None or model.attention_chunk_size is not None:
        return "the model attends to a window"
    if type(pool).__name__ != "MHATokenToKVPool":
        return f"K and V are kept in {type(pool).__name__}, not in a plain MHA or GQA pool"
    if pool.post_capture_active:
        return "the KV pool grows after CUDA graphs are captured; set SGLANG_ENABLE_POST_CAPTURE_KV_SIZING=0"
    if pool.kv_cache_layout != "nhd":
        return f"KV layout {pool.kv_cache_layout!r}"
    if pool.get_key_buffer(0).dtype != runner.dtype:
        return f"K and V are kept as {pool.get_key_buffer(0).dtype}, the model computes in {runner.dtype}"
    if model.head_dim != model.v_head_dim or model.head_dim % 16 or model.head_dim > 256:
        return f"head sizes {model.head_dim} and {model.v_head_dim}"
    return arguments_refusal(runner.server_args)


__all__ = ["arguments_refusal", "attention_refusal", "padding_refusal"]
