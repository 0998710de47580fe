"""lora_sharing over tensor-parallel ranks: they answer as one rank does, and agree after every step.

`RankedHarness` compares the ranks' batches, outputs, trees, free slots and figures after each step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from flashagents_runtime.errors import SeamError
from helpers.lora_adapters import make_adapter
from helpers.lora_reference import Backbone, Context
from helpers.ranks import RankedHarness, Ranks
from helpers.scheduler_harness import tiny_model
from helpers.sharing_harness import Answer, SharingHarness

pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore:.torch.distributed.all_gather_into_tensor:FutureWarning"),
]

SCHEMES = ["full", "base_lr", "precomputed", "base"]
CONTEXT = [(7 * j) % 490 + 4 for j in range(144)]
SUFFIX = [(11 * j) % 480 + 9 for j in range(30)]
NOISE = 2e-5
"""Largest difference of log-probs in fp32 between one rank and two; 4e-6 was seen."""
OF_DEFINITION = 2e-4
"""The same from a definition, as in test_lora_schemes.py."""


@pytest.fixture(scope="module")
def ranks(model: Path) -> Iterator[Ranks]:  # once `model` has SGLang imported here
    with Ranks(2) as ranks:
        yield ranks


def roles(models: Path, model: Path) -> dict[str, Path]:
    """Three members with one A and different scalings, and one that belongs to no group."""
    folder = models / f"roles-of-{model.name}"
    members = {
        name: make_adapter(folder, model, name, alpha=alpha, shared_a="team", size_a=0.1)
        for name, alpha in (("plan", 16), ("act", 8), ("reflect", 32))
    }
    return {**members, "stranger": make_adapter(folder, model, "stranger", rank=4)}


GROUPS = {"team": ["plan", "act", "reflect"]}


def far(one: Sequence[float], other: Sequence[float]) -> float:
    return max((abs(a - b) for a, b in zip(one, other, strict=True)), default=0.0)


def assert_near(got: Answer, want: Answer) -> None:
    assert (got.ids, got.cached) == (want.ids, want.cached)
    assert far(got.logprobs, want.logprobs) <= NOISE
    assert far(got.input_logprobs, want.input_logprobs) <= NOISE


def conversation(s: SharingHarness) -> dict[str, Answer]:
    """A context in chunks, who reads it from the cache, all in one batch, and all at once on a cold cache."""
    found = {"first": s.ask("plan", CONTEXT, 6, logprob_start_len=0)}
    found["second"] = s.ask("act", CONTEXT + SUFFIX, 6, logprob_start_len=len(CONTEXT))
    everyone = [*GROUPS["team"], "stranger", None]
    for turn, context in (("warm", CONTEXT), ("cold", CONTEXT[::-1])):
        for i, name in enumerate(everyone):
            ids = [*context, *SUFFIX[i : i + 9]]
            s.submit(s.request(f"{turn}-{name}", name, ids, 6, logprob_start_len=len(context)))
        s.run()
        found |= {f"{turn}-{name}": s.answer(f"{turn}-{name}") for name in everyone}
    return found


@pytest.mark.parametrize(("kv_heads", "page_size"), [(2, 1), (1, 16)], ids=["cut", "replicated"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_two_ranks_answer_as_one(
    ranks: Ranks, models: Path, scheme: str, kv_heads: int, page_size: int
) -> None:
    """KV heads are cut, or where there are fewer than ranks replicated."""
    model = tiny_model(models, kv_heads=kv_heads)
    adapters = roles(models, model)
    arguments: dict[str, Any] = {"chunked_prefill_size": 64, "page_size": page_size}
    with SharingHarness(model, scheme, adapters, GROUPS, **arguments) as s:
        want = conversation(s)
    with RankedHarness(ranks, model, scheme, adapters, GROUPS, pads=kv_heads == 2, **arguments) as s:
        got = conversation(s)
        figures = s.figures
        if scheme != "full":
            first, second = s.rows()
            assert first.any()
            assert torch.equal(first, second)
    for name, answer in got.items():
        assert_near(answer, want[name])
    assert got["second"].cached == (0 if scheme == "base" else len(CONTEXT))
    if scheme == "full":
        return
    # Two layers, K and V, a head of 16 and a row of 8 for each set, fp32: a rank has one KV head either way.
    assert figures["ranks"] == 2
    assert figures["token_bytes_kv"] == 2 * 2 * 1 * 16 * 4
    assert figures["token_bytes_rows"] == 2 * figures["sets"] * 8 * 4


@pytest.mark.parametrize("scheme", SCHEMES)
def test_two_ranks_share_by_the_definition(ranks: Ranks, models: Path, scheme: str) -> None:
    model = tiny_model(models)
    adapters = {name: path for name, path in roles(models, model).items() if name != "stranger"}
    reference, cache = Backbone(model, adapters, scheme), Context()
    with RankedHarness(ranks, model, scheme, adapters, chunked_prefill_size=64) as s:
        s.ask("plan", CONTEXT, 1, logprob_start_len=None)
        reference.serve(cache, CONTEXT, "plan", 1)
        for name in ("act", "reflect"):
            got = s.ask(name, CONTEXT + SUFFIX, 8, logprob_start_len=len(CONTEXT))
            own = cache.cut(len(CONTEXT))
            want = reference.serve(own, SUFFIX, name, 8)
            assert got.ids == want.ids
            assert far(got.logprobs, want.outputs) <= OF_DEFINITION
            assert far(got.input_logprobs[-len(want.inputs) :], want.inputs) <= OF_DEFINITION
            s.flush()
            s.ask("plan", CONTEXT, 1, logprob_start_len=None)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_ranks_forget_alike(ranks: Ranks, models: Path, scheme: str) -> None:
    """Members that come, do not fit and go, also under running requests, and a pool that is too small."""
    model = tiny_model(models)
    adapters = roles(models, model)
    late = make_adapter(models, model, "late", shared_a="team", size_a=0.1)
    misfit = make_adapter(models, model, "misfit-o", targets=("q_proj", "v_proj", "o_proj"))
    groups = {"team": [*GROUPS["team"], "late"]}
    arguments: dict[str, Any] = {
        "max_total_tokens": 700,
        "chunked_prefill_size": 64,
        "max_loras_per_batch": 3,
        "max_lora_rank": 8,
        "lora_target_modules": {"q_proj", "v_proj", "o_proj"},
    }
    found = []
    for tp in (1, 2):
        s: SharingHarness = (
            SharingHarness(model, scheme, adapters, groups, **arguments)
            if tp == 1
            else RankedHarness(ranks, model, scheme, adapters, groups, **arguments)
        )
        with s:
            if scheme != "full":
                assert not s.load("late", misfit).success
            assert s.load("late", late).success
            for i in range(6):
                for name in ("plan", "act", "late"):
                    ids = [*CONTEXT[: 100 - 10 * i], i + 9, *SUFFIX]
                    s.submit(s.request(f"{i}-{name}", name, ids, 8, logprob_start_len=None))
                for _ in range(i):
                    s.step()
                if i == 3:
                    s.abort("3-act")
            s.run()
            assert s.unload("act").success  # with nothing in its way
            s.ask("plan", CONTEXT[::-1], 1, logprob_start_len=None)
            s.submit(s.request("held", "late", [*CONTEXT[::-1], 7], 8, logprob_start_len=None))
            s.step()
            assert s.unload("plan").success
            s.run()
            assert s.load("act", adapters["act"]).success
            s.ask("act", CONTEXT, 8, logprob_start_len=None)
            figures = {
                name: s.figures[name] for name in ("loaded", "refused", "dropped_tokens", "new_namespaces")
            }
            found.append((figures, {rid: list(req.output_ids) for rid, req in s.reqs.items()}))
    assert found[0] == found[1]
    assert found[0][0]["dropped_tokens"] > 0
    assert found[0][0]["new_namespaces"] > 0


@pytest.mark.parametrize(("scheme", "sets"), [("full", 0), ("base_lr", 1), ("precomputed", 3), ("base", 3)])
def test_a_ranks_pool_shrinks_by_all_rows(ranks: Ranks, models: Path, scheme: str, sets: int) -> None:
    from sglang.srt.model_executor.pool_configurator import DefaultPoolConfigurator

    model = tiny_model(models)
    with RankedHarness(ranks, model, scheme, roles(models, model), GROUPS) as s:
        runner = s.scheduler.tp_worker.model_runner
        token = 2 * 2 * 1 * 16 * 4 + sets * 2 * 8 * 4
        pool = DefaultPoolConfigurator(runner.kv_cache_configurator).calculate_pool_sizes(1_000_000, 1)
        assert pool.max_total_num_tokens == 1_000_000 // token


def test_heads_that_sglang_adds_on_a_cpu_are_refused(ranks: Ranks, models: Path) -> None:
    """Its own LoRA dies of them at the first request."""
    model = tiny_model(models, kv_heads=1)
    with pytest.raises(SeamError, match="pads the model's num_attention_heads from 4 to 8"):
        RankedHarness(ranks, model, "full", roles(models, model), GROUPS)


@pytest.mark.parametrize(
    "argument",
    [{"lora_drain_wait_threshold": 1.0}, {"enable_lora_overlap_loading": True, "max_loaded_loras": 9}],
)
def test_what_ranks_would_decide_differently_is_refused(
    ranks: Ranks, models: Path, argument: dict[str, Any]
) -> None:
    model = tiny_model(models)
    name = next(iter(argument))
    with pytest.raises(SeamError, match=f"{name}=.* with tp_size=2: its ranks would decide differently"):
        RankedHarness(ranks, model, "base_lr", roles(models, model), GROUPS, **argument)
