"""Adapters are trained: what is learnt, what is shared, and what a cut costs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from flashagents_runtime import TrainingError, cpu_shims
from flashagents_runtime.role_training import Pair, Recipe, TrainedRole, train_roles
from flashagents_runtime.role_training.batches import IGNORED, collate
from flashagents_runtime.role_training.pairs import Example
from flashagents_runtime.role_training.shared_a import WEIGHTS, share
from helpers.threads import one_thread  # noqa: F401
from helpers.tiny_roles import tiny_pairs, tiny_text_model

pytestmark = pytest.mark.long

ROLES = ("plan", "action", "reflect")
RECIPE = Recipe(epochs=6, batch_size=4, micro_batch=2, learning_rate=2e-2, rank=4)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_text_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def pairs() -> dict[str, list[Pair]]:
    return {role: tiny_pairs(role) for role in ROLES}


@pytest.fixture(scope="module")
def trained(
    model: Path, pairs: dict[str, list[Pair]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Path, list[TrainedRole]]]:
    """All roles with a shared A, and the figure."""
    out = tmp_path_factory.mktemp("shared")
    told: list[Any] = []
    done = train_roles(model, pairs, out, RECIPE, shared_a=True, device="cpu", progress=told.append)
    assert [t.stage for t in told if t.fraction == 1.0] == ["Training plan"] * 2 + ["Training action"] * 2 + [
        "Training reflect"
    ] * 2
    yield out, done


def tensors(adapter: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return dict(load_file(adapter / WEIGHTS))


def test_a_batch_ends_with_its_answers() -> None:
    found = [Example([1, 2, 3, 9], 2), Example([4, 5, 6, 7, 8, 9], 1)]
    batch = collate([{"input_ids": e.ids, "answer": e.answer} for e in found])
    assert batch["input_ids"].tolist() == [[0, 0, 1, 2, 3, 9], [4, 5, 6, 7, 8, 9]]
    assert batch["attention_mask"].tolist() == [[0, 0, 1, 1, 1, 1], [1] * 6]
    assert batch["position_ids"].tolist() == [[0, 0, 0, 1, 2, 3], [0, 1, 2, 3, 4, 5]]
    assert batch["labels"].tolist() == [[IGNORED, 3, 9], [IGNORED, IGNORED, 9]]
    assert batch["logits_to_keep"] == 3


def test_filling_up_changes_no_loss(model: Path) -> None:
    cpu_shims.mend_torchvision()
    from transformers import AutoModelForCausalLM

    backbone = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    found = [Example(list(range(10, 16)), 2), Example(list(range(20, 33)), 3)]
    rows = [{"input_ids": e.ids, "answer": e.answer} for e in found]
    with torch.no_grad():
        both = float(backbone(**collate(rows)).loss)
        alone = [float(backbone(**collate([row])).loss) for row in rows]
        plain = torch.tensor([found[1].ids])
        whole = backbone(input_ids=plain).logits.log_softmax(-1)[0]
    assert both == pytest.approx((2 * alone[0] + 3 * alone[1]) / 5, abs=1e-5)
    want = -sum(float(whole[j - 1, found[1].ids[j]]) for j in (10, 11, 12)) / 3
    assert alone[1] == pytest.approx(want, abs=1e-5)


def test_roles_learn(trained: tuple[Path, list[TrainedRole]]) -> None:
    out, done = trained
    assert [t.role for t in done] == list(ROLES)
    for role in done:
        assert len(role.losses) == 12  # 6 epochs of 8 pairs, 4 a step
        assert sum(role.losses[-3:]) < 0.7 * sum(role.losses[:3])
        config = json.loads((out / role.role / "adapter_config.json").read_text())
        assert (config["r"], config["lora_alpha"]) == (4, 16)
        assert sorted(config["target_modules"]) == ["q_proj", "v_proj"]
    assert (out / "losses.svg").read_text().count("<svg") == 1
    assert not (out / ".unfinished").exists()


def test_a_shared_a_is_equal_bit_by_bit_and_nothing_else_is(trained: tuple[Path, list[TrainedRole]]) -> None:
    out, _ = trained
    plan, action = tensors(out / "plan"), tensors(out / "action")
    assert share(out / "plan", out / "action") and share(out / "plan", out / "reflect")
    same = {name for name in plan if torch.equal(plan[name], action[name])}
    assert same == {name for name in plan if "v_proj.lora_A" in name}


def test_what_is_done_is_not_done_again(
    model: Path, pairs: dict[str, list[Pair]], trained: tuple[Path, list[TrainedRole]]
) -> None:
    out, done = trained
    before = (out / "plan" / WEIGHTS).stat().st_mtime_ns
    again = train_roles(model, pairs, out, RECIPE, shared_a=True, device="cpu", plot=False)
    assert again == done
    assert (out / "plan" / WEIGHTS).stat().st_mtime_ns == before
    other = Recipe(epochs=6, batch_size=4, micro_batch=2, learning_rate=1e-2, rank=4)
    with pytest.raises(TrainingError, match=r"trained otherwise \(learning_rate 0.02, now 0.01\)"):
        train_roles(model, pairs, out, other, shared_a=True, device="cpu", plot=False)
    with pytest.raises(TrainingError, match="with or without a shared A"):
        train_roles(model, pairs, out, RECIPE, device="cpu", plot=False)
    fewer = {"plan": pairs["plan"][:-1]}
    with pytest.raises(TrainingError, match="with other pairs"):
        train_roles(model, fewer, out, RECIPE, device="cpu", plot=False)
    (out / "mine").mkdir()
    with pytest.raises(TrainingError, match="not made by train-roles"):
        train_roles(model, {"mine": pairs["plan"]}, out, RECIPE, device="cpu", plot=False)
    (out / "mine").rmdir()


def test_a_cut_run_ends_as_a_whole_one(
    model: Path, pairs: dict[str, list[Pair]], trained: tuple[Path, list[TrainedRole]], tmp_path: Path
) -> None:
    from transformers import TrainerCallback

    class Cut(TrainerCallback):  # type: ignore[misc]
        steps = 0

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.steps += 1
            if self.steps == 7:
                raise KeyboardInterrupt

    whole, _ = trained
    roles = {role: pairs[role] for role in ("plan", "action")}
    arguments: dict[str, Any] = {"shared_a": True, "device": "cpu", "plot": False, "checkpoint_steps": 5}
    with pytest.raises(KeyboardInterrupt):
        train_roles(model, roles, tmp_path, RECIPE, callbacks=[Cut()], **arguments)
    assert not (tmp_path / "plan").exists()
    counted = Cut()
    counted.steps = 100  # never at 7 again
    train_roles(model, roles, tmp_path, RECIPE, callbacks=[counted], **arguments)
    assert counted.steps == 100 + 7 + 12  # plan from its fifth step on, amid an epoch, and action
    for role in roles:
        one, other = tensors(whole / role), tensors(tmp_path / role)
        assert all(torch.equal(one[name], other[name]) for name in one)
