"""Adapters from tensors become the files that PEFT would write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from flashagents_runtime import ModelIntegrityError
from flashagents_runtime.adapter_check import check_adapter
from flashagents_runtime.adapter_files import write_adapter

CONFIG = {
    "peft_type": "LORA",
    "r": 2,
    "lora_alpha": 4,
    "target_modules": {"v_proj", "q_proj"},
    "revision": None,
}
A = "base_model.model.model.layers.0.self_attn.v_proj.lora_A.weight"
B = A.replace("lora_A", "lora_B")


def arrays() -> dict[str, Any]:
    return {A: np.arange(8, dtype=np.float32).reshape(2, 4), B: np.ones((6, 4), np.float32)[::2, ::2]}


def test_arrays_and_a_configuration_with_a_set_become_a_sound_folder(tmp_path: Path) -> None:
    write_adapter("x", tmp_path, arrays(), CONFIG)
    check_adapter("x", tmp_path)
    found = load_file(tmp_path / "adapter_model.safetensors")
    assert {name: value.tolist() for name, value in found.items()} == {
        name: value.tolist() for name, value in arrays().items()
    }
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert config == {**CONFIG, "target_modules": ["q_proj", "v_proj"]}


@pytest.mark.long
def test_tensors_may_share_memory_be_views_and_need_gradients(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file as load_tensors

    whole = torch.nn.Parameter(torch.arange(16, dtype=torch.bfloat16).reshape(4, 4))
    write_adapter("x", tmp_path, {A: whole[:2], B: whole.T[:, :2]}, CONFIG)
    check_adapter("x", tmp_path)
    found = load_tensors(tmp_path / "adapter_model.safetensors")
    assert torch.equal(found[A], whole.detach()[:2])
    assert torch.equal(found[B], whole.detach().T[:, :2])
    write_adapter("x", tmp_path, {A: whole[:2], B: np.ones((3, 2), np.float32)}, CONFIG)
    assert load_tensors(tmp_path / "adapter_model.safetensors")[B].dtype is torch.float32


@pytest.mark.parametrize(
    ("tensors", "config", "error", "says"),
    [
        ({}, CONFIG, ModelIntegrityError, "'x': it has no tensors"),
        ({A: [[1.0]]}, CONFIG, TypeError, f"'x': {A} is a list, neither torch tensor nor numpy array"),
        (
            arrays(),
            {**CONFIG, "init": object()},
            TypeError,
            "'x': its config is not what adapter_config.json",
        ),
        (arrays(), {**CONFIG, "lora_alpha": float("nan")}, TypeError, "'x': its config is not"),
    ],
    ids=["none", "lists", "objects", "NaN"],
)
def test_what_is_no_adapter_is_refused_by_name(
    tensors: Any, config: Any, error: type[Exception], says: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=says.replace(".", r"\.")):
        write_adapter("x", tmp_path, tensors, config)
