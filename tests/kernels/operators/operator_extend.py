"""extend against its fp32 reference."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from flash_cases import BF16, DEVICE, FP16, ON_GPU, Case, judge, poisoned

from flashagents_kernels.configs import ExtendConfig
from flashagents_kernels.flash_lora_attention import Workspace, extend
from flashagents_kernels.reference import extend_reference

SMALL = ExtendConfig(block_m=32, block_n=32, warps=4, stages=2, tma=False)


def run(case: Case, config: ExtendConfig | None = None, **options: Any) -> None:
    args = [case.q, case.k_new, case.v_new, case.qo_indptr]
    if sum(case.lengths):
        args += [case.k, case.v, case.kv_indptr, case.kv_indices]
    lora = {"lora": case.lora, "lora_new": case.lora_new}
    out = poisoned(*case.q.shape, dtype=case.dtype)
    workspace = options.pop("workspace", None)
    got, lse = extend(
        *args, max_new=max(case.new), out=out, return_lse=True, backend="triton", config=config,
        workspace=workspace, **lora, **options,
    )  # fmt: skip
    ref, ref_lse = extend_reference(*args, **lora, **options)
    low, _ = extend_reference(*args, **lora, dtype=case.dtype, **options)
    judge(got, ref, low)
    assert torch.allclose(lse, ref_lse, atol=2e-3, rtol=1e-4)


CASES = [
    Case([0, 0], [40, 33], rank=8),
    Case([70, 0, 5], [40, 33, 1], rank=16),
    Case([70, 0, 5], [40, 33, 1], rank=32, dtype=BF16),
    Case([33], [7], rank=64, dim=128, q_heads=7, kv_heads=1, seed=1),
    Case([37, 16], [20, 9], rank=0, dim=80, page=16),
    Case([37, 16], [20, 9], rank=5, dim=96, page=16, seed=3),
    Case([19], [21], rank=16, dim=256, q_heads=2, kv_heads=1, dtype=BF16),
    Case([20, 50, 3], [5, 40, 2], rank=8, index=torch.int64, indirect=True),
    Case([20, 50, 3], [5, 40, 2], rank=8, sets=2, seed=4),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_extend_matches_the_reference(case: Case) -> None:
    run(case, None if ON_GPU else SMALL)


@pytest.mark.parametrize("case", [CASES[1], CASES[-2], CASES[-1]], ids=str)
@pytest.mark.parametrize("gather", [False, True], ids=["paged", "gathered"])
def test_bulk_copies(case: Case, gather: bool) -> None:
    run(case, dataclasses.replace(SMALL, tma=True, gather=gather))


PACKED = [
    Case([70, 0, 5], [40, 33, 1], rank=16),
    Case([33, 40], [7, 30], rank=8, dim=64, q_heads=7, kv_heads=1, seed=1),  # blocks begin within a token
    Case([20, 50, 3], [5, 40, 2], q_heads=6, kv_heads=2, rank=8, sets=2, indirect=True, seed=4),
    Case([37, 16], [20, 9], rank=0, dim=80, page=16),
]


@pytest.mark.parametrize("case", PACKED, ids=str)
@pytest.mark.parametrize("splits", [1, 2])
def test_blocks_of_all_heads_of_a_kv_head(case: Case, splits: int) -> None:
    run(case, dataclasses.replace(SMALL, pack=True, splits=splits))


def test_packed_blocks_with_a_window_and_a_soft_cap() -> None:
    run(PACKED[0], dataclasses.replace(SMALL, pack=True), window_left=9, logit_cap=2.0)


def test_packed_blocks_read_whole_tiles_by_bulk_copies() -> None:
    run(PACKED[0], dataclasses.replace(SMALL, pack=True, tma=True, gather=True))


def test_new_tokens_alone_with_the_low_rank_part_added_first() -> None:
    run(Case([0, 0], [40, 33], rank=8, sets=2), dataclasses.replace(SMALL, tma=True, gather=True))


@pytest.mark.parametrize(("rank", "splits"), [(0, 2), (16, 4)])
def test_pieces_of_the_keys(rank: int, splits: int) -> None:
    run(Case([70, 0, 90], [40, 33, 1], rank=rank), dataclasses.replace(SMALL, splits=splits))


def test_workspace_is_reused() -> None:
    workspace = Workspace.for_extend(74, 275, 4, 2, 64, device=DEVICE, max_splits=2)
    workspace.buffer.fill_(0xFF)  # NaN in every float type
    for seed in range(2):
        config = dataclasses.replace(SMALL, splits=2, tma=True, gather=True)
        run(Case([50, 0, 70], [30, 23, 1], seed=seed), config, workspace=workspace)


@pytest.mark.parametrize("rank", [0, 16])
def test_soft_cap(rank: int) -> None:
    run(Case([40, 0], [35, 9], rank=rank), SMALL, logit_cap=2.0)


@pytest.mark.parametrize(("window", "splits"), [(0, 1), (7, 2), (45, 1)])
def test_window(window: int, splits: int) -> None:
    run(Case([40, 0], [70, 9]), dataclasses.replace(SMALL, splits=splits), window_left=window)


def test_a_batch_without_adapters_does_not_read_the_low_rank_rows() -> None:
    case = Case([30, 9], [9, 40])
    assert case.lora is not None
    case.lora.rows.fill_(float("nan"))
    case.lora_new.fill_(float("nan"))
    case.lora.adapter.zero_()
    run(case, SMALL)


@pytest.mark.parametrize("gather", [False, True], ids=["paged", "gathered"])
def test_a_broken_request_does_not_spoil_its_neighbours(gather: bool) -> None:
    case = Case([33, 9, 12], [35, 9, 12])
    case.v[case.kv_indices[33:42].long()] = float("nan")
    case.v_new[35:44] = float("nan")
    out = extend(
        case.q, case.k_new, case.v_new, case.qo_indptr, case.k, case.v, case.kv_indptr, case.kv_indices,
        max_new=35, lora=case.lora, lora_new=case.lora_new, backend="triton",
        config=dataclasses.replace(SMALL, tma=gather, gather=gather),
    )  # fmt: skip
    assert torch.isnan(out[35:44]).all()
    assert not torch.isnan(out[:35]).any() and not torch.isnan(out[44:]).any()


@pytest.mark.skipif(not ON_GPU, reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [BF16, FP16], ids=["bf16", "fp16"])
@pytest.mark.parametrize("rank", [0, 8, 16, 64])
@pytest.mark.parametrize("heads", [(32, 8), (28, 4)], ids=lambda h: f"H{h[0]}:{h[1]}")
def test_long_prefixes(heads: tuple[int, int], rank: int, dtype: torch.dtype) -> None:
    case = Case([3000, 0, 1, 64], [700, 1333, 1, 513], q_heads=heads[0], kv_heads=heads[1], dim=128)
    run(dataclasses.replace(case, rank=rank, dtype=dtype))


@pytest.mark.skipif(not ON_GPU, reason="needs a CUDA device")
@pytest.mark.parametrize("new", [3, 300, 2100])
def test_a_prefix_of_100k_tokens(new: int) -> None:
    run(Case([100_003], [new], q_heads=4, kv_heads=1, dim=128, dtype=BF16))


@pytest.mark.skipif(not ON_GPU, reason="needs a CUDA device")
@pytest.mark.parametrize("dim", [64, 80, 96, 256])
def test_other_head_dims(dim: int) -> None:
    run(Case([1000, 1, 77], [300, 400, 513], q_heads=8, kv_heads=2, dim=dim, dtype=BF16, page=16))
