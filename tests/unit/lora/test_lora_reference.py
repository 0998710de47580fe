"""The definitions that the engine is tested against agree with each other where they must."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.lora_adapters import make_adapter
from helpers.lora_reference import Backbone, Context, Scores
from helpers.scheduler_harness import tiny_model

pytestmark = pytest.mark.long

CONTEXT = [(7 * j) % 490 + 4 for j in range(40)]
SUFFIX = [5, 9, 200, 31]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Path]]:
    folder = tmp_path_factory.mktemp("reference")
    model = tiny_model(folder)
    names = ("plan", "act")
    return model, {n: make_adapter(folder, model, n, shared_a="team", size_a=0.1) for n in names}


def serve(made: tuple[Path, dict[str, Path]], scheme: str, recompute: int = 0, *, alone: bool) -> Scores:
    """`act` goes on from a context of its own, or of `plan`."""
    backbone = Backbone(*made, scheme)
    backbone.recompute = recompute
    context = Context()
    backbone.serve(context, CONTEXT, "act" if alone else "plan", 0)
    return backbone.serve(context, SUFFIX, "act", 5)


def near(one: Scores, other: Scores) -> bool:
    pairs = zip(one.inputs + one.outputs, other.inputs + other.outputs, strict=True)
    return one.ids == other.ids and all(abs(a - b) < 1e-9 for a, b in pairs)


@pytest.mark.parametrize("scheme", ["full", "base", "base_lr", "precomputed", "droidspeak"])
def test_alone_nothing_is_approximated(made: tuple[Path, dict[str, Path]], scheme: str) -> None:
    own = serve(made, "none", alone=True)
    assert near(serve(made, scheme, alone=True), own)
    assert not near(serve(made, scheme, alone=False), own)


def test_base_lr_is_precomputed_with_one_a(made: tuple[Path, dict[str, Path]]) -> None:
    assert near(serve(made, "base_lr", alone=False), serve(made, "precomputed", alone=False))
    assert not near(serve(made, "base", alone=False), serve(made, "base_lr", alone=False))


def test_droidspeak_lies_between_full_and_none(made: tuple[Path, dict[str, Path]]) -> None:
    assert near(serve(made, "droidspeak", 0, alone=False), serve(made, "full", alone=False))
    assert near(serve(made, "droidspeak", 2, alone=False), serve(made, "none", alone=True))
    part = serve(made, "droidspeak", 1, alone=False)
    assert not near(part, serve(made, "full", alone=False))
