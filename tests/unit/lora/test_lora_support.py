"""Which configurations `lora_sharing` refuses, by name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from flashagents_runtime.lora_sharing.support import arguments_refusal, padding_refusal

STOCK: dict[str, Any] = {
    "tp_size": 1,
    "pp_size": 1,
    "dp_size": 1,
    "ep_size": 1,
    "nnodes": 1,
    "attn_cp_size": 1,
    "dcp_size": 1,
    "enable_dp_attention": False,
    "enable_attn_tp_input_scattered": False,
    "enable_prefill_cp": False,
    "enable_two_batch_overlap": False,
    "enable_pdmux": False,
    "enable_hisparse": False,
    "enable_hierarchical_cache": False,
    "enable_memory_saver": False,
    "enable_lora_overlap_loading": False,
    "lora_drain_wait_threshold": 0.0,
    "dllm_algorithm": None,
    "disaggregation_mode": "null",
    "speculative_algorithm": None,
}


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_tensor_parallelism_is_served(ranks: int) -> None:
    assert arguments_refusal(SimpleNamespace(**STOCK | {"tp_size": ranks})) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("pp_size", 2),
        ("dp_size", 2),
        ("ep_size", 2),
        ("nnodes", 2),
        ("attn_cp_size", 2),
        ("dcp_size", 2),
        ("enable_dp_attention", True),
        ("enable_attn_tp_input_scattered", True),
    ],
)
def test_other_ways_to_use_several_gpus_are_refused(name: str, value: object) -> None:
    reason = arguments_refusal(SimpleNamespace(**STOCK | {"tp_size": 2, name: value}))
    assert reason is not None
    assert reason.startswith(f"{name}={value!r} ")


@pytest.mark.parametrize(
    ("name", "value"), [("enable_lora_overlap_loading", True), ("lora_drain_wait_threshold", 2.0)]
)
def test_what_goes_by_a_ranks_own_clock_needs_one_rank(name: str, value: object) -> None:
    assert arguments_refusal(SimpleNamespace(**STOCK | {name: value})) is None
    reason = arguments_refusal(SimpleNamespace(**STOCK | {"tp_size": 2, name: value}))
    assert reason is not None
    assert reason.startswith(f"{name}={value!r} with tp_size=2")


def test_padded_models_are_refused() -> None:
    plain = {"num_attention_heads": 8, "num_key_value_heads": 2, "intermediate_size": 64}
    as_before = {"original_num_attention_heads": 8, "original_total_num_kv_heads": 2}
    assert padding_refusal(SimpleNamespace(**plain), 2) is None  # on a GPU nothing is noted
    assert padding_refusal(SimpleNamespace(**plain, **as_before), 2) is None
    for name, before in (
        ("num_attention_heads", {"original_num_attention_heads": 7}),
        ("num_key_value_heads", {"original_total_num_kv_heads": 1}),
        ("intermediate_size", {"original_intermediate_size": 60}),
    ):
        config = SimpleNamespace(**plain | as_before | before)
        reason = padding_refusal(config, 2)
        assert reason is not None
        assert f"pads the model's {name} from {next(iter(before.values()))} to {plain[name]}" in reason
        assert padding_refusal(config, 1) is None
