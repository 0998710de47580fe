"""A penalised answer does not depend on the requests that arrive while it is decoded."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

from helpers.scheduler_harness import Request, SchedulerHarness

pytestmark = pytest.mark.engine

PROMPT = list(range(10, 60))
TOKENS = 24
PENALTIES = {
    "repetition": {"repetition_penalty": 1.5},
    # Rewards, and larger than users may ask for: the random model does not repeat itself otherwise.
    "frequency": {"frequency_penalty": -8.0},
    "presence": {"presence_penalty": -8.0},
}


STOCK: dict[str, Any] = {"radix_cache_backend": None}


def answer(s: SchedulerHarness, penalties: dict[str, float], arrivals: dict[int, int]) -> list[int]:
    """The tokens of one request; after the given steps others arrive, each with so many new tokens."""
    s.flush()
    run = len(s.reqs)
    s.submit(Request(f"a{run}", PROMPT, TOKENS, penalties=penalties))
    for step in range(TOKENS + 12):
        if step in arrivals:
            prompt = [100 + step + i for i in range(20)]
            s.submit(Request(f"other{run}-{step}", prompt, arrivals[step]))
        s.step()
    s.run()
    return s.output(f"a{run}")


ARRIVALS = {
    "one warm-up": {4: 0},
    "many warm-ups": {2: 0, 3: 0, 6: 0, 9: 0, 15: 0},
    "one that speaks": {5: 6},
    "at the first step": {1: 0},
}


def test_others_do_not_change_a_penalised_answer(model: Path) -> None:
    with SchedulerHarness(model, overlap=True) as s:
        plain = answer(s, {}, {})
        alone = {kind: answer(s, penalties, {}) for kind, penalties in PENALTIES.items()}
        for kind, penalties in PENALTIES.items():
            assert alone[kind] != plain, f"the {kind} penalty does something"
            for name, arrivals in ARRIVALS.items():
                assert answer(s, penalties, arrivals) == alone[kind], (kind, name)
    with SchedulerHarness(model, overlap=True, **STOCK) as s:
        for kind, penalties in PENALTIES.items():
            assert answer(s, penalties, {}) == alone[kind], f"undisturbed it is what SGLang says: {kind}"


def counted(model: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> tuple[list[int], list[int]]:
    """The tokens of a penalised request while others arrive, and those that its penalties counted."""
    from sglang.srt.sampling.penaltylib.orchestrator import BatchedPenalizerOrchestrator as Orchestrator

    found: list[int] = []
    original = Orchestrator.cumulate_output_tokens

    @functools.wraps(original)
    def watch(self: Any, tokens: Any) -> None:
        found.append(int(tokens[0]))  # of the request that came first
        original(self, tokens)

    with monkeypatch.context() as patch:
        patch.setattr(Orchestrator, "cumulate_output_tokens", watch)
        with SchedulerHarness(model, overlap=True, **options) as s:
            said = answer(s, PENALTIES["repetition"], ARRIVALS["many warm-ups"])
    return said, found


def test_every_token_is_counted_once(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said, found = counted(model, monkeypatch, radix_cache_backend="flashagents")
    assert found[:TOKENS] == [PROMPT[-1], *said][: len(found[:TOKENS])]


def test_sglang_itself_leaves_tokens_out(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: where this fails, the feature is no longer needed."""
    said, found = counted(model, monkeypatch, **STOCK)
    assert found[:TOKENS] != [PROMPT[-1], *said][: len(found[:TOKENS])]
