"""Members of sharing groups: V's part of an adapter, and which adapters fit."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from flashagents_runtime.lora_sharing.adapters import Misfit, value_part
from flashagents_runtime.lora_sharing.config import parse
from flashagents_runtime.lora_sharing.members import Members
from flashagents_runtime.lora_sharing.rows import Projections, row_bytes

Q, KV, HIDDEN, LAYERS = 8, 4, 6, 2


def adapter(rank: int = 2, seed: int = 0, shared: int | None = 1, **config: Any) -> Any:
    """What SGLang makes of a PEFT adapter: stacked projections, K's part zero."""
    g = torch.Generator().manual_seed(seed)
    common = torch.Generator().manual_seed(shared if shared is not None else seed + 100)
    layers = []
    for i in range(LAYERS):
        v_down = torch.randn(rank, HIDDEN, generator=common)
        a = torch.cat([torch.randn(rank, HIDDEN, generator=g), torch.zeros(rank, HIDDEN), v_down])
        b = torch.randn(Q + 2 * KV, rank, generator=g)
        b[Q : Q + KV] = 0
        name = f"base_model.model.model.layers.{i}.self_attn.qkv_proj"
        layers.append(SimpleNamespace(weights={f"{name}.lora_A.weight": a, f"{name}.lora_B.weight": b}))
    settings = {"r": rank, "target_modules": ["q_proj", "v_proj"], **config}
    return SimpleNamespace(layers=layers, scaling=2.0, config=SimpleNamespace(**settings))


def members(scheme: str, *names: str) -> Members:
    config = parse(scheme, {"team": list(names)}, [])
    assert config is not None
    return Members(config)


def admit(to: Members, name: str, what: Any, width: int | None = None) -> None:
    to.admit(name, f"id-{name}", what, Q, KV, width)


def test_the_value_part_moves_out() -> None:
    one = adapter()
    before = [dict(layer.weights) for layer in one.layers]
    group = members("base_lr", "plan")
    admit(group, "plan", one)
    value = group.values["plan"]
    for i, layer in enumerate(one.layers):
        (a_name, a), (b_name, b) = layer.weights.items()
        assert torch.equal(a, before[i][a_name])
        assert torch.equal(b[: Q + KV], before[i][b_name][: Q + KV])
        assert not b[Q + KV :].any()
        assert torch.equal(value.up[i], before[i][b_name][Q + KV :])
        assert torch.equal(value.down[i], a[4:])


def test_projections_hold_scaled_members_and_nothing_else() -> None:
    group = members("precomputed", "plan", "act")
    admit(group, "act", adapter(rank=2))
    table = Projections(
        LAYERS, 2, 2, KV // 2, HIDDEN, 3, row_per_member=True, dtype=torch.float32, device="cpu"
    )
    table.put(2, group.values["act"])
    assert not table.up[:, :2].any()
    assert not table.down[:, 0].any()
    x = torch.randn(5, HIDDEN)
    value = group.values["act"]
    for i in range(LAYERS):
        rows = x @ table.down[i, 1].T
        assert not rows[:, 2:].any()
        got = torch.einsum("nr,hrd->nhd", rows, table.up[i, 2]).reshape(5, KV)
        torch.testing.assert_close(got, 2.0 * (x @ value.down[i].T) @ value.up[i].T)
    table.clear(2)
    assert not table.up.any()
    assert not table.down.any()


@pytest.mark.parametrize(
    ("scheme", "what", "reason"),
    [
        ("base_lr", adapter(shared=2), "v_proj.lora_A differs from that of 'plan'"),
        ("base_lr", adapter(rank=3), "its rank is 3 and that of 'plan' is 2"),
        ("precomputed", adapter(rank=5), "its rank is 5, and the rows of this engine have width 4"),
        ("precomputed", adapter(rank=65), "kernels take up to 64"),
        ("precomputed", adapter(target_modules="all-linear"), "includes k_proj"),
        ("precomputed", adapter(target_modules=["v_proj", "k_proj"]), "it targets k_proj"),
        ("base", adapter(target_modules=["q_proj", "v_proj", "o_proj"]), "it targets o_proj"),
    ],
)
def test_misfits(scheme: str, what: Any, reason: str) -> None:
    group = members(scheme, "plan", "act")
    admit(group, "plan", adapter(), 4)
    kept = [dict(layer.weights) for layer in what.layers]
    with pytest.raises(Misfit, match=reason):
        admit(group, "act", what, 4)
    assert group.loaded == ["plan"]
    assert group.number("id-act") == 0
    for layer, weights in zip(what.layers, kept, strict=True):
        assert all(layer.weights[name] is weights[name] for name in weights)


def test_a_layer_without_v_is_a_misfit() -> None:
    one = adapter()
    one.layers[1].weights.clear()
    with pytest.raises(Misfit, match="layer 1 has no q_proj and v_proj"):
        value_part(one, Q, KV)
    with pytest.raises(Misfit, match="are not the model's"):
        value_part(adapter(), Q + 1, KV)


def test_numbers_and_namespaces() -> None:
    config = parse("full", {"a": ["base", "x"], "b": ["y"]}, [])
    assert config is not None
    group = Members(config)
    for name in ("y", "x"):
        admit(group, name, None)
    assert group.loaded == ["x", "y"]
    assert [group.number(i) for i in ("id-x", "id-y", "id-z", None)] == [1, 2, 0, 0]
    spaces = [getattr(group.group(i), "namespace", None) for i in ("id-x", "id-y", "id-z", None)]
    assert spaces[0] == spaces[3]
    assert len({spaces[0], spaces[1], None}) == 3
    assert spaces[2] is None
    before = group.groups["a"].namespace
    group.leave_behind(group.groups["a"])
    assert group.groups["a"].namespace != before
    assert group.forget("id-x") == "x"
    assert group.group("id-x") is None
    assert Members(config).groups["a"].namespace not in (before, group.groups["a"].namespace)


def test_bytes_of_a_tokens_rows() -> None:
    assert row_bytes(32, 3, 8, 2) == 32 * 3 * 8 * 2
