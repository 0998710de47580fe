"""The schemes on the real small model, in a real scheduler: definitions in torch, and recorded answers.

`tests/engine/test_lora_engine.py` has `base_lr` through the public API.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flashagents_runtime.model_store import resolve_model
from helpers.lora_adapters import make_adapter
from helpers.lora_reference import Backbone, Context
from helpers.sharing_harness import SharingHarness

pytestmark = [pytest.mark.engine, pytest.mark.fetch, pytest.mark.timeout(600)]

ROLES = ("plan", "act", "reflect")
NOISE = 1e-3
RECORD = Path(__file__).parents[1] / "fixtures" / "lora_greedy.json"
"""Greedy answers by scheme and role; the second best token was nowhere nearer than 0.02."""
TEXT = (
    "The town hall wants a small park beside the old mill. There is room for forty trees, a pond and two "
    "paths. Children asked for a swing, their grandparents for benches in the shade. The money is enough for "
    "half of it, and winter begins in six weeks. What should be"
)


@pytest.fixture(scope="module")
def backbone(model: Path) -> Path:
    """The real one; when it is asked for SGLang has been set up, with its warnings, by the tiny one."""
    return resolve_model(None)


@pytest.fixture(scope="module")
def adapters(models: Path, backbone: Path) -> dict[str, Path]:
    sizes = {"size_a": 1 / 24, "size_b": 0.08}
    return {
        name: make_adapter(models, backbone, f"real-{name}", shared_a="real", alpha=8 * 2**i, **sizes)  # type: ignore[arg-type]
        for i, name in enumerate(ROLES)
    }


@pytest.mark.parametrize("scheme", ["none", "full", "base", "base_lr", "precomputed"])
def test_roles_of_the_real_model_answer_as_defined_and_as_recorded(
    backbone: Path, adapters: dict[str, Path], scheme: str
) -> None:
    """`plan` reads a context; the others read it in the cache, and what they are told besides."""
    from tokenizers import Tokenizer

    text = Tokenizer.from_file(str(backbone / "tokenizer.json")).encode(TEXT).ids
    # Tails part at once: who went on with another one's tokens would read that one's rows afterwards.
    context, tails = text[:50], {"plan": [], "act": text[50:56], "reflect": text[52:]}
    reference, shared = Backbone(backbone, adapters, scheme), Context()
    answers: dict[str, Any] = {}
    with SharingHarness(backbone, scheme, adapters, max_total_tokens=1024) as s:
        for name, tail in tails.items():
            got = s.ask(name, context + tail, 6, logprob_start_len=len(context) if tail else 0)
            own = shared.cut(len(context)) if tail and scheme != "none" else shared if not tail else Context()
            new = tail if own.tokens else context + tail
            want = reference.serve(own, new, name, 6)
            assert got.cached == (len(context) if tail and scheme not in ("none", "base") else 0)
            assert max(abs(a - b) for a, b in zip(got.logprobs, want.outputs, strict=True)) < NOISE
            assert got.ids == want.ids
            answers[name] = got.ids
    assert answers == json.loads(RECORD.read_text())[scheme]
