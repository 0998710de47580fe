"""The schemes against stock SGLang and against their definitions in torch, in a real scheduler."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from flashagents_runtime.intra_turn import check_integrity
from flashagents_runtime.lora_sharing import contiguous
from helpers.lora_adapters import make_adapter
from helpers.lora_reference import Backbone, Context, Scores
from helpers.sharing_harness import Answer, SharingHarness

pytestmark = pytest.mark.engine

SCHEMES = ["full", "base_lr", "precomputed", "base"]
CONTEXT = [(7 * j) % 490 + 4 for j in range(150)]
SUFFIX = [(11 * j) % 480 + 9 for j in range(30)]
NOISE = 2e-4
"""Largest difference of log-probs in fp32 that is rounding; an adapter changes them by more than 1."""


@pytest.fixture(scope="module")
def adapters(model: Path, models: Path) -> dict[str, Path]:
    """Three members with one A, different scalings and outputs that differ."""
    return {
        name: make_adapter(models, model, name, alpha=alpha, shared_a="team", size_a=0.1)
        for name, alpha in (("plan", 16), ("act", 8), ("reflect", 32))
    }


def far(one: Sequence[float], other: Sequence[float]) -> float:
    """The largest difference."""
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


def cached(scheme: str, tokens: int, *, seen: bool = False) -> int:
    """Tokens that a member finds of what another one has cached; under `base` it has to catch up."""
    return 0 if scheme == "base" and not seen else tokens


def assert_same(got: Answer, want: Answer | Scores, noise: float = NOISE) -> None:
    ids, outputs, inputs = (
        (want.ids, want.outputs, want.inputs)
        if isinstance(want, Scores)
        else (want.ids, want.logprobs, want.input_logprobs)
    )
    assert got.ids == ids
    assert far(got.logprobs, outputs) <= noise
    n = min(len(got.input_logprobs), len(inputs))
    assert n and far(got.input_logprobs[-n:], inputs[-n:]) <= noise


def test_none_is_stock_bit_by_bit(model: Path, adapters: dict[str, Path]) -> None:
    """Also where the hooks of an earlier scheduler are still in place."""
    answers = []
    with SharingHarness(model, "base_lr", adapters):
        pass
    for arguments in ({}, {"radix_cache_backend": None}):
        with SharingHarness(model, "none", adapters, chunked_prefill_size=64, **arguments) as s:
            answers.append([s.ask(name, CONTEXT + SUFFIX) for name in ("plan", "act", None, "plan")])
    for ours, stock in zip(*answers, strict=True):
        assert ours.ids == stock.ids
        assert ours.logprobs == stock.logprobs
        assert ours.input_logprobs == stock.input_logprobs
        assert ours.cached == stock.cached


Turns = dict[str | None, tuple[Answer, Answer]]


def two_turns(model: Path, adapters: dict[str, Path], scheme: str, page_size: int) -> Turns:
    """Of each member, and of the model itself, on an empty cache: a prompt in chunks, and its sequel."""
    turns: Turns = {}
    arguments = {"chunked_prefill_size": 64, "page_size": page_size}
    with SharingHarness(model, scheme, adapters, check=check_integrity, **arguments) as s:
        for name in (*adapters, None):
            s.flush()
            first = s.ask(name, CONTEXT, 12)
            known = CONTEXT + first.ids
            turns[name] = (first, s.ask(name, known + SUFFIX, 12, logprob_start_len=len(known)))
    return turns


@pytest.fixture(scope="module")
def stock_turns(model: Path, adapters: dict[str, Path]) -> Callable[[int], Turns]:
    """Those of stock SGLang by page size, asked once."""
    return functools.cache(lambda page_size: two_turns(model, adapters, "none", page_size))


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_an_agent_alone_is_stock(
    model: Path,
    adapters: dict[str, Path],
    stock_turns: Callable[[int], Turns],
    scheme: str,
    page_size: int,
) -> None:
    """On its own context nothing is approximated: prefill in chunks, decode, a second turn."""
    stock, found = stock_turns(page_size), two_turns(model, adapters, scheme, page_size)
    for name in (*adapters, None):
        for ours, theirs in zip(found[name], stock[name], strict=True):
            assert_same(ours, theirs)
            assert ours.cached == theirs.cached
        assert found[name][1].cached >= len(CONTEXT)


def attend_contiguous(
    q: Any, k: Any, v: Any, *, cu_seqlens_q: Any, cu_seqlens_k: Any, max_seqlen_q: int, max_seqlen_k: int,
    softmax_scale: float, causal: bool, softcap: float, out: Any,
) -> None:  # fmt: skip
    """FlashAttention 3's `flash_attn_varlen_func`, in torch."""
    assert causal and not softcap and k.is_contiguous() and v.is_contiguous()
    news, alls = cu_seqlens_q.tolist(), cu_seqlens_k.tolist()
    assert news[-1] == len(q) == len(out) and alls[-1] == len(k) == len(v)
    for (a, z), (c, e) in zip(pairwise(news), pairwise(alls), strict=True):
        assert z - a <= max_seqlen_q and e - c <= max_seqlen_k
        group = q.shape[1] // k.shape[1]
        keys, held = (t[c:e].repeat_interleave(group, 1) for t in (k, v))
        scores = torch.einsum("nhd,mhd->hnm", q[a:z], keys) * softmax_scale
        late = torch.arange(e - c)[None] > torch.arange(z - a)[:, None] + (e - c) - (z - a)
        out[a:z] = torch.einsum("hnm,mhd->nhd", scores.masked_fill(late, float("-inf")).softmax(-1), held)


@pytest.mark.parametrize("scheme", ["base_lr", "precomputed", "base"])
def test_joined_prefills_compute_the_same(
    model: Path,
    adapters: dict[str, Path],
    stock_turns: Callable[[int], Turns],
    scheme: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on a GPU that has FlashAttention 3: V with its low-rank part first, then attention without LoRA."""
    calls = []
    monkeypatch.setattr(
        contiguous,
        "kernel",
        lambda device, dim: lambda *args, **kw: (calls.append(kw), attend_contiguous(*args, **kw))[1],
    )
    monkeypatch.setattr(contiguous, "LEAST", 1)
    found = two_turns(model, adapters, scheme, 1)
    assert calls
    for name in (*adapters, None):
        for ours, theirs in zip(found[name], stock_turns(1)[name], strict=True):
            assert_same(ours, theirs)


def test_which_passes_are_joined() -> None:
    cache = torch.empty(1000, 8, 128, device="meta")
    assert contiguous.pays(512, 4, 700, cache)
    assert not contiguous.pays(511, 4, 700, cache)
    assert not contiguous.pays(2047, 4, 0, cache)  # without a prefix there is less to gain
    assert contiguous.pays(2048, 4, 0, cache)
    assert not contiguous.pays(4096, 4, 2001, cache)  # a shared prefix counts for each of its requests


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_members_share_as_the_scheme_says(
    model: Path, adapters: dict[str, Path], scheme: str, page_size: int
) -> None:
    """Each reads what the others have cached, prompts and answers, by the scheme's definition."""
    context = CONTEXT[:144]  # whole pages
    reference = Backbone(model, adapters, scheme)
    cache = Context()
    with SharingHarness(
        model, scheme, adapters, chunked_prefill_size=64, page_size=page_size, check=check_integrity
    ) as s:
        plan = s.ask("plan", context, 8, logprob_start_len=None)
        reference.serve(cache, context, "plan", 8)
        known = context + plan.ids[:-1]
        known = known[: len(known) // page_size * page_size]

        act = s.ask("act", context + SUFFIX, 10, logprob_start_len=len(context))
        assert act.cached == cached(scheme, len(context))
        act_cache = cache.cut(len(context))
        want = reference.serve(act_cache, SUFFIX, "act", 10)
        assert_same(act, want)

        rest = (context + plan.ids)[len(known) :] + SUFFIX[:20]
        reflect = s.ask("reflect", known + rest, 10, logprob_start_len=len(known))
        assert reflect.cached == cached(scheme, len(known))
        assert_same(reflect, reference.serve(cache.cut(len(known)), rest, "reflect", 10))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_one_batch_of_all(model: Path, adapters: dict[str, Path], scheme: str) -> None:
    """Members on a shared context, another adapter and the model itself, decoded in one batch."""
    reference = Backbone(model, adapters, scheme)
    cache = Context()
    other = make_adapter(adapters["plan"].parent, model, "stranger", rank=4)
    everyone = {**adapters, "stranger": other}
    tails = {name: SUFFIX[i : i + 12] for i, name in enumerate([*everyone, None])}
    with SharingHarness(model, "none", everyone) as s:
        stock = {name: s.ask(name, CONTEXT + tails[name], 8) for name in ("stranger", None)}
    with SharingHarness(model, scheme, everyone, {"team": list(adapters)}, check=check_integrity) as s:
        s.ask("plan", CONTEXT, 1, logprob_start_len=None)
        reference.serve(cache, CONTEXT, "plan", 1)
        for name, tail in tails.items():
            start = len(CONTEXT) if name in adapters else 0
            s.submit(s.request(f"all-{name}", name, CONTEXT + tail, 8, logprob_start_len=start))
        steps = s.run()
        assert any(step.mode == "DECODE" and len(step.rids) == 5 for step in steps)
        for name, tail in tails.items():
            got = s.answer(f"all-{name}")
            if name in adapters:
                assert got.cached == cached(scheme, len(CONTEXT), seen=name == "plan")
                assert_same(got, reference.serve(cache.cut(len(CONTEXT)), tail, name, 8))
            else:
                assert got.cached == 0
                assert_same(got, stock[name])


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_model_can_be_a_member(model: Path, adapters: dict[str, Path], scheme: str) -> None:
    """A neutral warm-up, without adapter, serves the members."""
    reference = Backbone(model, adapters, scheme)
    cache = Context()
    with SharingHarness(model, scheme, adapters, {"team": ["base", *adapters]}) as s:
        s.ask(None, CONTEXT, 0, logprob_start_len=None)
        reference.serve(cache, CONTEXT, None, 0)
        got = s.ask("act", CONTEXT + SUFFIX, 8, logprob_start_len=len(CONTEXT))
        assert got.cached == cached(scheme, len(CONTEXT))
        assert_same(got, reference.serve(cache, SUFFIX, "act", 8))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_sharing_is_seen_in_the_answers(model: Path, adapters: dict[str, Path], scheme: str) -> None:
    """The negative control: what another member cached is not what the agent would have computed."""
    with SharingHarness(model, scheme, adapters) as s:
        own = s.ask("act", CONTEXT + SUFFIX, 8, logprob_start_len=len(CONTEXT))
        s.flush()
        s.ask("plan", CONTEXT, 1, logprob_start_len=None)
        shared = s.ask("act", CONTEXT + SUFFIX, 8, logprob_start_len=len(CONTEXT))
        assert far(own.input_logprobs, shared.input_logprobs) > 100 * NOISE


@pytest.mark.parametrize("scheme", [s for s in SCHEMES if s != "base"])
def test_the_first_writer_wins_in_the_middle_of_a_request_too(
    model: Path, adapters: dict[str, Path], scheme: str
) -> None:
    """An agent that must compute what `reflect` has cached: it prefills on its own rows, decodes on those."""
    reference = Backbone(model, adapters, scheme)
    with SharingHarness(model, scheme, adapters) as s:
        s.ask("plan", CONTEXT, 1, logprob_start_len=None)
        s.ask("reflect", CONTEXT + SUFFIX, 1, logprob_start_len=None)
        got = s.ask("act", CONTEXT + SUFFIX, 8, logprob_start_len=len(CONTEXT))
    first = Context()
    reference.serve(first, CONTEXT, "plan", 1)
    second, own = first.cut(len(CONTEXT)), first.cut(len(CONTEXT))
    reference.serve(second, SUFFIX, "reflect", 1)
    want = reference.serve(own, SUFFIX, "act", 1)
    for _ in range(7):
        last = reference.extend(second, [want.ids[-1]], "act")[-1]
        want.ids.append(int(last.argmax()))
        want.outputs.append(float(last.max()))
    assert_same(got, want)


def everything(s: SharingHarness, tokens: int) -> list[Any]:
    """K and V of the first `tokens` in the tree: copies, by layer."""
    tree, pool = s.scheduler.tree_cache, s.scheduler.token_to_kv_pool_allocator.get_kvcache()
    slots = tree.all_values_flatten()[:tokens]
    buffers = (pool.get_key_buffer, pool.get_value_buffer)
    return [buffer(i)[slots].clone() for i in range(pool.layer_num) for buffer in buffers]


@pytest.mark.parametrize("page_size", [1, 16])
def test_catching_up_leaves_what_others_cached_as_it_was(
    model: Path, adapters: dict[str, Path], page_size: int
) -> None:
    """`base`: an agent that catches up, in chunks, writes its rows and stores nothing twice."""
    context = CONTEXT[:144]
    arguments = {"chunked_prefill_size": 64, "page_size": page_size}
    with SharingHarness(model, "base", adapters, check=check_integrity, **arguments) as s:
        s.ask("plan", context, 0, logprob_start_len=None)
        before, held = everything(s, 144), s.scheduler.tree_cache.total_size()
        s.ask("act", context, 0, logprob_start_len=None)
        assert s.scheduler.tree_cache.total_size() == held == len(context)
        for one, other in zip(before, everything(s, 144), strict=True):
            assert torch.equal(one, other)
        assert s.figures["caught_up_tokens"] == len(context)
        first = len(s.steps)
        again = s.ask("act", context + SUFFIX, 6, logprob_start_len=len(context))
        assert again.cached == len(context)
        assert s.computed(first) == len(SUFFIX)
        reference = Backbone(model, adapters, "base")
        cache = Context()
        reference.serve(cache, context, "plan", 0)
        assert_same(again, reference.serve(cache, SUFFIX, "act", 6))
        for one, other in zip(before, everything(s, 144), strict=True):
            assert torch.equal(one, other)


def test_agents_that_come_at_once_catch_up_in_the_same_pass(model: Path, adapters: dict[str, Path]) -> None:
    """`base`, cold: the first publishes K and V, the others read them in the pass that writes them."""
    reference = Backbone(model, adapters, "base")
    with SharingHarness(model, "base", adapters, check=check_integrity) as s:
        names = ["plan", "act", "act", "reflect"]
        prompts = [[*CONTEXT, 20 + i, 7, 8] for i in range(4)]
        for i, name in enumerate(names):
            s.submit(s.request(f"{i}", name, prompts[i], 6, logprob_start_len=len(CONTEXT)))
        steps = s.run()
        assert len(steps[0].rids) == 4
        cache = Context()
        for i, name in enumerate(names):
            own = cache.cut(len(CONTEXT))
            assert_same(s.answer(f"{i}"), reference.serve(own, prompts[i][len(own.tokens) :], name, 6))
            if i == 0:
                cache = own
        assert s.scheduler.tree_cache.total_size() == len(CONTEXT) + 4 * (3 + 6 - 1)
