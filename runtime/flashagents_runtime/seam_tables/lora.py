"""Role LoRAs that share one cache."""

from __future__ import annotations

from .seam import Seam

_LORA = "sglang.srt.lora"

LORA: tuple[Seam, ...] = (
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
            "tp_size",
            "attn_tp_size",
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
    Seam(
        f"{_LORA}.layers.QKVParallelLinearWithLoRA.slice_lora_b_weights",
        "with tensor parallelism, V's projection of this rank's heads",
        "(self, B)",
    ),
    Seam(
        "sglang.srt.layers.linear.QKVParallelLinear",
        "how many heads this rank computes",
        attributes=("num_heads", "num_kv_heads", "head_size"),
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
