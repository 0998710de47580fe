"""The intra-turn prefix cache."""

from __future__ import annotations

from .seam import Seam

_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
_POLICY = "sglang.srt.managers.schedule_policy"
_ADDER = f"{_POLICY}.PrefillAdder"
_ALLOCATION = "sglang.srt.mem_cache.allocation"
_RADIX = "sglang.srt.mem_cache.radix_cache"

INTRA_TURN: tuple[Seam, ...] = (
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
)
