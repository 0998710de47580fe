"""An ExtendPlan: later layers of a pass start the first one's kernels again, and give what they would."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from flash_cases import Case

from flashagents_kernels.configs import ExtendConfig
from flashagents_kernels.errors import ShapeError
from flashagents_kernels.flash_lora_attention import ExtendPlan, extend

SMALL = ExtendConfig(block_m=32, block_n=32, warps=4, stages=2, tma=False)
NEW = [34, 5]


def layers(count: int = 2, **options: Any) -> list[Case]:
    """Layers of one pass: the same page tables and members, other tensors."""
    options = {"q_heads": 2, "kv_heads": 1, "dim": 32} | options
    first, *rest = (Case([40, 0], NEW, **options, seed=10 * i) for i in range(count))
    for other in rest:
        other.kv_indices, other.kv_indptr, other.qo_indptr = (
            first.kv_indices,
            first.kv_indptr,
            first.qo_indptr,
        )
        other.k, other.v = other.k.nan_to_num(0.5), other.v.nan_to_num(0.5)  # other slots were unused
        if other.lora is not None and first.lora is not None:
            other.lora = dataclasses.replace(
                other.lora, rows=other.lora.rows.nan_to_num(0.5), adapter=first.lora.adapter,
                req_pool_indices=first.lora.req_pool_indices,
            )  # fmt: skip
    return [first, *rest]


def attend(case: Case, config: ExtendConfig | None = SMALL, **options: Any) -> torch.Tensor:
    out: torch.Tensor = extend(
        case.q, case.k_new, case.v_new, case.qo_indptr, case.k, case.v, case.kv_indptr, case.kv_indices,
        max_new=max(NEW), lora=case.lora, lora_new=case.lora_new, backend="triton", config=config, **options,
    )  # fmt: skip
    return out


CONFIGS = {
    "paged": SMALL,
    "bulk": dataclasses.replace(SMALL, tma=True),
    "gathered": dataclasses.replace(SMALL, tma=True, gather=True),
    "pieces": dataclasses.replace(SMALL, splits=2),
}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("options", [{"rank": 0}, {"rank": 8, "indirect": True}, {"sets": 2}], ids=str)
def test_layers_of_a_pass_are_what_each_is_alone(config: ExtendConfig, options: dict[str, Any]) -> None:
    pass_ = layers(**options)
    alone = [attend(case, config) for case in pass_]
    plan = ExtendPlan()
    together = [attend(case, config, plan=plan) for case in pass_]
    assert plan.repeated == len(pass_) - 1
    assert all(torch.equal(x, y) for x, y in zip(alone, together, strict=True))
    assert not torch.equal(together[0], together[1])


def test_the_first_layers_tensors_are_not_kept() -> None:
    first, second = layers(2)
    plan = ExtendPlan()
    attend(first, CONFIGS["bulk"], plan=plan)
    want = attend(second, CONFIGS["bulk"])
    for t in (first.q, first.k, first.v, first.k_new, first.v_new, first.lora_new):
        t.fill_(float("nan"))
    assert torch.equal(attend(second, CONFIGS["bulk"], plan=plan), want)
    assert plan.repeated == 1


def test_a_call_that_differs_is_done_in_full() -> None:
    first, second, third = layers(3)
    plan = ExtendPlan()
    attend(first, plan=plan)
    second.k_new = second.k_new.clone()  # another stride
    assert torch.equal(attend(second, plan=plan), attend(second))
    third.kv_indices = third.kv_indices.clone()  # another page table
    assert torch.equal(attend(third, plan=plan), attend(third))
    assert torch.equal(attend(first, plan=plan, sm_scale=0.5), attend(first, sm_scale=0.5))
    shifted = torch.empty(first.q.numel() + 1, dtype=first.q.dtype, device=first.q.device)[1:]
    first.q = shifted.view_as(first.q).copy_(first.q)  # its address is no multiple of 16 bytes
    assert torch.equal(attend(first, plan=plan), attend(first))
    assert plan.repeated == 0


def test_one_tensor_in_two_places_is_not_repeated() -> None:
    first, second = layers(2, rank=0)
    first.v_new = first.k_new
    plan = ExtendPlan()
    attend(first, plan=plan)
    assert torch.equal(attend(second, plan=plan), attend(second))
    assert plan.repeated == 0


def test_an_argument_that_is_wrong_is_named_in_later_layers_too() -> None:
    first, second = layers(2)
    plan = ExtendPlan()
    attend(first, plan=plan)
    second.v_new = second.v_new[:-1]
    with pytest.raises(ShapeError, match="v_new"):
        attend(second, plan=plan)


def test_with_the_log_sum_exp_a_plan_is_not_used() -> None:
    first, second = layers(2)
    plan = ExtendPlan()
    for case in (first, second):
        out, lse = attend(case, plan=plan, return_lse=True)
        want, want_lse = attend(case, return_lse=True)
        assert torch.equal(out, want)
        assert torch.equal(lse, want_lse)
    assert plan.repeated == 0
