"""V's part of an adapter: taken out of what SGLang has loaded, and checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

SHAREABLE = frozenset({"q_proj", "v_proj", "gate_proj", "up_proj", "down_proj", "gate_up_proj"})
"""Modules that a member may target. K is shared as the backbone computes it, and o_proj with it."""

MAX_RANK = 64
"""The largest rank that the attention kernels take."""


class Misfit(ValueError):
    """An adapter does not fit the sharing group that names it; the message says why."""


@dataclass
class ValueLora:
    """V's part of one adapter.

    Attributes:
        down: for each layer `[r, hidden]`, as it was stored: `v_proj.lora_A`.
        up: for each layer `[kv_heads * head_dim, r]`: `v_proj.lora_B`.
        scaling: `lora_alpha / r`, to be folded into `up`.
    """

    down: list[Any]
    up: list[Any]
    scaling: float

    @property
    def rank(self) -> int:
        return int(self.down[0].shape[0])


def check_targets(targets: Any) -> None:
    """Raise Misfit unless `target_modules` of an adapter's configuration can be shared."""
    if isinstance(targets, str):
        raise Misfit(f"its target_modules are {targets!r}, which includes k_proj")
    outside = sorted(str(t).split(".")[-1] for t in targets if str(t).split(".")[-1] not in SHAREABLE)
    if outside:
        raise Misfit(f"it targets {', '.join(outside)}; members may target {', '.join(sorted(SHAREABLE))}")


def value_part(adapter: Any, q_size: int, kv_size: int) -> ValueLora:
    """V's part of an adapter, copied.

    SGLang keeps the three projections stacked: `lora_A` `[3 r, hidden]`, `lora_B` `[q + 2 kv, r]`.

    Args:
        adapter: `sglang.srt.lora.lora.LoRAAdapter`, its weights loaded to the CPU.
        q_size: rows of Q's part of `lora_B`.
        kv_size: rows of K's and of V's part.

    Raises:
        Misfit: it targets other modules than members may, or not V in every layer.
    """
    check_targets(adapter.config.target_modules)
    rank = int(adapter.config.r)
    if rank > MAX_RANK:
        raise Misfit(f"its rank is {rank}, the attention kernels take up to {MAX_RANK}")
    downs, ups = [], []
    for i, layer in enumerate(adapter.layers):
        a, b = _stacked(layer, "lora_A"), _stacked(layer, "lora_B")
        if a is None or b is None:
            raise Misfit(f"its layer {i} has no q_proj and v_proj; members need both in every layer")
        a, b = layer.weights[a], layer.weights[b]
        if int(a.shape[0]) != 3 * rank or tuple(b.shape) != (q_size + 2 * kv_size, rank):
            raise Misfit(f"the shapes of its layer {i} are not the model's: {list(a.shape)}, {list(b.shape)}")
        downs.append(a[2 * rank :].clone())
        ups.append(b[q_size + kv_size :].clone())
    return ValueLora(downs, ups, float(adapter.scaling))


def strip_value_part(adapter: Any, q_size: int, kv_size: int) -> None:
    """Let an adapter that `value_part` takes add nothing to V any more; its other parts stay."""
    for layer in adapter.layers:
        name = _stacked(layer, "lora_B")
        rest = layer.weights[name].clone()
        rest[q_size + kv_size :] = 0
        layer.weights[name] = rest


def _stacked(layer: Any, kind: str) -> str | None:
    return next((name for name in layer.weights if "qkv_proj" in name and kind in name), None)


def same_down(one: ValueLora, other: ValueLora) -> bool:
    """Whether two adapters share `v_proj.lora_A`, bit by bit."""
    import torch

    pairs = list(zip(one.down, other.down, strict=True))
    return all(a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs)


__all__ = ["MAX_RANK", "Misfit", "ValueLora", "check_targets", "same_down", "strip_value_part", "value_part"]
