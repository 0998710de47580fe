"""The plug-in in a real scheduler: handshake, what is off and why, and stock schedulers beside it."""

from __future__ import annotations

import inspect
import pkgutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from flashagents_runtime import plugin
from flashagents_runtime.intra_turn import IntegrityError, IntraTurn, check_integrity, support
from flashagents_runtime.sglang_seams import SeamError
from helpers.ab import ab, publisher
from helpers.kv_model import KvModel
from helpers.scheduler_harness import Request, SchedulerHarness

pytestmark = pytest.mark.engine

PREFIX = list(range(10, 90))
FAMILY = [Request(f"r{i}", [*PREFIX, 200 + i, 300 + i], 3) for i in range(4)]


def feature(s: SchedulerHarness) -> dict[str, Any]:
    found: dict[str, Any] = plugin.state(s.scheduler.tree_cache)["features"]["intra_turn"]
    return found


def test_handshake(model: Path) -> None:
    from sglang.srt.managers.io_struct import GetInternalStateReq

    with SchedulerHarness(model) as s:
        ab(s, FAMILY)
        output = s.scheduler.get_internal_state(GetInternalStateReq())
        state = output.internal_state["flashagents"]
        assert state["features"]["intra_turn"]["active"]
        assert state["features"]["intra_turn"]["shared_in_turn"] == 3 * 80
        assert "sglang.srt.managers.schedule_policy.PrefillAdder.add_one_req" in state["hooks"]


def test_a_hook_taken_away_is_noticed(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.managers.schedule_policy import PrefillAdder

    with SchedulerHarness(model) as s:
        monkeypatch.setattr(PrefillAdder, "add_one_req", PrefillAdder.add_one_req.__wrapped__)
        with pytest.raises(SeamError, match="add_one_req"):
            plugin.state(s.scheduler.tree_cache)


def test_a_module_that_still_calls_the_function_itself_is_noticed(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that was imported before the hook was in place."""
    name = "alloc_for_extend"
    with SchedulerHarness(model) as s:
        target = f"sglang.srt.mem_cache.allocation.{name}"
        assert target in plugin.state(s.scheduler.tree_cache)["hooks"]
        early = ModuleType("early")
        setattr(early, name, inspect.unwrap(pkgutil.resolve_name(target)))
        monkeypatch.setitem(sys.modules, "early", early)
        with pytest.raises(SeamError, match=name):
            plugin.state(s.scheduler.tree_cache)


@pytest.mark.parametrize(
    ("argument", "reason"),
    [({"disable_radix_cache": True}, "radix cache is disabled"), ({"enable_pdmux": None}, "")],
    ids=["radix-cache-disabled", "nothing"],
)
def test_what_is_off(model: Path, argument: dict[str, Any], reason: str) -> None:
    with SchedulerHarness(model, **{k: v for k, v in argument.items() if v is not None}) as s:
        assert feature(s)["active"] is (not reason)
        if reason:
            assert reason in feature(s)["reason"]
            s.submit(*FAMILY)
            s.run()
            assert len(s.output("r3")) == 3


def test_switches(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLASHAGENTS_DISABLE", "intra_turn")
    with SchedulerHarness(model) as s:
        assert "FLASHAGENTS_DISABLE" in feature(s)["reason"]
    monkeypatch.delenv("FLASHAGENTS_DISABLE")
    monkeypatch.setattr(IntraTurn, "refusal", lambda self, ctx, cache: "a reason")
    assert plugin._refusals(None, None, [IntraTurn()]) == {"intra_turn": "a reason"}
    monkeypatch.setenv("FLASHAGENTS_STRICT", "1")
    with pytest.raises(SeamError, match="a reason"):
        plugin._refusals(None, None, [IntraTurn()])


def test_a_stock_scheduler_is_left_alone(model: Path) -> None:
    with SchedulerHarness(model, radix_cache_backend=None) as s:
        assert not hasattr(s.scheduler.tree_cache, "intra_turn")
        s.submit(*FAMILY)
        s.run()
        assert s.computed() == 4 * 82  # nothing shared


def test_other_backends_and_pools_are_refused_by_name(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = {k: v for k, v in support.WRITES_BEFORE_IT_ATTENDS.items() if v != "torch_native"}
    monkeypatch.setattr(support, "WRITES_BEFORE_IT_ATTENDS", known)
    with SchedulerHarness(model) as s:
        assert "may attend before it writes" in feature(s)["reason"]


def test_reading_before_writing_is_seen(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: with a backend that attends first, the KV model fails."""
    from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
    from sglang.srt.mem_cache.memory_pool import KVWriteLoc

    forward = TorchNativeAttnBackend.forward_extend

    def attend_first(
        self: Any, q: Any, k: Any, v: Any, layer: Any, batch: Any, save_kv_cache: bool = True
    ) -> Any:
        out = forward(self, q, k, v, layer, batch, save_kv_cache=False)
        loc = KVWriteLoc(batch.out_cache_loc, self.swa_out_cache_loc)
        self.token_to_kv_pool.set_kv_buffer(layer, loc, k, v)
        return out

    with SchedulerHarness(model, check=KvModel()) as s:
        s.step()  # frees are poisoned from here on
        monkeypatch.setattr(TorchNativeAttnBackend, "forward_extend", attend_first)
        s.submit(*FAMILY)
        with pytest.raises(AssertionError, match="hold"):
            s.run()


def break_lock(s: Any, node: Any) -> None:
    node.lock_ref += 1


def break_slot(s: Any, node: Any) -> None:
    node.value[0] = node.value[1]


def break_counter(s: Any, node: Any) -> None:
    s.tree_cache.evictable_size_ += 1


def break_free_list(s: Any, node: Any) -> None:
    allocator = s.token_to_kv_pool_allocator
    allocator.free_pages = allocator.free_pages[1:]


@pytest.mark.parametrize("damage", [break_lock, break_slot, break_counter, break_free_list])
def test_integrity_check_finds_damage(model: Path, damage: Any) -> None:
    with SchedulerHarness(model) as s:
        s.submit(*FAMILY)
        s.run()
        check_integrity(s.scheduler)
        damage(s.scheduler, next(iter(s.scheduler.tree_cache.root_node.children.values())))
        with pytest.raises(IntegrityError):
            check_integrity(s.scheduler)


@pytest.mark.parametrize("page_size", [1, 16])
def test_as_many_are_admitted_as_by_stock(model: Path, page_size: int) -> None:
    """Under memory pressure, with nothing shared, each pass admits the same requests."""
    with SchedulerHarness(model, max_total_tokens=400, page_size=page_size, check=KvModel()) as s:
        waves = [Request(f"r{i}", [(7 * j + 31 * i) % 490 + 4 for j in range(70)], 6) for i in range(9)]
        stock, ours = ab(s, waves)
        assert ours.admitted == stock.admitted
        assert len(stock.admitted) > 1
        assert publisher(s).figures.published_requests == 9
