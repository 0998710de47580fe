"""The example's pairs, and its way from arguments to a table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flashagents_runtime.role_training import Recipe, TrainedRole
from helpers.examples import load_example


def test_the_pairs_leave_one_note_out() -> None:
    example = load_example("train_role_adapters")
    pairs = example.make_pairs(300)
    asked = example.note(example.THINGS[-1], example.PLACES[-1])
    assert {role: len(found) for role, found in pairs.items()} == dict.fromkeys(example.ANSWERS, 300)
    assert all(pair.input != asked for found in pairs.values() for pair in found)
    assert pairs == example.make_pairs(300)


def test_it_trains_with_a_shared_a(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    example = load_example("train_role_adapters")
    seen: dict[str, Any] = {}

    def train(model: Path, roles: Any, out: Path, recipe: Recipe, **kwargs: Any) -> list[TrainedRole]:
        seen.update(kwargs, roles=roles)
        return [
            TrainedRole(role=r, recipe=recipe, pairs=len(p), digest="", losses=[2.0, 0.5])
            for r, p in roles.items()
        ]

    monkeypatch.setattr(example, "train_roles", train)
    monkeypatch.setattr(example, "resolve_model", lambda name, progress: tmp_path)
    example.main(["--out", str(tmp_path), "--pairs", "4", "--no-engine"])
    assert seen["shared_a"] is True
    assert [len(p) for p in seen["roles"].values()] == [4, 4, 4]
    assert "critic: loss 2.00 at the first step, 0.50 at the last" in capsys.readouterr().out
