"""The AROUND hooks: where SGLang's LoRA, pool and requests meet the `Sharing` of this process.

They are in place before a scheduler is built, because adapters are loaded and the pool is sized first.
Without a `Sharing` each calls the original and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import SeamError
from . import sharing
from .adapters import Misfit
from .config import configured
from .support import padding_refusal

Original = Callable[..., Any]


def around_init_lora_adapters(original: Original, self: Any, lora_paths: Any = None) -> Any:
    """A LoRA manager begins: so does the `Sharing` of this scheduler, if one is configured."""
    config = configured()
    sharing.current = None
    if config is not None:
        reason = padding_refusal(self.base_hf_config, self.tp_size)
        if reason is not None:
            raise SeamError(f"lora_sharing={config.scheme!r} cannot run: {reason}")
        sharing.current = sharing.Sharing(config)
        sharing.current.manager = self
    return original(self, lora_paths)


def around_init_memory_pool(original: Original, self: Any) -> Any:
    result = original(self)
    state = _of(self)
    if state is not None:
        state.open_tables()
    return result


def around_load(original: Original, self: Any, lora_ref: Any, *args: Any, **kwargs: Any) -> Any:
    """Load an adapter, from a folder or from tensors; one that does not fit its group is refused."""
    result = original(self, lora_ref, *args, **kwargs)
    state = _of(self)
    if state is None or not result.success:
        return result
    try:
        state.loaded(lora_ref)
    except Misfit as e:
        del self.configs[lora_ref.lora_id], self.loras[lora_ref.lora_id], self.lora_refs[lora_ref.lora_id]
        self.num_pinned_loras -= int(lora_ref.pinned)
        return self.create_lora_update_result(success=False, error_message=str(e))
    return result


def around_unload(original: Original, self: Any, lora_ref: Any) -> Any:
    result = original(self, lora_ref)
    state = _of(self)
    if state is not None and result.success:
        state.unloaded(lora_ref.lora_id)
    return result


def around_prepare_lora_batch(original: Original, self: Any, forward_batch: Any) -> Any:
    """Note which member each request of the batch is; a request keeps its row until it ends."""
    result = original(self, forward_batch)
    state = _of(self)
    if state is not None and state.backend is not None:
        state.backend.note_members(forward_batch)
    return result


def around_forward_batch_generation(original: Original, self: Any, batch: Any, *args: Any, **kw: Any) -> Any:
    """Hand on, from the scheduler's requests to the pass, how many held tokens each computes again."""
    state = sharing.current
    if state is not None and state.config.scheme == "base" and batch is not None:
        state.again = [vars(req).pop("flashagents_again", 0) for req in batch.reqs]
    return original(self, batch, *args, **kw)


def around_apply_lora(original: Original, self: Any, base_output: Any, x: Any) -> Any:
    """The rows of all tokens of the pass, also of those without an adapter, then SGLang's own LoRA."""
    state = sharing.current
    layer = getattr(self, "flashagents_layer", None)
    if state is not None and state.backend is not None and layer is not None:
        state.backend.write_rows(layer, x)
    return original(self, base_output, x)


def around_req_init(original: Original, self: Any, *args: Any, **kwargs: Any) -> None:
    """A member's request: its group's namespace takes the place of the adapter's id in its radix key."""
    original(self, *args, **kwargs)
    state = sharing.current
    group = state.group_of(self.lora_id) if state is not None else None
    if group is None:
        return
    own = self.extra_key or ""
    if self.lora_id is not None:
        own = own.removesuffix(self.lora_id)
    self.extra_key = own + group.namespace


def around_compute_cell_size(original: Original, self: Any, kvc: Any, num_layers: int) -> int:
    """A slot of the pool costs its K and V, and its rows."""
    import torch

    size: int = original(self, kvc, num_layers)
    state = sharing.current
    if state is not None:
        size += state.row_bytes(torch.empty((), dtype=kvc.kv_cache_dtype).element_size())
    return size


def _of(manager: Any) -> sharing.Sharing | None:
    state = sharing.current
    return state if state is not None and state.manager is manager else None


_MANAGER = "sglang.srt.lora.lora_manager.LoRAManager"

HOOKS: dict[str, Original] = {
    f"{_MANAGER}.init_lora_adapters": around_init_lora_adapters,
    f"{_MANAGER}.init_memory_pool": around_init_memory_pool,
    f"{_MANAGER}._load_lora_adapter": around_load,
    f"{_MANAGER}._load_lora_adapter_from_tensors": around_load,
    f"{_MANAGER}._unload_lora_adapter": around_unload,
    f"{_MANAGER}.prepare_lora_batch": around_prepare_lora_batch,
    "sglang.srt.managers.tp_worker.TpModelWorker.forward_batch_generation": around_forward_batch_generation,
    "sglang.srt.lora.layers.QKVParallelLinearWithLoRA.apply_lora": around_apply_lora,
    "sglang.srt.managers.schedule_batch.Req.__init__": around_req_init,
    "sglang.srt.model_executor.pool_configurator.DefaultPoolConfigurator._compute_cell_size": (
        around_compute_cell_size
    ),
}
