"""Tensor parallelism: the heads of one rank.

The rows `x A_v` are as wide as the adapter's rank and come of the hidden state, which all ranks hold: every
rank writes the same rows. K, V and `B_v` are cut by KV heads; where ranks outnumber them, several ranks keep
one head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from .adapters import ValueLora


@dataclass(frozen=True)
class Heads:
    """How many heads this rank computes.

    Attributes:
        q: query heads.
        kv: KV heads.
        size: numbers in a head.
    """

    q: int
    kv: int
    size: int

    @classmethod
    def of(cls, module: Any) -> Heads:
        """Those of a QKVParallelLinearWithLoRA."""
        base = module.base_layer
        return cls(int(base.num_heads), int(base.num_kv_heads), int(base.head_size))


def local(value: ValueLora, modules: Sequence[Any], q_size: int, kv_size: int) -> ValueLora:
    """`value` with `up` cut to this rank's KV heads, as SGLang cuts the stacked `lora_B`.

    Args:
        modules: the QKVParallelLinearWithLoRA of each layer.
        q_size: rows of Q's part of the stacked `lora_B`, of all ranks together.
        kv_size: rows of K's and of V's part.
    """
    ups = []
    for module, up in zip(modules, value.up, strict=True):
        stacked = up.new_zeros(q_size + 2 * kv_size, up.shape[1])
        stacked[q_size + kv_size :] = up
        heads = Heads.of(module)
        ups.append(module.slice_lora_b_weights(stacked)[-heads.kv * heads.size :])
    return replace(value, up=ups)


__all__ = ["Heads", "local"]
