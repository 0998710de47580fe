"""The AROUND hooks: where SGLang's scheduler meets the `Publisher` of its tree cache.

Each does nothing for a tree cache that has none. They follow the life of one prefill batch:
`_get_new_batch_prefill_raw` is the admission pass; in it `add_chunked_req` and `add_one_req` admit
requests; at its end `alloc_for_extend` allocates the batch's slots through one of the two last.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .publish import Publisher

Original = Callable[..., Any]


def publisher_of(tree_cache: Any) -> Publisher | None:
    """The publisher of a tree cache, also inside SGLang's StreamingSession wrapper."""
    found = getattr(tree_cache, "intra_turn", None)
    if found is None:
        found = getattr(getattr(tree_cache, "inner", None), "intra_turn", None)
    return found


def around_new_batch(
    original: Original, self: Any, prefill_delayer_single_pass: Any, running_batch: Any
) -> Any:
    publisher = publisher_of(self.tree_cache)
    if publisher is None:
        return original(self, prefill_delayer_single_pass, running_batch)
    publisher.begin_pass(self.waiting_queue)
    try:
        return original(self, prefill_delayer_single_pass, running_batch)
    finally:
        publisher.end_pass()


def around_add_one_req(original: Original, self: Any, req: Any, *args: Any, **kwargs: Any) -> Any:
    admitted = len(self.can_run_list)
    result = original(self, req, *args, **kwargs)
    _publish_if_admitted(self, req, admitted)
    return result


def around_add_chunked_req(original: Original, self: Any, req: Any) -> Any:
    admitted = len(self.can_run_list)
    result = original(self, req)
    _publish_if_admitted(self, req, admitted)
    return result


def _publish_if_admitted(adder: Any, req: Any, before: int) -> None:
    if len(adder.can_run_list) > before:
        publisher = publisher_of(adder.tree_cache)
        if publisher is not None and publisher.enabled:
            publisher.publish(adder, req)


def around_alloc_for_extend(original: Original, batch: Any) -> Any:
    publisher = publisher_of(batch.tree_cache)
    if publisher is None or not publisher.slots:
        return original(batch)
    publisher.batch = batch
    try:
        return original(batch)
    finally:
        publisher.batch = None
        publisher.slots.clear()


def around_alloc_token_slots(original: Original, tree_cache: Any, num_tokens: int) -> Any:
    """Page size 1: `num_tokens` slots for the batch, those of published requests at their places."""
    publisher = publisher_of(tree_cache)
    if publisher is None or publisher.batch is None:
        return original(tree_cache, num_tokens)
    own, lens = _own_slots(publisher)
    rest = sum(n for n, slots in zip(lens, own, strict=True) if slots is None)
    return _merge(lens, own, original(tree_cache, rest) if rest else None)


def around_alloc_paged_token_slots_extend(
    original: Original,
    tree_cache: Any,
    prefix_lens: Any,
    prefix_lens_cpu: Any,
    seq_lens: Any,
    seq_lens_cpu: Any,
    last_loc: Any,
    extend_num_tokens: int,
    req_pool_indices: Any = None,
    batch: Any = None,
) -> Any:
    """Page sizes above 1; the arguments are those of the whole batch, one row a request."""

    def alloc(rows: Any, rows_cpu: Any, tokens: int) -> Any:
        return original(
            tree_cache=tree_cache,
            prefix_lens=prefix_lens[rows],
            prefix_lens_cpu=prefix_lens_cpu[rows_cpu],
            seq_lens=seq_lens[rows],
            seq_lens_cpu=seq_lens_cpu[rows_cpu],
            last_loc=last_loc[rows],
            extend_num_tokens=tokens,
            req_pool_indices=None if req_pool_indices is None else req_pool_indices[rows],
            batch=batch,
        )

    publisher = publisher_of(tree_cache)
    if publisher is None or publisher.batch is None:
        return alloc(slice(None), slice(None), extend_num_tokens)
    own, lens = _own_slots(publisher)
    rows = [i for i, slots in enumerate(own) if slots is None]
    fresh = None
    if rows:
        rows_cpu = prefix_lens_cpu.new_tensor(rows)
        fresh = alloc(rows_cpu.to(prefix_lens.device), rows_cpu, sum(lens[i] for i in rows))
    return _merge(lens, own, fresh)


def _own_slots(publisher: Publisher) -> tuple[list[Any], list[int]]:
    batch = publisher.batch
    return [publisher.slots.get(req) for req in batch.reqs], list(batch.extend_lens)


def _merge(lens: list[int], own: list[Any], fresh: Any) -> Any:
    """Slots of the batch in its order: each request's own, or the next of `fresh`."""
    import torch

    parts, used = [], 0
    for n, slots in zip(lens, own, strict=True):
        if slots is None:
            parts.append(fresh[used : used + n])
            used += n
        elif len(slots) == n:
            parts.append(slots)
        else:
            raise RuntimeError(f"published {len(slots)} slots of a request that computes {n} tokens")
    return torch.cat(parts)


def around_get_cached_tokens_details(original: Original, self: Any, req: Any) -> Any:
    """Add ``shared_in_turn`` to the breakdown in `meta_info["cached_tokens_details"]`."""
    details = original(self, req)
    shared = getattr(req, "shared_in_turn", 0)
    return {**(details or {"device": 0, "host": 0}), "shared_in_turn": shared} if shared else details


_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
_ADDER = "sglang.srt.managers.schedule_policy.PrefillAdder"
_ALLOCATION = "sglang.srt.mem_cache.allocation"
_STREAMER = "sglang.srt.managers.scheduler_components.output_streamer.SchedulerOutputStreamer"

HOOKS: dict[str, Callable[..., Any]] = {
    f"{_SCHEDULER}._get_new_batch_prefill_raw": around_new_batch,
    f"{_ADDER}.add_one_req": around_add_one_req,
    f"{_ADDER}.add_chunked_req": around_add_chunked_req,
    f"{_ALLOCATION}.alloc_for_extend": around_alloc_for_extend,
    f"{_ALLOCATION}.alloc_token_slots": around_alloc_token_slots,
    f"{_ALLOCATION}.alloc_paged_token_slots_extend": around_alloc_paged_token_slots_extend,
    f"{_STREAMER}.get_cached_tokens_details": around_get_cached_tokens_details,
}
