"""Role agents on the real small model: an engine with `lora_sharing="base_lr"`, through its public API."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from flashagents_autogen import FlashAgentsChatCompletionClient
from flashagents_autogen.teams.timeline import same_texts
from flashagents_runtime.embedded import EmbeddedEngine
from flashagents_runtime.errors import (
    EngineStartError,
    ModelIntegrityError,
    UnknownAdapterError,
    UnsupportedFeatureError,
)
from flashagents_runtime.handoff import Prefiller
from flashagents_runtime.types import GenerateRequest, SamplingParams
from helpers.examples import load_example
from helpers.lora_adapters import make_adapter
from helpers.lora_reference import Backbone, Context, Scores

ROLES = ("plan", "act", "reflect")
SIZES = {"size_a": 1 / 24, "size_b": 0.02}
NOISE = 1e-3


def role(folder: Path, model: str, name: str, **kwargs: Any) -> Path:
    return make_adapter(folder, Path(model), name, **{"shared_a": "team", **SIZES, **kwargs})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("adapters")


@pytest.fixture(scope="module")
def adapters(folder: Path, model_path: str) -> dict[str, Path]:
    return {name: role(folder, model_path, name, alpha=8 * 2**i) for i, name in enumerate(ROLES)}


@pytest.fixture(scope="module")
def engine(model_path: str, adapters: dict[str, Path]) -> Iterator[EmbeddedEngine]:
    """One engine for this file; its members, and a place for one that comes later."""
    engine = EmbeddedEngine(
        model_path,
        lora_paths={name: str(path) for name, path in adapters.items()},
        lora_sharing="base_lr",
        lora_groups={"team": [*ROLES, "late"]},
        max_total_tokens=4096,
    )
    asyncio.run(engine.start())
    yield engine
    asyncio.run(engine.close())


@pytest.fixture(scope="module")
def text(model_path: str) -> list[int]:
    from tokenizers import Tokenizer

    words = "Plan a day in Paris for two friends who like museums, bread and long walks by the river. "
    ids: list[int] = Tokenizer.from_file(str(Path(model_path) / "tokenizer.json")).encode(words * 4).ids
    return ids


async def ask(engine: EmbeddedEngine, lora: str | None, ids: list[int], n: int = 6) -> tuple[Any, Any]:
    """Greedy tokens, their log-probs and the result."""
    sampling = SamplingParams(max_new_tokens=n, temperature=0, ignore_eos=True)
    request = GenerateRequest(input_ids=ids, sampling=sampling, lora=lora, logprobs=True)
    pieces, result = [], None
    async for delta in engine.generate(request):
        pieces += delta.logprobs or []
        result = delta.result
    return pieces, result


def assert_is(pieces: list[Any], want: Scores) -> None:
    assert [p.token_id for p in pieces] == want.ids
    assert max(abs(p.logprob - x) for p, x in zip(pieces, want.outputs, strict=True)) < NOISE


async def test_roles_share_by_the_schemes_definition(
    engine: EmbeddedEngine, model_path: str, adapters: dict[str, Path], text: list[int]
) -> None:
    assert await engine.flush_cache()
    assert engine.info is not None
    assert {"lora", "lora_sharing", "lora_sharing=base_lr"} <= set(engine.info.features)
    reference = Backbone(Path(model_path), adapters, "base_lr")
    context, cache = text[:60], Context()

    pieces, result = await ask(engine, "plan", context)
    assert result.usage.cached_tokens == 0
    assert_is(pieces, reference.serve(cache, context, "plan", 6))
    for name in ("act", "reflect"):
        tail = text[60:66] if name == "act" else text[66:72]
        pieces, result = await ask(engine, name, context + tail)
        assert result.usage.cached_tokens == 60
        assert_is(pieces, reference.serve(cache.cut(60), tail, name, 6))
    _, result = await ask(engine, None, context)  # the model itself is no member
    assert result.usage.cached_tokens == 0


async def test_adapters_come_and_go(
    engine: EmbeddedEngine, model_path: str, folder: Path, text: list[int]
) -> None:
    assert await engine.flush_cache()
    with pytest.raises(UnsupportedFeatureError, match="'late' does not fit its sharing group 'team'"):
        await engine.load_lora("late", role(folder, model_path, "misfit", shared_a=None))
    with pytest.raises(UnknownAdapterError, match="no LoRA adapter 'late'; it has") as caught:
        await ask(engine, "late", text[:20])
    assert set(caught.value.loaded) == set(ROLES)
    await engine.load_lora("late", role(folder, model_path, "late"))
    first, _ = await ask(engine, "late", text[:60])
    _, result = await ask(engine, "act", text[:60])
    assert result.usage.cached_tokens == 59
    await engine.unload_lora("late")
    await engine.load_lora("late", role(folder, model_path, "late", version=2))
    second, result = await ask(engine, "late", text[:60])
    assert result.usage.cached_tokens == 0  # `late` had written it
    assert [p.logprob for p in first] != [p.logprob for p in second]
    await engine.unload_lora("late")
    with pytest.raises(UnknownAdapterError, match="no LoRA adapter 'late'"):
        await engine.unload_lora("late")
    state = await engine.internal_state()
    sharing = state["flashagents"]["features"]["lora_sharing"]
    assert sharing["loaded"] == list(ROLES)
    assert sharing["token_bytes_rows"] * 3 * 64 * 2 == sharing["token_bytes_kv"] * 8  # r / (2 Hkv d)


async def test_adapters_come_as_tensors(
    engine: EmbeddedEngine,
    model_path: str,
    folder: Path,
    text: list[int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is sent is what the folder would be, is held to its group, and leaves no files behind."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    path = role(folder, model_path, "sent", version=3)
    tensors = load_file(path / "adapter_model.safetensors")
    config = json.loads((path / "adapter_config.json").read_text())
    answers = []
    for how in ("folder", "tensors"):
        assert await engine.flush_cache()
        if how == "folder":
            await engine.load_lora("late", path)
        else:
            await engine.load_lora_tensors(
                "late", tensors, {**config, "target_modules": {"q_proj", "v_proj"}}
            )
        answers.append((await ask(engine, "late", text[:60]))[0])
        _, result = await ask(engine, "act", text[:60])
        assert result.usage.cached_tokens == 59
        await engine.unload_lora("late")
    assert answers[0] == answers[1]

    misfit = load_file(role(folder, model_path, "misfit", shared_a=None) / "adapter_model.safetensors")
    with pytest.raises(UnsupportedFeatureError, match="'late' does not fit its sharing group 'team'"):
        await engine.load_lora_tensors("late", misfit, config)
    broken = {name: tensor * float("nan") for name, tensor in tensors.items()}
    with pytest.raises(ModelIntegrityError, match=r"'late': tensor .* holds NaN"):
        await engine.load_lora_tensors("late", broken, config)
    assert os.listdir(tmp_path) == []
    _, result = await ask(engine, "act", text[:20])
    assert result.finish_reason == "length"


async def test_a_chunk_warmed_for_one_role_serves_the_others(engine: EmbeddedEngine, text: list[int]) -> None:
    assert await engine.flush_cache()
    prefiller = Prefiller(engine, chunk_size=16)
    session = prefiller.open(lora="act")
    session.extend(text[:64])
    session.flush(always=True)
    await session.settle()
    for name in ("plan", "reflect"):
        _, result = await ask(engine, name, [*text[:64], 7], 1)
        assert result.usage.cached_tokens == 64
    request = GenerateRequest(input_ids=[*text[:64], 8], sampling=SamplingParams(max_new_tokens=1))
    async for delta in session.generate(request):
        if delta.result is not None:
            assert delta.result.usage.prewarmed_tokens == 64
    await prefiller.close()


async def test_clients_speak_through_roles(engine: EmbeddedEngine) -> None:
    from autogen_core.models import UserMessage

    assert await engine.flush_cache()
    message = [
        UserMessage(content="Name three sights of Paris, and say why one should see them.", source="user")
    ]
    cached = []
    for name in ROLES:
        client = FlashAgentsChatCompletionClient(engine=engine, lora=name, max_tokens=4, temperature=0)
        await client.create(message)
        cached.append(client.usage.cached_tokens)
        await client.close()
    assert cached[0] == 0
    assert cached[1] == cached[2]
    assert cached[1]


async def test_the_example_says_the_same_with_overlap(engine: EmbeddedEngine) -> None:
    example = load_example("role_agents")
    assert example.ROLES == ROLES
    runs = {}
    for overlap in (False, True):
        runs[str(overlap)] = await example.converse(engine, overlap=overlap, rounds=2, max_tokens=8)
    assert same_texts(runs)
    off, on = runs.values()
    assert [turn.agent for turn in on] == list(ROLES) * 2
    assert sum(turn.prewarmed_tokens for turn in off) == 0
    assert all(turn.prewarmed_tokens > 0 for turn in on[1:])
    # One transcript in one cache: whoever comes next finds all but what the last one has said.
    for before, turn in itertools.pairwise(off):
        assert turn.cached_tokens >= before.prompt_tokens - 8


async def test_what_cannot_be_had_ends_the_start(
    model_path: str, adapters: dict[str, Path], folder: Path
) -> None:
    paths = {name: str(path) for name, path in adapters.items()}
    with pytest.raises(ValueError, match="lora_sharing must be one of"):  # before anything starts
        EmbeddedEngine(model_path, lora_paths=paths, lora_sharing="best")
    paths["other"] = str(role(folder, model_path, "other", shared_a=None))
    engine = EmbeddedEngine(model_path, lora_paths=paths, lora_sharing="base_lr")
    with pytest.raises(EngineStartError, match="'other' does not fit its sharing group 'agents'"):
        await engine.start()
    await engine.close()
