"""Outputs with publishing are those of stock, and shared tokens are computed once."""

from __future__ import annotations

import pytest

from helpers.ab import ab, distinct_tokens, publisher, run
from helpers.scheduler_harness import Request, SchedulerHarness

from .conftest import Tokens

pytestmark = pytest.mark.engine


def shapes(tokens: Tokens) -> dict[str, list[list[int]]]:
    prefix, branches = tokens(180), [tokens(60), tokens(60)]
    return {
        "family": [prefix + tokens(20) for _ in range(8)],
        "tree": [prefix[:100] + branches[i % 2] + tokens(20) for i in range(8)],
        "nested": [prefix[: 20 * (i + 1)] for i in range(8)],
        "nested-longest-first": [prefix[: 20 * (8 - i)] for i in range(8)],
        "identical": [prefix] * 6,
        "branches-inside-a-node": [
            prefix,
            prefix[:50],
            prefix[:50] + tokens(30),
            prefix[:120] + tokens(10),
            prefix[:120],
            prefix + tokens(5),
            prefix[:1],
            prefix[:2],
        ],
        "nothing-shared": [tokens(60) for _ in range(8)],
        "one": [prefix],
    }


@pytest.mark.parametrize("shape", list(shapes(lambda n: [])))
def test_shapes(scheduler: SchedulerHarness, tokens: Tokens, shape: str) -> None:
    prompts = shapes(tokens)[shape]
    stock, ours = ab(scheduler, [Request(f"r{i}", p, 8) for i, p in enumerate(prompts)])
    page = scheduler.scheduler.page_size
    assert stock.computed == sum(map(len, prompts))
    if page == 1:
        assert ours.computed == distinct_tokens(prompts)
    else:  # at most a page short of it, for each prompt
        assert ours.computed <= distinct_tokens(prompts) + (page - 1) * len(prompts)
    assert len(ours.admitted) == 1  # all in one pass


@pytest.mark.parametrize("n", [0, 1, 2])
def test_short_answers(scheduler: SchedulerHarness, tokens: Tokens, n: int) -> None:
    prefix = tokens(180)
    waves = [Request(f"r{i}", prefix + tokens(20), n) for i in range(6)]
    if n == 0:  # what stock returns for a prefill-only request depends on its batch
        stock, ours = run(scheduler, False, waves), run(scheduler, True, waves)
        assert ours.outputs.keys() == stock.outputs.keys()
    else:
        stock, ours = ab(scheduler, waves)
    assert ours.computed < stock.computed


def test_arrivals_during_decode(scheduler: SchedulerHarness, tokens: Tokens) -> None:
    prefix = tokens(150)
    waves = [
        (0, [Request(f"a{i}", prefix + tokens(20), 12) for i in range(3)]),
        (1, [Request("b", prefix + tokens(20), 12)]),
        (4, [Request(f"c{i}", prefix[:100] + tokens(40), 6) for i in range(3)]),
        (5, [Request("d", tokens(50), 12)]),
    ]
    stock, ours = ab(scheduler, waves)
    assert ours.computed < stock.computed


def test_namespaces_do_not_share(scheduler: SchedulerHarness, tokens: Tokens) -> None:
    prefix = tokens(160)
    prompts = [prefix + tokens(16) for _ in range(6)]
    waves = [Request(f"r{i}", p, 4, extra_key="A" if i % 2 else None) for i, p in enumerate(prompts)]
    _, ours = ab(scheduler, waves)
    assert ours.computed == 2 * 160 + 6 * 16


@pytest.mark.parametrize("start", [0, 50, 179])
def test_logprobs(scheduler: SchedulerHarness, tokens: Tokens, start: int) -> None:
    prefix = tokens(180)
    waves = [Request(f"r{i}", prefix + tokens(20), 4, logprob_start_len=start) for i in range(5)]
    stock, ours = ab(scheduler, waves)
    for rid, req in ours.reqs.items():
        for field in ("input_token_logprobs_val", "output_token_logprobs_val"):
            got, want = getattr(req.logprob, field), getattr(stock.reqs[rid].logprob, field)
            assert got[1:] == pytest.approx(want[1:], abs=1e-4)
    assert ours.computed <= stock.computed


def test_figures(scheduler: SchedulerHarness, tokens: Tokens) -> None:
    prefix = tokens(160)
    waves = [Request(f"r{i}", prefix + tokens(16), 2) for i in range(4)]
    before = publisher(scheduler).figures.shared_in_turn
    scheduler.sent.clear()
    ours = run(scheduler, True, waves)
    assert publisher(scheduler).figures.shared_in_turn - before == 3 * 160
    details = {
        rid: detail
        for output in scheduler.sent
        if hasattr(output, "cached_tokens_details")
        for rid, detail in zip(output.rids, output.cached_tokens_details, strict=True)
    }
    assert details.pop("+r0") is None
    assert list(details.values()) == [{"device": 160, "host": 0, "shared_in_turn": 160}] * 3
    # The same prompts again: cached, but not by a request of their pass.
    again = run(scheduler, True, waves, flush=False)
    assert again.computed < ours.computed
    assert publisher(scheduler).figures.shared_in_turn - before == 3 * 160
