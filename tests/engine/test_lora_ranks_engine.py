"""Role agents on an engine of two ranks, each a process of its own, through the public API."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flashagents_runtime.embedded import EmbeddedEngine
from flashagents_runtime.errors import UnsupportedFeatureError
from flashagents_runtime.handoff import Prefiller
from flashagents_runtime.types import GenerateRequest, SamplingParams
from helpers.lora_adapters import make_adapter
from helpers.lora_reference import Backbone, Context, Scores
from helpers.tiny_roles import tiny_text_model

ROLES = ("plan", "act", "reflect")
CONTEXT = [(7 * j) % 490 + 4 for j in range(144)]
NOISE = 2e-4


def role(model: Path, name: str, **kwargs: Any) -> Path:
    return make_adapter(model.parent, model, name, **{"shared_a": "team", "size_a": 0.1, **kwargs})


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_text_model(tmp_path_factory.mktemp("ranks"))


@pytest.fixture(scope="module")
def adapters(model: Path) -> dict[str, Path]:
    return {name: role(model, name, alpha=8 * 2**i) for i, name in enumerate(ROLES)}


@pytest.fixture(scope="module")
def engine(model: Path, adapters: dict[str, Path]) -> Iterator[EmbeddedEngine]:
    """Under `base`, which asks most of its ranks: who has seen what must be the same in all."""
    engine = EmbeddedEngine(
        str(model),
        tp_size=2,
        dtype="float32",
        lora_paths={name: str(path) for name, path in adapters.items()},
        lora_sharing="base",
        lora_groups={"team": [*ROLES, "late"]},
        max_total_tokens=2048,
        chunked_prefill_size=64,
    )
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("FLASHAGENTS_CHECK", "1")
        asyncio.run(engine.start())
    yield engine
    asyncio.run(engine.close())


async def ask(engine: EmbeddedEngine, lora: str | None, ids: list[int], n: int = 6) -> tuple[Scores, int]:
    """A greedy answer, and how many tokens of the prompt were cached."""
    sampling = SamplingParams(max_new_tokens=n, temperature=0, ignore_eos=True)
    request = GenerateRequest(input_ids=ids, sampling=sampling, lora=lora, logprobs=True)
    scores, cached = Scores([], [], []), 0
    async for delta in engine.generate(request):
        scores.ids += [piece.token_id for piece in delta.logprobs or []]
        scores.outputs += [piece.logprob for piece in delta.logprobs or []]
        if delta.result is not None:
            cached = delta.result.usage.cached_tokens
    return scores, cached


def assert_is(got: Scores, want: Scores) -> None:
    assert got.ids == want.ids
    assert max(abs(a - b) for a, b in zip(got.outputs, want.outputs, strict=True)) < NOISE


async def figures(engine: EmbeddedEngine) -> dict[str, Any]:
    found: dict[str, Any] = (await engine.internal_state())["flashagents"]["features"]["lora_sharing"]
    return found


async def test_roles_share_by_the_definition_over_two_ranks(
    engine: EmbeddedEngine, model: Path, adapters: dict[str, Path]
) -> None:
    reference, cache = Backbone(model, adapters, "base"), Context()
    first, cached = await ask(engine, "plan", CONTEXT)
    assert cached == 0
    assert_is(first, reference.serve(cache, CONTEXT, "plan", 6))
    tails = {"plan": [7, 8, 9], "act": [17, 18], "reflect": [27, 28, 29, 30]}
    together = await asyncio.gather(*(ask(engine, name, CONTEXT + tail) for name, tail in tails.items()))
    for (name, tail), (got, cached) in zip(tails.items(), together, strict=True):
        assert cached == (len(CONTEXT) if name == "plan" else 0)  # the others catch up
        assert_is(got, reference.serve(cache.cut(len(CONTEXT)), tail, name, 6))
    for name in ROLES:
        _, cached = await ask(engine, name, [*CONTEXT, 99], 1)
        assert cached == len(CONTEXT)
    alone, cached = await ask(engine, None, CONTEXT)
    assert cached == 0
    assert_is(alone, Backbone(model, {}, "none").serve(Context(), CONTEXT, None, 6))
    found = await figures(engine)
    assert found["ranks"] == 2
    assert found["token_bytes_kv"] == 2 * 2 * 1 * 16 * 4  # layers, K and V, one of two heads, its size, fp32
    assert found["token_bytes_rows"] == 2 * 4 * 8 * 4  # layers, members, rank, fp32: all of them
    assert found["caught_up_tokens"] == 2 * (len(CONTEXT) + 1)  # the 99 too: `plan` had it first


async def test_adapters_come_and_go_in_all_ranks(engine: EmbeddedEngine, model: Path) -> None:
    assert await engine.flush_cache()
    misfit = role(model, "misfit", targets=("q_proj", "k_proj", "v_proj"))
    with pytest.raises(UnsupportedFeatureError, match="'late' does not fit its sharing group 'team'"):
        await engine.load_lora("late", misfit)
    scores = []
    for version in (0, 2):
        late = role(model, "late", version=version)
        await engine.load_lora("late", late)
        got, cached = await ask(engine, "late", CONTEXT)
        assert cached == 0  # what its predecessor wrote has gone
        want = Backbone(model, {"late": late}, "base").serve(Context(), CONTEXT, "late", 6)
        assert_is(got, want)
        scores.append(got)
        await ask(engine, "act", [*CONTEXT, 5])
        await engine.unload_lora("late")
    assert scores[0].outputs != scores[1].outputs
    found = await figures(engine)
    assert found["loaded"] == list(ROLES)
    assert found["dropped_tokens"] > 0


async def test_a_session_warms_a_role_in_all_ranks(engine: EmbeddedEngine) -> None:
    """Pins and the budget beside shared rows: a rank that decided otherwise would have ended the engine."""
    assert await engine.flush_cache()
    prefiller = Prefiller(engine, chunk_size=16)
    session = prefiller.open(lora="act")
    busy = asyncio.create_task(ask(engine, "plan", [3, *CONTEXT], 40))
    prompt = [*CONTEXT, *range(100, 140)]
    for start in range(0, len(prompt), 20):
        session.extend(prompt[start : start + 20])
        await asyncio.sleep(0.05)
    session.flush()
    await session.settle()
    sampling = SamplingParams(max_new_tokens=6, temperature=0, ignore_eos=True)
    async for delta in session.generate(GenerateRequest(input_ids=prompt, sampling=sampling, lora="act")):
        last = delta
    assert last.result is not None and last.result.usage.cached_tokens == len(prompt) - 1
    await busy
    await prefiller.close()
    state = (await engine.internal_state())["flashagents"]["features"]
    assert state["soft_pins"]["active"] and state["warmup_budget"]["chunks"]
