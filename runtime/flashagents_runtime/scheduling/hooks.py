"""The AROUND hooks of this package. Each does nothing for a tree cache without the feature's state."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from .kinds import is_warm_up, state_of
from .pins import live
from .ranks import RANKS

Original = Callable[..., Any]

_NAP = 0.001


def around_get_new_batch_prefill(original: Original, self: Any, running_batch: Any) -> Any:
    gate = state_of(self.tree_cache, "gate")
    if gate is None:
        return original(self, running_batch)
    held = gate.hold(self, running_batch)
    was_full = running_batch.batch_is_full
    try:
        plan = original(self, running_batch)
    finally:
        if held:
            self.waiting_queue = [*self.waiting_queue, *held]
    gate.offered(self, plan.running_batch, was_full)
    gate.launched(plan.batch_to_run)
    gate.agree(plan, bool(held))
    return plan


def around_maybe_sleep_on_idle(original: Original, self: Any) -> Any:
    """With `sleep_on_idle` SGLang sleeps until a message comes: held warm-ups wait for the clock instead."""
    if self.idle_sleeper is not None and self.waiting_queue:
        time.sleep(_NAP)
        return None
    return original(self)


def around_process_batch_result(original: Original, self: Any, batch: Any, result: Any) -> Any:
    out = original(self, batch, result)
    gate = state_of(self.tree_cache, "gate")
    if gate is not None:
        gate.processed(batch)
    return out


def around_calc_priority(
    original: Original, self: Any, waiting_queue: list[Any], running_batch: Any = None
) -> Any:
    out = original(self, waiting_queue, running_batch)
    order = state_of(self.tree_cache, "order")
    if order is not None:
        gate = state_of(self.tree_cache, "gate")
        if order.shortest_first or gate is None or gate.any_wait:
            order.sort(waiting_queue, self.tree_cache)
    return out


def around_add_request_to_queue(original: Original, self: Any, req: Any, *args: Any, **kwargs: Any) -> Any:
    out = original(self, req, *args, **kwargs)
    if is_warm_up(req):
        gate = state_of(self.tree_cache, "gate")
        if gate is not None:
            gate.any_wait = True
    return out


def around_close_session(original: Original, self: Any, recv_req: Any) -> Any:
    """A prefill session is no session that SGLang has opened: it would only warn."""
    pins = state_of(self.tree_cache, "pins")
    if pins is not None and recv_req.session_id not in self.session_controller:
        pins.drop(recv_req.session_id)
        return None
    return original(self, recv_req)


def around_weight_update(original: Original, self: Any, recv_req: Any) -> Any:
    """New weights make all KV stale; SGLang empties the cache only where it is asked to."""
    out = original(self, recv_req)
    for pins in live:
        pins.clear()
    return out


_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
CALC_PRIORITY: dict[str, Original] = {
    "sglang.srt.managers.schedule_policy.SchedulePolicy.calc_priority": around_calc_priority,
}
PINS: dict[str, Original] = {
    **RANKS,
    f"{_SCHEDULER}.close_session": around_close_session,
    "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager"
    ".flush_cache_after_weight_update": around_weight_update,
}
BUDGET: dict[str, Original] = {
    f"{_SCHEDULER}._add_request_to_queue": around_add_request_to_queue,
    f"{_SCHEDULER}.get_new_batch_prefill": around_get_new_batch_prefill,
    f"{_SCHEDULER}.process_batch_result": around_process_batch_result,
    f"{_SCHEDULER}.maybe_sleep_on_idle": around_maybe_sleep_on_idle,
    **CALC_PRIORITY,
    **RANKS,
}
SJF: dict[str, Original] = {**CALC_PRIORITY, **RANKS}
