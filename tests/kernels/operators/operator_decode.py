"""decode against its fp32 reference."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from flash_cases import BF16, DEVICE, FP16, ON_GPU, Case, judge, poisoned

from flashagents_kernels.configs import DecodeConfig
from flashagents_kernels.flash_lora_attention import DecodePlan, decode
from flashagents_kernels.reference import decode_reference


def run(case: Case, config: DecodeConfig | None = None, **options: Any) -> None:
    args = (case.q, case.k, case.v, case.kv_indptr, case.kv_indices)
    batch = len(case.lengths)
    plan = DecodePlan(
        batch, case.q_heads, case.kv_heads, case.dim, case.rank, device=DEVICE, config=config,
        window_left=options.get("window_left", -1),
    )  # fmt: skip
    plan.partial_out.fill_(float("nan"))
    plan.partial_low.fill_(float("nan"))
    plan.partial_lse.fill_(float("nan"))
    plan.update(case.kv_indptr)
    out = poisoned(*case.q.shape, dtype=case.dtype)
    got, lse = decode(*args, lora=case.lora, out=out, return_lse=True, plan=plan, backend="triton", **options)
    ref, ref_lse = decode_reference(*args, lora=case.lora, **options)
    low, _ = decode_reference(*args, lora=case.lora, dtype=case.dtype, **options)
    judge(got, ref, low)
    assert torch.allclose(lse, ref_lse, atol=2e-3, rtol=1e-4)


@pytest.mark.parametrize(
    "case",
    [
        Case([33, 1, 70], rank=8),
        Case([33, 1, 70], rank=16, seed=1),
        Case([5, 0, 41], rank=32, dtype=BF16),
        Case([18, 47], rank=64, dim=128, q_heads=7, kv_heads=1, seed=2),
        Case([37, 16], rank=0, dim=80, page=16),
        Case([37, 16], rank=5, dim=96, page=16, seed=3),
        Case([29], rank=16, dim=256, q_heads=4, kv_heads=4, dtype=BF16),
        Case([20, 50, 3], rank=8, index=torch.int64, indirect=True),
        Case([20, 50, 3], rank=8, sets=2, seed=4),
        Case([64, 64], rank=16, q_heads=8, kv_heads=8, indirect=True, sets=2, seed=5),
        Case([21], rank=16, q_heads=34, kv_heads=2),
    ],
    ids=str,
)
def test_decode_matches_the_reference(case: Case) -> None:
    run(case)


@pytest.mark.parametrize("rank", [0, 16])
def test_soft_cap(rank: int) -> None:
    run(Case([40, 9], rank=rank), logit_cap=2.0)


@pytest.mark.parametrize("window", [0, 7, 100])
def test_window(window: int) -> None:
    run(Case([40, 9, 0]), window_left=window)


def test_many_pieces_of_unequal_requests() -> None:
    run(Case([300, 2, 17], rank=16), DecodeConfig(heads=2, block_n=16, stages=2, waves=8))


def test_one_piece_each() -> None:
    run(Case([30, 2, 17, 5, 9], rank=16), DecodeConfig(heads=1, block_n=16, stages=2, waves=1))


def test_a_batch_without_adapters_does_not_read_the_low_rank_rows() -> None:
    case = Case([30, 9])
    assert case.lora is not None
    case.lora.rows.fill_(float("nan"))
    case.lora.adapter.zero_()
    run(case)


def test_a_broken_request_does_not_spoil_its_neighbours() -> None:
    case = Case([30, 9, 12])
    case.v[case.kv_indices[30:39].long()] = float("nan")
    out = decode(case.q, case.k, case.v, case.kv_indptr, case.kv_indices, lora=case.lora, backend="triton")
    assert torch.isnan(out[1]).all() and not torch.isnan(out[[0, 2]]).any()


def test_heads_apart_in_memory() -> None:
    case = Case([30, 9])
    case.k = case.k.transpose(0, 1).contiguous().transpose(0, 1)
    run(case)


def test_split_requests_merge_through_their_log_sum_exp() -> None:
    case = Case([30, 9], rank=0)
    args = (case.q, case.k, case.v)
    whole = decode(*args, case.kv_indptr, case.kv_indices, backend="triton")
    half = torch.tensor([0, 15, 24], dtype=torch.int32, device=DEVICE)
    a, la = decode(
        *args, half, case.kv_indices[[*range(15), *range(30, 39)]], return_lse=True, backend="triton"
    )
    rest = torch.tensor([0, 15, 15], dtype=torch.int32, device=DEVICE)
    b, lb = decode(*args, rest, case.kv_indices[15:30].contiguous(), return_lse=True, backend="triton")
    w = torch.softmax(torch.stack([la, lb]), 0)[..., None]
    assert torch.allclose((a * w[0] + b * w[1]).float(), whole.float(), atol=2e-3)


@pytest.mark.skipif(not ON_GPU, reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [BF16, FP16], ids=["bf16", "fp16"])
@pytest.mark.parametrize("rank", [0, 8, 64])
@pytest.mark.parametrize("heads", [(32, 8), (28, 4), (64, 8), (14, 2)], ids=lambda h: f"H{h[0]}:{h[1]}")
def test_long_contexts(heads: tuple[int, int], rank: int, dtype: torch.dtype) -> None:
    lengths = [100_003, 1, 777, 33_333, 64, 4097]
    run(Case(lengths, q_heads=heads[0], kv_heads=heads[1], dim=128, rank=rank, dtype=dtype))


@pytest.mark.skipif(not ON_GPU, reason="needs a CUDA device")
@pytest.mark.parametrize("dim", [64, 80, 96, 256])
def test_other_head_dims(dim: int) -> None:
    run(Case([8000, 1, 777], q_heads=32, kv_heads=8, dim=dim, rank=16, dtype=BF16, page=16))


@pytest.mark.skipif(not ON_GPU, reason="needs a CUDA device")
def test_a_captured_graph_stays_valid_for_other_lengths() -> None:
    case = Case([3000, 200, 1000], q_heads=32, kv_heads=8, dim=128, dtype=BF16)
    plan = DecodePlan(3, 32, 8, 128, case.rank, device=DEVICE)
    out = torch.empty_like(case.q)
    indptr, indices = case.kv_indptr.clone(), case.kv_indices

    def step() -> None:
        plan.update(indptr)
        decode(case.q, case.k, case.v, indptr, indices, lora=case.lora, out=out, plan=plan)

    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for lengths in ([3000, 200, 1000], [1, 4000, 150], [2000, 0, 2200]):
        indptr.copy_(case.offsets(lengths))
        assert case.lora is not None
        case.lora.adapter.copy_(case.lora.adapter.roll(1))
        out.fill_(float("nan"))
        graph.replay()
        args = (case.q, case.k, case.v, indptr, indices)
        judge(
            out,
            decode_reference(*args, lora=case.lora)[0],
            decode_reference(*args, lora=case.lora, dtype=BF16)[0],
        )
