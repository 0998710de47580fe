"""Random admissions, sharing trees, prefill sessions, aborts, retractions and finishes against `KvModel`.

After every step each slot has one owner, each lock a holder, and each slot holds what its prefix means.
At the end every answer that was not cut short is the one that stock gives.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from helpers.ab import publisher
from helpers.kv_model import KvModel
from helpers.scheduler_harness import Request, SchedulerHarness

pytestmark = pytest.mark.engine

# A small alphabet of segments: prompts are paths in a tree of them, so they share prefixes of all lengths.
SEGMENTS = {name: [4 + (37 * i + 11 * j) % 490 for j in range(n)] for i, (name, n) in enumerate(
    {"a": 7, "b": 16, "c": 33, "d": 48, "e": 1, "f": 90}.items()
)}  # fmt: skip

seeds = st.integers(0, 2**20)


class Machine(RuleBasedStateMachine):
    """Rules are what can happen to a scheduler; the scheduler is shared by all examples."""

    harness: ClassVar[SchedulerHarness]
    answers: ClassVar[dict[Any, list[int]]] = {}
    """What stock answers, by namespace and prompt, as far as it was asked."""
    count: ClassVar[int] = 0
    late: ClassVar[float] = 0.0

    def __init__(self) -> None:
        super().__init__()
        self.sent: dict[str, Request] = {}
        self.cut: set[str] = set()
        self.prompts: dict[str, list[int]] = {}

    @initialize(fresh=st.booleans(), seed=seeds)
    def start(self, fresh: bool, seed: int) -> None:
        publisher(self.harness).enabled = True
        if fresh:
            self.harness.flush()
        self.submit(seed)

    @rule(seed=seeds)
    def arrive(self, seed: int) -> None:
        self.submit(seed)

    def submit(self, seed: int) -> None:
        """A family of 2 to 6 prompts that share a head of 1 to 3 segments; its kind follows from `seed`."""
        rng = random.Random(seed)
        names = sorted(SEGMENTS)
        head = rng.choices(names, k=rng.randint(1, 3))
        space = rng.choice([None, None, None, "A"])
        for _ in range(rng.randint(2, 6)):
            type(self).count += 1
            tail = rng.choices(names, k=rng.randint(0, 2))
            request = Request(
                f"m{self.count:06d}",
                [token for name in head + tail for token in SEGMENTS[name]],
                rng.choice([1, 2, 8]),
                extra_key=space,
                logprob_start_len=rng.choice([None, None, None, 0]),
            )
            self.sent[request.rid] = request
            self.harness.submit(request)

    @rule(session=st.sampled_from("pqr"), name=st.sampled_from(sorted(SEGMENTS)), rebased=st.booleans())
    def warm_up(self, session: str, name: str, rebased: bool) -> None:
        """A session's prompt grows by a segment, or starts anew, and is prefilled: its pin moves."""
        prompt = ([] if rebased else self.prompts.get(session, [])) + SEGMENTS[name]
        if len(prompt) < 300:
            self.prompts[session] = prompt
            self.send(prompt, session, 0)

    @rule(session=st.sampled_from("pqr"), tokens=st.sampled_from([1, 4]))
    def answer(self, session: str, tokens: int) -> None:
        """The final request of a session, whose last warm-up may still wait: it is cancelled then."""
        if session in self.prompts:
            self.send([*self.prompts.pop(session), 7], session, tokens)

    @rule(session=st.sampled_from("pqr"))
    def close(self, session: str) -> None:
        from sglang.srt.managers.io_struct import CloseSessionReqInput

        self.harness.send(CloseSessionReqInput(session_id=session))

    @rule()
    def expire(self) -> None:
        """The pins of now are a minute older."""
        type(self).late += 60.0

    def send(self, prompt: list[int], session: str, tokens: int) -> None:
        type(self).count += 1
        request = Request(f"m{self.count:06d}", prompt, tokens, session_id=session)
        self.sent[request.rid] = request
        self.harness.submit(request)

    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        if self.sent:
            rid = data.draw(st.sampled_from(sorted(self.sent)))
            self.cut.add(rid)
            self.harness.abort(rid)

    @rule(n=st.integers(1, 4))
    def steps(self, n: int) -> None:
        for _ in range(n):
            self.harness.step()

    @rule()
    def crowd(self) -> None:
        """Let the next pass admit more than will fit: decodes are retracted."""
        self.harness.scheduler.new_token_ratio_tracker.current = 0.05

    @rule()
    def flush(self) -> None:
        """Refused unless idle."""
        self.harness.scheduler.flush_cache()

    def teardown(self) -> None:
        s = self.harness
        s.run()
        tree, allocator = s.scheduler.tree_cache, s.scheduler.token_to_kv_pool_allocator
        assert tree.protected_size() == 0
        assert allocator.available_size() + tree.evictable_size() == s.scheduler.max_total_num_tokens
        done = [r for rid, r in self.sent.items() if rid not in self.cut and rid in s.reqs]
        whole = [r for r in done if r.max_new_tokens > 0]
        got = {r.rid: s.output(r.rid) for r in whole}
        s.reqs.clear()
        self.ask_stock(whole)
        for r in whole:
            assert got[r.rid] == self.answers[_key(r)][: r.max_new_tokens], f"{r.rid} differs"

    def ask_stock(self, requests: list[Request]) -> None:
        """Fill in missing answers: all at once, from an empty cache, nothing published."""
        longest: dict[Any, Request] = {}
        for r in requests:
            known = longest.get(_key(r))
            if len(self.answers.get(_key(r), ())) < r.max_new_tokens and (
                known is None or known.max_new_tokens < r.max_new_tokens
            ):
                longest[_key(r)] = r
        s = self.harness
        publisher(s).enabled = False
        s.flush()
        s.submit(
            *[
                replace(r, rid=f"stock{r.rid}", logprob_start_len=None, session_id=None)
                for r in longest.values()
            ]
        )
        s.run()
        self.answers.update({key: s.output(f"stock{r.rid}") for key, r in longest.items()})
        s.reqs.clear()


def _key(r: Request) -> Any:
    return r.extra_key, tuple(r.ids)


@pytest.mark.parametrize(
    "configuration",
    [
        {},
        {"overlap": True},
        {"page_size": 16, "overlap": True},
        {"page_size": 16, "enable_mixed_chunk": True, "schedule_policy": "lpm"},
    ],
    ids=["page1", "page1-overlap", "page16-overlap", "page16-mixed-lpm"],
)
def test_machine(model: Path, configuration: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLASHAGENTS_WARMUP_SHARE", "0.05")
    with SchedulerHarness(
        model,
        check=KvModel(),
        chunked_prefill_size=96,
        max_total_tokens=512,
        max_running_requests=8,
        **configuration,
    ) as s:
        machine: Any = type("Example", (Machine,), {"harness": s, "answers": {}})
        cache = s.scheduler.tree_cache

        def clock() -> float:
            """5 ms a step."""
            return 0.005 * len(s.steps) + float(machine.late)

        cache.pins._clock = cache.gate._clock = cache.gate.budget._clock = clock
        cache.gate._processed_at = cache.gate.budget._at = 0.0
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=10,
                stateful_step_count=14,
                deadline=None,
                derandomize=True,
                database=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
        assert publisher(s).figures.published_requests > 10
        assert publisher(s).figures.shared_in_turn > 0
        assert cache.gate.figures.beside_decodes > 0
