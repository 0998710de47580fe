"""Random adapters in PEFT's format, for any model folder with a Llama or Qwen2 configuration."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file


@dataclass(frozen=True)
class Shape:
    """What an adapter must know of its model."""

    layers: int
    hidden: int
    q: int
    kv: int

    @classmethod
    def of(cls, model: Path) -> Shape:
        c = json.loads((model / "config.json").read_text())
        head = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
        return cls(
            c["num_hidden_layers"],
            c["hidden_size"],
            head * c["num_attention_heads"],
            head * c["num_key_value_heads"],
        )


def seed_of(*words: object) -> int:
    """The same number for the same words, in any process."""
    return int(hashlib.sha256(repr(words).encode()).hexdigest()[:8], 16)


def make_adapter(
    folder: Path,
    model: Path,
    name: str,
    *,
    rank: int = 8,
    alpha: int = 16,
    shared_a: str | None = None,
    targets: tuple[str, ...] = ("q_proj", "v_proj"),
    size_a: float = 0.2,
    size_b: float = 0.2,
    version: int = 0,
) -> Path:
    """Write adapter `name` below `folder`, once; returns its folder.

    Args:
        shared_a: adapters with the same word here have the same `v_proj.lora_A`.
        size_a: standard deviation of the A matrices; `size_b` that of B.
        version: another one gives other weights.
    """
    path = folder / (name if version == 0 else f"{name}-v{version}")
    if path.exists():
        return path
    s = Shape.of(model)
    g = torch.Generator().manual_seed(seed_of(name, version))
    common = torch.Generator().manual_seed(seed_of("shared", shared_a))
    out = {"q_proj": s.q, "k_proj": s.kv, "v_proj": s.kv}
    tensors: dict[str, Any] = {}
    for i in range(s.layers):
        for module in targets:
            p = f"base_model.model.model.layers.{i}.self_attn.{module}"
            source = common if shared_a is not None and module == "v_proj" else g
            rows, columns = (out[module], s.hidden) if module in out else (s.hidden, s.q)
            tensors[f"{p}.lora_A.weight"] = torch.randn(rank, columns, generator=source) * size_a
            tensors[f"{p}.lora_B.weight"] = torch.randn(rows, rank, generator=g) * size_b
    path.mkdir(parents=True)
    save_file(tensors, path / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": alpha,
        "target_modules": list(targets),
        "base_model_name_or_path": str(model),
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
    }
    (path / "adapter_config.json").write_text(json.dumps(config))
    return path
