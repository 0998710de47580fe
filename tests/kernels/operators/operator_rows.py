"""project_lr and the reconstruct baseline."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from flash_cases import BF16, DEVICE, ON_GPU, Case, judge, poisoned, randn

from flashagents_kernels.flash_lora_attention import (
    decode,
    extend,
    join,
    project_lr,
    reconstruct_then_decode,
    reconstruct_then_extend,
)
from flashagents_kernels.reference import project_lr_reference, values

HIDDEN = 4096 if ON_GPU else 80


@pytest.mark.parametrize("shape", [(8,), (64,), (3, 8), (5, 16)], ids=str)
@pytest.mark.parametrize("tokens", [0, 1, 19, 70, 300])
def test_project_lr(tokens: int, shape: tuple[int, ...]) -> None:
    gen = torch.Generator().manual_seed(tokens)
    x = randn(gen, tokens, HIDDEN, dtype=BF16)
    down = randn(gen, *shape, HIDDEN, dtype=BF16)
    slots = (
        torch.randperm(tokens + 9, generator=gen)[:tokens]
        .to(torch.int64 if tokens % 2 else torch.int32)
        .to(DEVICE)
    )
    if tokens > 1:
        slots[1] = -1
    rows = poisoned(tokens + 9, *shape, dtype=BF16)
    project_lr(x, down, rows, slots, scale=0.25, backend="triton")
    live = slots >= 0
    ref = project_lr_reference(x, down, 0.25)
    if tokens:
        judge(rows[slots[live].long()], ref[live], ref.to(BF16)[live], atol=1e-2)
    unused = torch.ones(tokens + 9, dtype=torch.bool, device=DEVICE)
    unused[slots[live].long()] = False
    assert torch.isnan(rows[unused]).all()


def test_reconstruct_then_attend_agrees_with_the_fused_kernels() -> None:
    case = Case([30, 0, 9], [20, 5, 3], sets=2)
    assert case.lora is not None
    pages = (case.k, case.v, case.kv_indptr, case.kv_indices)
    v_full = poisoned(*case.v.shape, dtype=case.dtype)
    q = case.q[:3].contiguous()
    fused = decode(q, *pages, lora=case.lora, backend="triton")
    rebuilt = reconstruct_then_decode(q, *pages, case.lora, v_full, backend="triton")
    assert torch.allclose(fused.float(), rebuilt.float(), atol=5e-3)

    new = case.qo_indptr.tolist()
    parts = [
        values(case.v_new[a:b], case.lora_new[a:b], case.lora, int(case.lora.adapter[i]), torch.float32)
        for i, (a, b) in enumerate(pairwise(new))
    ]
    v_new = torch.cat([p.float() for p in parts]).to(case.dtype)
    tokens = (case.q, case.k_new)
    fused = extend(
        *tokens, case.v_new, case.qo_indptr, *pages, max_new=20, lora=case.lora, lora_new=case.lora_new,
        backend="triton",
    )  # fmt: skip
    rebuilt = reconstruct_then_extend(
        *tokens, v_new, case.qo_indptr, *pages, case.lora, v_full, max_new=20, backend="triton"
    )
    assert torch.allclose(fused.float(), rebuilt.float(), atol=5e-3)


JOINED = [
    Case([70, 0, 5], [40, 33, 1], rank=16),
    Case([20, 50, 3], [5, 40, 2], rank=8, sets=2, index=torch.int64, indirect=True),
    Case([37, 16], [20, 9], rank=0, dim=80, page=16),
    Case([0, 0], [40, 33], rank=8),
]


@pytest.mark.parametrize("case", JOINED, ids=str)
def test_joined_keys_and_values(case: Case) -> None:
    pages = (case.k, case.v, case.kv_indptr, case.kv_indices) if sum(case.lengths) else ()
    args = (case.k_new, case.v_new, case.qo_indptr, *pages)
    options = {"max_new": max(case.new), "lora": case.lora, "lora_new": case.lora_new}
    out = tuple(
        poisoned(sum(case.lengths) + sum(case.new), *case.k.shape[1:], dtype=case.dtype) for _ in range(2)
    )
    k, v = join(*args, **options, out=out, backend="triton")
    ref_k, ref_v = join(*args, **options, backend="torch")
    assert torch.equal(k, ref_k)
    assert (v.float() - ref_v.float()).abs().max() <= 2e-2  # fp16 of sums up to 16
    # attention without LoRA over the joined rows is extend's
    ends = [x + y for x, y in zip(case.kv_indptr.tolist(), case.qo_indptr.tolist(), strict=True)]
    fused = extend(case.q, *args, **options, backend="triton")
    for b, (a, z) in enumerate(pairwise(ends)):
        new = slice(*case.qo_indptr.tolist()[b : b + 2])
        n, prefix = new.stop - new.start, case.lengths[b]
        mine = torch.arange(prefix, device=DEVICE)
        plain = extend(
            case.q[new], k[a + prefix : z], v[a + prefix : z], torch.tensor([0, n], device=DEVICE),
            k[a:z], v[a:z], torch.tensor([0, prefix], device=DEVICE), mine, max_new=n, backend="triton",
        )  # fmt: skip
        assert torch.allclose(plain.float(), fused[new].float(), atol=1e-2)
