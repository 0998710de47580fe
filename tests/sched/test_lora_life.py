"""Adapters that come and go, more of them than fit, and warm-ups that meet: lora_sharing over time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from flashagents_runtime.intra_turn import check_integrity
from flashagents_runtime.lora_sharing import sharing
from flashagents_runtime.lora_sharing.hooks import around_compute_cell_size
from helpers.lora_adapters import make_adapter
from helpers.sharing_harness import SharingHarness

pytestmark = pytest.mark.engine

ROWS = ["base_lr", "precomputed"]
SCHEMES = ["full", *ROWS]
ALL = [*SCHEMES, "base"]
CONTEXT = [(7 * j) % 490 + 4 for j in range(120)]


@pytest.fixture(scope="module")
def adapters(model: Path, models: Path) -> dict[str, Path]:
    return {name: make_adapter(models, model, name, shared_a="team", size_a=0.1) for name in ("plan", "act")}


# ---- what does not fit


@pytest.mark.parametrize(
    ("scheme", "change", "reason"),
    [
        ("base_lr", {}, "v_proj.lora_A differs from that of 'plan'"),
        ("base_lr", {"shared_a": "team", "rank": 4}, "its rank is 4 and that of 'plan' is 8"),
        ("precomputed", {"rank": 8, "targets": ("q_proj", "k_proj", "v_proj")}, "it targets k_proj"),
        ("precomputed", {"targets": ("q_proj", "v_proj", "o_proj")}, "it targets o_proj"),
    ],
    ids=["other-A", "base_lr-rank", "k_proj", "o_proj"],
)
def test_a_misfit_is_refused_and_the_engine_goes_on(
    model: Path, models: Path, adapters: dict[str, Path], scheme: str, change: dict[str, object], reason: str
) -> None:
    misfit = make_adapter(models, model, f"misfit-{reason[:12]}", **change)  # type: ignore[arg-type]
    arguments = {
        "max_lora_rank": 8,
        "lora_target_modules": {"q_proj", "k_proj", "v_proj", "o_proj"},
    }
    groups = {"team": ["plan", "act", "late"]}
    with SharingHarness(model, scheme, adapters, groups, check=check_integrity, **arguments) as s:
        before = s.ask("act", CONTEXT, 6)
        result = s.load("late", misfit)
        assert not result.success
        for part in ("'late'", "'team'", scheme, reason):
            assert part in result.error_message
        assert reason in s.figures["refused"]["late"]
        assert s.figures["loaded"] == ["plan", "act"]
        s.flush()
        after = s.ask("act", CONTEXT, 6)
        assert (after.ids, after.logprobs) == (before.ids, before.logprobs)
        fitting = make_adapter(models, model, "late", shared_a="team", size_a=0.1)
        assert s.load("late", fitting).success
        assert s.figures["loaded"] == ["plan", "act", "late"]
        assert "late" not in s.figures["refused"]


# ---- coming and going


def test_adapters_from_tensors_are_members_too(model: Path, models: Path, adapters: dict[str, Path]) -> None:
    import json

    from safetensors.torch import load_file
    from sglang.srt.lora.lora_registry import LoRARef

    late = make_adapter(models, model, "late", shared_a="team", size_a=0.1)
    other = make_adapter(models, model, "misfit-other-A")
    with SharingHarness(model, "base_lr", {**adapters, "late": late}) as s:
        want = s.ask("late", CONTEXT, 4)
    groups = {"team": ["plan", "act", "late"]}
    arguments = {"max_lora_rank": 8, "lora_target_modules": {"q_proj", "v_proj"}}
    with SharingHarness(model, "base_lr", adapters, groups, **arguments) as s:
        for path, fits in ((other, False), (late, True)):
            ref = LoRARef(lora_id="sent", lora_name="late", lora_path="__tensors__", pinned=False)
            config = json.loads((path / "adapter_config.json").read_text())
            tensors = load_file(path / "adapter_model.safetensors")
            result = s.manager.load_lora_adapter_from_tensors(ref, tensors, config)
            assert result.success is fits
        s.ids["late"] = "sent"
        got = s.ask("late", CONTEXT, 4)
        assert (got.ids, got.logprobs) == (want.ids, want.logprobs)
        assert s.ask("act", CONTEXT, 1, logprob_start_len=None).cached == len(CONTEXT) - 1


@pytest.mark.parametrize("scheme", ALL)
def test_a_swapped_adapter_reads_nothing_of_its_predecessor(
    model: Path, models: Path, adapters: dict[str, Path], scheme: str
) -> None:
    """What `act` wrote goes with it; what `plan` wrote stays, but where rows of the new one are missing."""
    new = make_adapter(models, model, "act", shared_a="team", size_a=0.1, version=2)
    beside = [t + 1 for t in CONTEXT]
    with SharingHarness(model, scheme, {"plan": adapters["plan"], "act": new}) as s:
        want = s.ask("act", CONTEXT, 6)
    with SharingHarness(model, scheme, adapters, check=check_integrity) as s:
        old = s.ask("act", CONTEXT, 6)
        s.ask("plan", beside, 1, logprob_start_len=None)
        assert s.unload("act").success
        assert s.figures["loaded"] == ["plan"]
        assert s.load("act", new).success
        got = s.ask("act", CONTEXT, 6)
        assert got.cached == 0
        assert (got.ids, got.logprobs) == (want.ids, want.logprobs)
        assert got.ids != old.ids
        kept = s.ask("act", beside, 1, logprob_start_len=None)
        # Under `base` the new one has yet to catch up.
        assert kept.cached == (0 if scheme in ("precomputed", "base") else len(beside) - 1)
        assert s.figures["new_namespaces"] == 0
        assert s.figures["dropped_tokens"] > 0


@pytest.mark.parametrize("scheme", ALL)
def test_what_a_running_request_holds_is_left_behind(
    model: Path, models: Path, adapters: dict[str, Path], scheme: str
) -> None:
    """`plan` decodes on what `act` wrote while `act` is replaced: nothing of it is found any more."""
    new = make_adapter(models, model, "act", shared_a="team", size_a=0.1, version=2)
    with SharingHarness(model, scheme, adapters, check=check_integrity) as s:
        s.ask("act", CONTEXT, 1, logprob_start_len=None)
        s.submit(s.request("long", "plan", [*CONTEXT, 9], 20, logprob_start_len=None))
        for _ in range(4):
            s.step()
        assert s.answer("long").cached == (0 if scheme == "base" else len(CONTEXT))
        assert s.unload("act").success
        assert s.load("act", new).success
        got = s.ask("act", CONTEXT, 4)
        assert got.cached == 0
        assert s.figures["new_namespaces"] >= 1
        assert len(s.answer("long").ids) == 20
        s.flush()
        assert s.ask("act", CONTEXT, 4).ids == got.ids


def test_groups_do_not_meet(model: Path, models: Path, adapters: dict[str, Path]) -> None:
    four = {**adapters, **{n: make_adapter(models, model, n) for n in ("draw", "sing")}}
    with SharingHarness(model, "precomputed", four, {"a": ["plan", "act"], "b": ["draw", "sing"]}) as s:
        s.ask("plan", CONTEXT, 1, logprob_start_len=None)
        assert s.ask("draw", CONTEXT, 1, logprob_start_len=None).cached == 0
        assert s.ask("sing", CONTEXT, 1, logprob_start_len=None).cached == len(CONTEXT) - 1
        assert s.ask("act", CONTEXT, 1, logprob_start_len=None).cached == len(CONTEXT) - 1
        salted = s.ask("act", CONTEXT, 1, logprob_start_len=None, extra_key="tenant")
        assert salted.cached == 0
        assert s.ask("plan", CONTEXT, 1, logprob_start_len=None, extra_key="tenant").cached > 0


# ---- many adapters


@pytest.mark.parametrize("scheme", ALL)
def test_more_adapters_than_slots(model: Path, models: Path, scheme: str) -> None:
    """16 roles over 3 slots of SGLang's LoRA pool: bit by bit what 17 slots give."""
    roles = {
        f"role{i}": make_adapter(models, model, f"role{i}", shared_a="team", size_a=0.1) for i in range(16)
    }
    answers = {}
    for slots in (17, 3):
        with SharingHarness(
            model, scheme, roles, max_loras_per_batch=slots, check=check_integrity, max_total_tokens=2048
        ) as s:
            s.ask("role0", CONTEXT, 1, logprob_start_len=None)
            for turn in range(2):
                for i, name in enumerate(roles):
                    got = s.ask(name, [*CONTEXT, 5 + i, 6], 3, logprob_start_len=len(CONTEXT) + turn)
                    assert got.cached >= (0 if scheme == "base" and turn == 0 else len(CONTEXT))
                    answers.setdefault((turn, name), []).append((got.ids, got.logprobs))
            for i, name in enumerate(roles):
                s.submit(s.request(f"m-{name}", name, [*CONTEXT, 50 + i], 4, logprob_start_len=None))
            s.run()
            assert len({tuple(s.answer(f"m-{name}").ids) for name in roles}) > 8
    for both in answers.values():
        assert both[0] == both[1]


class LateEvent:
    """A load's event, where there are no streams: it has happened two of the scheduler's steps later."""

    steps: Sequence[object] = ()
    waited = 0

    def record(self, stream: object) -> None:
        self._at = len(LateEvent.steps)

    def query(self) -> bool:
        done = len(LateEvent.steps) >= self._at + 2
        LateEvent.waited += not done
        return done


@pytest.mark.parametrize("scheme", ALL)
def test_adapters_that_are_loaded_while_others_compute(
    model: Path, models: Path, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SGLang's overlap loading, six roles over three slots: requests wait for their adapter, answers stay."""
    import torch

    roles = {
        f"role{i}": make_adapter(models, model, f"role{i}", shared_a="team", size_a=0.1) for i in range(6)
    }
    monkeypatch.setattr(torch.cpu, "Event", LateEvent)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(wait_event=lambda event: None))
    monkeypatch.setattr(LateEvent, "waited", 0)
    found = []
    for overlap in (False, True):
        arguments = {"max_loras_per_batch": 3, "max_loaded_loras": 6, "enable_lora_overlap_loading": overlap}
        with SharingHarness(model, scheme, roles, check=check_integrity, **arguments) as s:
            LateEvent.steps = s.steps
            s.ask("role0", CONTEXT, 1, logprob_start_len=None)
            assert bool(LateEvent.waited) is overlap
            for i, name in enumerate(roles):
                s.submit(s.request(f"m-{name}", name, [*CONTEXT, 50 + i], 4, logprob_start_len=None))
            before = LateEvent.waited
            s.run()
            assert (LateEvent.waited - before >= len(roles) - 1) is overlap
            answers = {name: s.answer(f"m-{name}") for name in roles}
            if scheme != "base":
                assert {answer.cached for answer in answers.values()} == {len(CONTEXT)}
            found.append({name: answer.ids for name, answer in answers.items()})
    assert found[0] == found[1]
    assert len({tuple(ids) for ids in found[0].values()}) > 3


def test_eviction_takes_rows_with_their_slots(model: Path, adapters: dict[str, Path]) -> None:
    """A pool much smaller than what is asked for: slots change hands, and the answers stay."""
    prompts = [[(k * j) % 490 + 4 for j in range(90)] for k in (3, 5, 7, 11, 13, 17)]
    answers = []
    for tokens in (4096, 260):
        with SharingHarness(model, "base_lr", adapters, max_total_tokens=tokens, check=check_integrity) as s:
            answers.append([s.ask(n, p, 4).logprobs for p in prompts * 2 for n in ("plan",)])
    assert answers[0] == answers[1]


# ---- figures


@pytest.mark.parametrize(("scheme", "sets"), [("full", 0), ("base_lr", 1), ("precomputed", 2), ("base", 2)])
def test_the_pool_shrinks_by_what_the_rows_take(
    model: Path, adapters: dict[str, Path], scheme: str, sets: int
) -> None:
    from sglang.srt.model_executor.pool_configurator import DefaultPoolConfigurator

    with SharingHarness(model, scheme, adapters) as s:
        runner = s.scheduler.tp_worker.model_runner
        token = 2 * 2 * 2 * 16 * 4  # layers, K and V, heads, head size, fp32
        rows = sets * 2 * 8 * 4  # layers, rank, fp32
        pool = DefaultPoolConfigurator(runner.kv_cache_configurator).calculate_pool_sizes(1_000_000, 1)
        assert pool.max_total_num_tokens == 1_000_000 // (token + rows)
        if sets:
            assert s.figures["token_bytes_kv"] == token
            assert s.figures["token_bytes_rows"] == rows
            slots = runner.token_to_kv_pool.get_key_buffer(0).shape[0]
            assert s.figures["rows_bytes"] == rows * slots
            assert sharing.current is not None
            assert sharing.current.rows.shape[1] == slots
    assert around_compute_cell_size(lambda *_: 7, None, runner.kv_cache_configurator, 2) >= 7


# ---- with the hand-off


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_fan_out_to_three_roles_prefills_once(
    model: Path, models: Path, adapters: dict[str, Path], scheme: str
) -> None:
    """A chunk that warms one agent warms the others, also when all come in one pass."""
    three = {**adapters, "judge": make_adapter(models, model, "judge", shared_a="team", size_a=0.1)}
    with SharingHarness(model, scheme, three, check=check_integrity) as s:
        first = len(s.steps)
        for end in (40, 80, 120):  # a prefill session of `act`
            s.submit(s.request(f"warm{end}", "act", CONTEXT[:end], 0, logprob_start_len=None))
            s.run()
        for i, name in enumerate(three):
            s.submit(s.request(f"go-{name}", name, [*CONTEXT, 300 + i], 3, logprob_start_len=None))
        s.run()
        assert s.computed(first) == len(CONTEXT) + 3
        s.flush()
        first = len(s.steps)
        for i, name in enumerate(three):  # cold, and at once
            s.submit(s.request(f"cold-{name}", name, [*CONTEXT, 300 + i], 3, logprob_start_len=None))
        s.run()
        assert s.computed(first) == len(CONTEXT) + 3


@pytest.mark.parametrize("scheme", ALL)
def test_overlap_scheduling_changes_nothing(model: Path, adapters: dict[str, Path], scheme: str) -> None:
    answers = []
    for overlap in (False, True):
        with SharingHarness(model, scheme, adapters, overlap=overlap, check=check_integrity) as s:
            s.ask("plan", CONTEXT, 1, logprob_start_len=None)
            for i, name in enumerate(["act", "plan", None, "act", "plan"]):
                s.submit(s.request(f"{i}", name, [*CONTEXT, 9 + i, 5], 12, logprob_start_len=None))
                s.step()
            s.run()
            answers.append([s.answer(f"{i}").ids for i in range(5)])
    assert answers[0] == answers[1]


def test_base_under_memory_pressure_and_aborts(model: Path, adapters: dict[str, Path]) -> None:
    """Agents that catch up while slots change hands and requests go: nothing leaks, answers stay."""
    prompts = [[(k * j) % 490 + 4 for j in range(80)] for k in (3, 5, 7)]
    alone = {}
    with SharingHarness(model, "base", adapters) as s:
        for i, prompt in enumerate(prompts):
            s.flush()
            s.ask("plan", prompt, 0, logprob_start_len=None)
            alone[i] = s.ask("act", [*prompt, 9], 5, logprob_start_len=None).ids
    with SharingHarness(
        model, "base", adapters, max_total_tokens=320, chunked_prefill_size=32, check=check_integrity
    ) as s:
        for turn in range(3):
            for i, prompt in enumerate(prompts):
                rid = f"{turn}-{i}"
                s.submit(s.request(rid + "p", "plan", prompt, 0, logprob_start_len=None))
                s.run()
                s.submit(s.request(rid + "a", "act", [*prompt, 9], 5, logprob_start_len=None))
                s.submit(s.request(rid + "x", "act", [*prompt, 10], 30, logprob_start_len=None))
                for _ in range(1 + turn + i):
                    s.step()
                s.abort(rid + "x")
                s.run()
                assert s.answer(rid + "a").ids == alone[i]


@pytest.mark.parametrize("arguments", [{"enable_mixed_chunk": True}, {"overlap": True, "page_size": 16}])
@pytest.mark.parametrize("scheme", ["base_lr", "base"])
def test_decodes_that_outgrow_the_pool(
    model: Path, adapters: dict[str, Path], scheme: str, arguments: dict[str, object]
) -> None:
    """Retraction and chunks mixed with decodes: a request that comes back ends as it would have alone."""
    prefix = CONTEXT[:100]
    prompts = [[*prefix[: 40 + 6 * i], 200 + i, *CONTEXT[3 * i : 3 * i + 7]] for i in range(8)]
    with SharingHarness(
        model,
        scheme,
        adapters,
        max_total_tokens=640,
        chunked_prefill_size=64,
        check=check_integrity,
        **arguments,
    ) as s:
        s.scheduler.new_token_ratio_tracker.current = 0.1  # admit more than will fit
        for i, prompt in enumerate(prompts):
            s.submit(s.request(f"r{i}", "plan", prompt, 72, logprob_start_len=None))
        s.run()
        assert any(s.reqs[f"r{i}"].retraction_count for i in range(8))
        for i in range(3):
            s.flush()
            assert s.ask("plan", prompts[i], 72, logprob_start_len=None).ids == s.answer(f"r{i}").ids
