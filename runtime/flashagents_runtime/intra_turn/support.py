"""Which configurations the intra-turn prefix cache serves.

It is exact where each layer first writes K and V of the batch's new tokens to the pool and then attends,
reading every request's prefix from the pool: then a prefix may hold slots that another request of the
same batch is writing in the same forward pass. That was read in the attention backends below and is
checked by tests (outputs, with a negative control). flashinfer's ragged prefill attends first.

Everything else keeps SGLang's stock behaviour; docs/intra-turn-cache.md lists it.
"""

from __future__ import annotations

from typing import Any

from .radix_cache import cache_class

WRITES_BEFORE_IT_ATTENDS = {
    ("flashagents_runtime.lora_sharing.attention", "SharedAttention"): "flashagents",
    ("sglang.srt.layers.attention.flashattention_backend", "FlashAttentionBackend"): "fa3",
    ("sglang.srt.layers.attention.torch_native_backend", "TorchNativeAttnBackend"): "torch_native",
    ("sglang.srt.layers.attention.triton_backend", "TritonAttnBackend"): "triton",
}

_ALLOCATORS = ("TokenToKVPoolAllocator", "PagedTokenToKVPoolAllocator")


def refusal(ctx: Any, cache: Any) -> str | None:
    """Why nothing can be published for `cache`, built for `ctx` (TreeCacheBuildContext); None if it can."""
    return _of_cache(ctx, cache) or _of_parallelism(ctx.server_args) or _of_model(ctx)


def _of_cache(ctx: Any, cache: Any) -> str | None:
    if ctx.disable_radix_cache or cache.disable:
        return "the radix cache is disabled"
    if ctx.enable_hierarchical_cache:
        return "the hierarchical cache could back up a prefix before it is computed"
    if not isinstance(cache, cache_class()):
        return f"this model or configuration uses another cache ({type(cache).__name__})"
    if cache.is_eagle or ctx.server_args.speculative_algorithm is not None:
        return "speculative decoding"
    allocator = cache.token_to_kv_pool_allocator
    if type(allocator).__name__ not in _ALLOCATORS:
        return f"KV slots come from {type(allocator).__name__}"
    pool = allocator.get_kvcache()
    if type(pool).__name__ != "MHATokenToKVPool":
        return f"K and V are kept in {type(pool).__name__}, not in a plain MHA or GQA pool"
    return None


def _of_parallelism(args: Any) -> str | None:
    for name, stock in (
        ("pp_size", 1),
        ("attn_cp_size", 1),
        ("dcp_size", 1),
        ("enable_dp_attention", False),
        ("enable_prefill_cp", False),
        ("enable_two_batch_overlap", False),
        ("enable_pdmux", False),
        ("enable_hisparse", False),
        ("dllm_algorithm", None),
        ("disaggregation_mode", "null"),
    ):
        if getattr(args, name) != stock:
            return f"{name}={getattr(args, name)!r} has not been tried with it"
    return None


def _of_model(ctx: Any) -> str | None:
    model = ctx.model_config
    if not model.is_generation:
        return "not a generation model"
    if model.is_encoder_decoder:
        return "an encoder-decoder model"
    if model.is_multimodal:
        return "multimodal models have not been tried with it"
    if model.attention_arch.name != "MHA":
        return f"attention of kind {model.attention_arch.name}"
    if model.attention_chunk_size is not None:
        return "chunked local attention"
    runner = ctx.tp_worker.model_runner
    backend = getattr(runner.attn_backend, "prefill_backend", runner.attn_backend)
    name = WRITES_BEFORE_IT_ATTENDS.get((type(backend).__module__, type(backend).__name__))
    if name is None or getattr(backend, "fa_impl_ver", 3) != 3:
        return (
            f"attention backend {type(backend).__name__} may attend before it writes the new K and V; "
            f"{', '.join(sorted(WRITES_BEFORE_IT_ATTENDS.values()))} write first"
        )
    return None
