"""Without a CUDA device: the torch path, the argument checks, and the package's edges."""

from __future__ import annotations

import dataclasses
import doctest
import subprocess
import sys
from typing import Any

import pytest
import torch

from flashagents_kernels import (
    baseline,
    configs,
    errors,
    project,
    workspace,
)
from flashagents_kernels import (
    decode as decode_module,
)
from flashagents_kernels import (
    extend as extend_module,
)
from flashagents_kernels import (
    flash_lora_attention as fla,
)

Q_HEADS, KV_HEADS, DIM, RANK, SLOTS = 4, 2, 32, 4, 40


@pytest.fixture
def inputs() -> dict[str, Any]:
    gen = torch.Generator().manual_seed(3)
    cache = [torch.randn(SLOTS, KV_HEADS, DIM, generator=gen) for _ in range(2)]
    indices = torch.randperm(SLOTS, generator=gen)[:20]
    lora = fla.LoraValues(
        torch.randn(SLOTS, RANK, generator=gen),
        torch.randn(3, KV_HEADS, RANK, DIM, generator=gen),
        torch.tensor([1, 0, 2]),
    )
    return {
        "q": torch.randn(3, Q_HEADS, DIM, generator=gen),
        "k_cache": cache[0],
        "v_cache": cache[1],
        "kv_indptr": torch.tensor([0, 12, 13, 20]),
        "kv_indices": indices,
        "lora": lora,
    }


def naive(q: Any, k: Any, v: Any, rows: Any, up: Any, scale: float) -> Any:
    """One query `[heads, dim]` over `k`, `v` with V rebuilt in full, head by head."""
    out = []
    for h in range(Q_HEADS):
        g = h // (Q_HEADS // KV_HEADS)
        values = v[:, g] if up is None else v[:, g] + rows @ up[g]
        out.append(torch.softmax(k[:, g] @ q[h] * scale, 0) @ values)
    return torch.stack(out)


def test_decode_is_attention_over_the_rebuilt_values(inputs: dict[str, Any]) -> None:
    out = fla.decode(**inputs)
    lora = inputs["lora"]
    for b, adapter in enumerate([1, 0, 2]):
        slots = inputs["kv_indices"][inputs["kv_indptr"][b] : inputs["kv_indptr"][b + 1]]
        want = naive(
            inputs["q"][b], inputs["k_cache"][slots], inputs["v_cache"][slots], lora.rows[slots],
            lora.up[adapter] if adapter else None, DIM**-0.5,
        )  # fmt: skip
        assert torch.allclose(out[b], want, atol=1e-5)


def test_extend_by_one_token_is_decode(inputs: dict[str, Any]) -> None:
    """The last cached token of each request, given as a new token instead."""
    want, lse = fla.decode(**inputs, return_lse=True)
    ends = inputs["kv_indptr"][1:] - 1
    last = inputs["kv_indices"][ends]
    keep = torch.ones(20, dtype=torch.bool)
    keep[ends] = False
    lora = inputs["lora"]
    got, lse2 = fla.extend(
        inputs["q"], inputs["k_cache"][last], inputs["v_cache"][last], torch.arange(4),
        inputs["k_cache"], inputs["v_cache"], inputs["kv_indptr"] - torch.arange(4),
        inputs["kv_indices"][keep], max_new=1, lora=lora, lora_new=lora.rows[last], return_lse=True,
    )  # fmt: skip
    assert torch.allclose(got, want, atol=1e-5)
    assert torch.allclose(lse, lse2, atol=1e-5)


def test_extend_in_two_chunks_is_extend_in_one() -> None:
    gen = torch.Generator().manual_seed(5)
    q = torch.randn(9, Q_HEADS, DIM, generator=gen)
    k, v = torch.randn(9, KV_HEADS, DIM, generator=gen), torch.randn(9, KV_HEADS, DIM, generator=gen)
    whole = fla.extend(q, k, v, torch.tensor([0, 9]), max_new=9)
    second = fla.extend(
        q[4:], k[4:], v[4:], torch.tensor([0, 5]), k, v, torch.tensor([0, 4]), torch.arange(4), max_new=5
    )
    assert torch.allclose(whole[4:], second, atol=1e-5)


def test_adapter_table_and_row_sets_pick_the_same_rows(inputs: dict[str, Any]) -> None:
    lora = inputs["lora"]
    want = fla.decode(**inputs)
    stacked = torch.stack([lora.rows, lora.rows], 1)
    table = torch.zeros(50, dtype=torch.int32)
    where = torch.tensor([40, 7, 22])
    table[where] = lora.adapter.int()
    got = fla.decode(**inputs | {"lora": fla.LoraValues(stacked, lora.up, table, where)})
    assert torch.equal(got, want)


def test_project_lr_skips_padding_and_fills_each_set() -> None:
    x, down = torch.randn(3, 8), torch.randn(2, 4, 8)
    rows = torch.full((6, 2, 4), float("nan"))
    fla.project_lr(x, down, rows, torch.tensor([4, -1, 0]), scale=2.0)
    assert torch.allclose(rows[4], torch.einsum("k,srk->sr", x[0], down) * 2, atol=1e-5)
    assert torch.isnan(rows[[1, 2, 3, 5]]).all()


def test_a_plan_is_accepted_and_checked_without_a_device(inputs: dict[str, Any]) -> None:
    plan = fla.DecodePlan(4, Q_HEADS, KV_HEADS, DIM, RANK, device="cpu")
    with pytest.raises(fla.WorkspaceError, match="call plan"):
        fla.decode(**inputs, plan=plan)
    plan.update(inputs["kv_indptr"])
    assert torch.equal(fla.decode(**inputs, plan=plan), fla.decode(**inputs))
    with pytest.raises(fla.WorkspaceError, match="larger plan"):
        plan.update(torch.zeros(9, dtype=torch.int32))
    with pytest.raises(fla.WorkspaceError, match="max_rank"):
        fla.DecodePlan(4, Q_HEADS, KV_HEADS, DIM, 2, device="cpu").update(inputs["kv_indptr"]).check(
            3, Q_HEADS, KV_HEADS, DIM, RANK, -1
        )


def test_workspace_refuses_more_than_it_has() -> None:
    space = fla.Workspace(1024, device="cpu")
    assert space.take((8, 4), torch.float32).shape == (8, 4)
    with pytest.raises(fla.WorkspaceError, match="make it larger"):
        space.take((1024,), torch.float32)
    space.reset()
    assert space.take((256,), torch.float32).numel() == 256


BAD: list[tuple[str, Any, type[Exception], str]] = [
    ("q", torch.zeros(3, 4), fla.ShapeError, "q must have the shape"),
    ("q", torch.zeros(3, 4, 32, dtype=torch.float64), fla.DtypeError, "q must be bfloat16"),
    ("q", torch.zeros(3, 4, 24), fla.UnsupportedError, "multiple of 16"),
    ("q", torch.zeros(3, 3, 32), fla.ShapeError, "cannot be divided"),
    ("k_cache", torch.zeros(40, 2, 16), fla.ShapeError, "k_cache must have the shape"),
    ("v_cache", torch.zeros(40, 2, 32).half(), fla.DtypeError, "cast one"),
    ("v_cache", torch.zeros(40, 32, 2).transpose(1, 2), fla.ShapeError, "last dimension of v_cache"),
    ("kv_indptr", torch.zeros(3, dtype=torch.int32), fla.ShapeError, "kv_indptr must have the shape"),
    ("kv_indptr", torch.zeros(4), fla.DtypeError, "int32 or int64"),
    ("kv_indices", torch.zeros(40, dtype=torch.int32)[::2], fla.ShapeError, "contiguous"),
    ("logit_cap", -1.0, fla.UnsupportedError, "logit_cap"),
    ("window_left", -2, fla.UnsupportedError, "window_left"),
    ("out", torch.zeros(2, 4, 32), fla.ShapeError, "out must have the shape"),
    ("backend", "cuda", fla.DeviceError, "backend must be"),
    ("backend", "triton", fla.DeviceError, "needs CUDA tensors"),
]


@pytest.mark.parametrize(
    ("name", "value", "error", "text"),
    BAD,
    ids=[f"{n}-{e.__name__}-{i}" for i, (n, _, e, _) in enumerate(BAD)],
)
def test_bad_arguments_are_named(
    inputs: dict[str, Any], name: str, value: Any, error: type[Exception], text: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(error, match=text):
        fla.decode(**inputs | {name: value})


BAD_LORA: list[tuple[str, Any, type[Exception], str]] = [
    ("rows", torch.zeros(40, 5), fla.ShapeError, "rank 5"),
    ("rows", torch.zeros(40), fla.ShapeError, r"\[slots, r\]"),
    ("rows", torch.zeros(40, 1, 4), fla.ShapeError, "1 row sets for 2 adapters"),
    ("rows", torch.zeros(39, 4), fla.ShapeError, "39 slots"),
    ("rows", torch.zeros(40, 4).half(), fla.DtypeError, "lora.rows"),
    ("up", torch.zeros(3, 1, 4, 32), fla.ShapeError, "lora.up"),
    ("up", torch.zeros(3, 2, 65, 32), fla.UnsupportedError, "1 to 64"),
    ("adapter", torch.zeros(2, dtype=torch.int32), fla.ShapeError, "2 entries for 3"),
    ("adapter", torch.zeros(3), fla.DtypeError, "lora.adapter"),
    ("req_pool_indices", torch.zeros(2, dtype=torch.int32), fla.ShapeError, "req_pool_indices"),
]


@pytest.mark.parametrize(
    ("name", "value", "error", "text"), BAD_LORA, ids=[f"{n}-{i}" for i, (n, *_) in enumerate(BAD_LORA)]
)
def test_bad_lora_is_named(
    inputs: dict[str, Any], name: str, value: Any, error: type[Exception], text: str
) -> None:
    lora = dataclasses.replace(inputs["lora"], **{name: value})
    with pytest.raises(error, match=text):
        fla.decode(**inputs | {"lora": lora})


def test_extend_names_what_is_missing(inputs: dict[str, Any]) -> None:
    q, kv, ptr = inputs["q"], torch.zeros(3, KV_HEADS, DIM), torch.tensor([0, 3])
    with pytest.raises(fla.ShapeError, match="lora_new is missing"):
        fla.extend(q, kv, kv, ptr, max_new=3, lora=inputs["lora"])
    with pytest.raises(fla.ShapeError, match="a prefix needs"):
        fla.extend(q, kv, kv, ptr, kv_indices=inputs["kv_indices"], max_new=3)
    with pytest.raises(fla.ShapeError, match="max_new"):
        fla.extend(q, kv, kv, ptr, max_new=0)


def test_project_lr_names_what_is_wrong() -> None:
    x, rows, slots = torch.zeros(2, 8), torch.zeros(6, 4), torch.tensor([0, 1])
    with pytest.raises(fla.ShapeError, match="down must be"):
        fla.project_lr(x, torch.zeros(4, 9), rows, slots)
    with pytest.raises(fla.ShapeError, match="rows must have"):
        fla.project_lr(x, torch.zeros(5, 8), rows, slots)
    with pytest.raises(fla.DtypeError, match="slots"):
        fla.project_lr(x, torch.zeros(4, 8), rows, slots.float())


def test_every_error_is_in_the_tree() -> None:
    found = [e for e in vars(errors).values() if isinstance(e, type) and issubclass(e, errors.KernelError)]
    assert all(e.__name__ in (errors.__doc__ or "") for e in found)
    assert all(issubclass(e, (ValueError, TypeError)) for e in found if e is not errors.KernelError)


def test_all_is_sorted_and_complete() -> None:
    assert fla.__all__ == sorted(fla.__all__)
    assert all(hasattr(fla, name) for name in fla.__all__)


@pytest.mark.parametrize("module", [baseline, decode_module, extend_module, project, workspace, configs])
def test_docstring_examples(module: Any) -> None:
    target = sys.modules[getattr(module, "__module__", module.__name__)]
    assert doctest.testmod(target).failed == 0


def test_importing_the_package_brings_neither_triton_nor_a_layer_above() -> None:
    code = (
        "import sys; import flashagents_kernels.flash_lora_attention\n"
        "bad = {'sglang', 'autogen_core', 'flashagents_runtime', 'flashagents_autogen', 'triton'}\n"
        "assert not bad & set(sys.modules), bad & set(sys.modules)"
    )
    root = (
        str(next(p for p in sys.path if p.endswith("kernels")))
        if any(p.endswith("kernels") for p in sys.path)
        else None
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False,
        env=None if root is None else {**__import__("os").environ, "PYTHONPATH": root},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
