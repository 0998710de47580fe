"""LoRA adapters by shape with random weights, whose `v_proj` A all have in common: they can share a cache."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

RANK = 8
TARGETS = ("q_proj", "v_proj")


def tensors(shape: Mapping[str, Any], number: int, rank: int) -> dict[str, Any]:
    """PEFT's tensors of adapter `number` for a model of this shape, in bf16."""
    import torch

    g = torch.Generator().manual_seed(number)
    common = torch.Generator().manual_seed(10_000)
    head = shape.get("head_dim") or shape["hidden_size"] // shape["num_attention_heads"]
    rows = {"q_proj": head * shape["num_attention_heads"], "v_proj": head * shape["num_key_value_heads"]}
    found = {}
    for i in range(shape["num_hidden_layers"]):
        for module, out in rows.items():
            p = f"base_model.model.model.layers.{i}.self_attn.{module}"
            source = common if module == "v_proj" else g
            down = torch.randn(rank, shape["hidden_size"], generator=source) * 0.02
            found[f"{p}.lora_A.weight"] = down.to(torch.bfloat16)
            found[f"{p}.lora_B.weight"] = (torch.randn(out, rank, generator=g) * 0.02).to(torch.bfloat16)
    return found


def config(base: str, rank: int) -> dict[str, Any]:
    """PEFT's `adapter_config.json` of such an adapter."""
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": 2 * rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": list(TARGETS),
        "fan_in_fan_out": False,
        "base_model_name_or_path": base,
    }


def write_adapter(model: Path, number: int, rank: int = RANK) -> Path:
    """Adapter `number` of the model in this folder, in a folder beside it; written once."""
    from safetensors.torch import save_file

    folder = model.parent / f"{model.name}-adapter{number}"
    if not folder.exists():
        folder.mkdir()
        save_file(
            tensors(json.loads((model / "config.json").read_text()), number, rank),
            folder / "adapter_model.safetensors",
            metadata={"format": "pt"},
        )
        (folder / "adapter_config.json").write_text(json.dumps(config(model.name, rank)))
    return folder
