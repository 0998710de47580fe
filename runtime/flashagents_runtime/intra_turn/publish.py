"""Publishing the prefix of admitted requests in the radix tree.

Who owns the slots of a request's row in `req_to_token`, by position, once it is published::

    0          start                     aligned      end
    |- cached --|-- published (new node) --|-- private --|
    |------ the tree's, locked by req -----|- the req's -|

`start` is what `match_prefix` found, `end` the end of what this pass computes (a chunk, or the whole
prompt), `aligned` is `end` rounded down to whole pages. `cache_protected_len` becomes `aligned`, so
that the later `cache_unfinished_req` finds its own node and frees nothing of it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from .. import sglang_seams as seams


@dataclass
class Figures:
    """Counters since start; tokens and requests."""

    published_requests: int = 0
    published_tokens: int = 0
    shared_in_turn: int = 0
    """Prompt tokens that a request did not compute because another one of the same pass did."""
    evictions: int = 0
    """Times that publishing had to evict."""
    not_published: Counter[str] = field(default_factory=Counter)
    """Admitted requests that stayed private, by reason (see `Publisher.publish`)."""

    def plain(self) -> dict[str, Any]:
        return {
            "published_requests": self.published_requests,
            "published_tokens": self.published_tokens,
            "shared_in_turn": self.shared_in_turn,
            "evictions": self.evictions,
            "not_published": dict(self.not_published),
        }


class Publisher:
    """Publishes for one tree cache (SGLang's RadixCache over a plain MHA/GQA pool).

    One admission pass is `begin_pass`, any number of `publish`, `end_pass`; `slots` holds what was
    allocated for the requests admitted in it, until `alloc_for_extend` takes it.
    """

    def __init__(self, cache: Any) -> None:
        self.cache = cache
        self.enabled = True
        self.figures = Figures()
        self.batch: Any = None
        """The batch whose `alloc_for_extend` runs, else None."""
        self.slots: dict[Any, Any] = {}
        """By request: slots of its extend range [start, end), int64 on the pool's device."""
        self._pass = 0
        self._waiting: list[Any] = []
        self._touched = False
        """The waiting requests' prefixes were refreshed in this pass."""
        self._key = seams.symbol("sglang.srt.mem_cache.radix_cache.RadixKey")
        self._match_params = seams.symbol("sglang.srt.mem_cache.base_prefix_cache.MatchPrefixParams")
        self._evict = seams.symbol("sglang.srt.mem_cache.common.evict_from_tree_cache")

    def begin_pass(self, waiting_queue: list[Any]) -> None:
        """An admission pass over `waiting_queue` starts."""
        self._pass += 1
        self._waiting = waiting_queue
        self._touched = False

    def end_pass(self) -> None:
        """The pass is over; its batch has its slots."""
        self._waiting = []
        self.slots.clear()
        self.batch = None

    def publish(self, adder: Any, req: Any) -> None:
        """Publish `req`, which `adder` (PrefillAdder) has just admitted.

        `req.extend_range` is set and `req.last_node` is locked for it. Where the request cannot be
        published it stays as stock has it, and the reason is counted:

        - ``private``: its K and V do not follow from its token ids (embeddings), or it belongs to a
          session of SGLang's own, or is marked to stay out of the tree
        - ``short``: no whole page is new
        - ``unaligned``: the new part does not start at the end of the tree's part, on a page
        - ``owned``: the next page is in the tree already, beyond what this request may match (a match
          leaves at least one token, and stops at `logprob_start_len`)
        - ``memory``: no slots even after eviction; `alloc_for_extend` decides what happens
        """
        self._count_shared(req)
        allocator, page = adder.token_to_kv_pool_allocator, adder.page_size
        start, end = len(req.prefix_indices), req.extend_range.end
        aligned = end // page * page
        reason = self._reason_to_stay_private(req, start, aligned, page)
        again: Any = ()
        known = 0
        if reason is None:
            tail = self._key(
                req.full_untruncated_fill_ids[start:aligned], req.extra_key, cache_salt=req.cache_salt
            )
            again = self.cache.held_again(req, tail)
            known = len(again)  # a tensor: asked once
            if known:
                tail = tail[known:]
            child_key = tail.child_key(page) if start + known < aligned else None
            if child_key in req.last_node.children:
                reason = "owned"
        if reason is not None:
            self.figures.not_published[reason] += 1
            return
        begin = start + known
        size = -(-(end - begin) // page) * page
        slots = self._alloc(adder, allocator, size) if size else again[:0]
        if slots is None:
            self.figures.not_published["memory"] += 1
            return

        if known:
            self.cache.pass_again(req, start, known)
        if begin < aligned:
            req.last_node = self.cache.add_locked_child(
                req.last_node,
                child_key,
                tail,
                slots[: aligned - begin],
                req.priority or 0,
                self._pass,
                req=req,
            )
        req.cache_protected_len = aligned
        slots = slots if size == end - begin else slots[: end - begin]
        self.slots[req] = _joined(again, slots) if known else slots
        # These tokens have left available_size(), or were there; the adder has charged them to its offsets.
        adder.rem_total_token_offset -= size + known
        adder.cur_rem_token_offset -= size + known
        self.figures.published_requests += 1
        self.figures.published_tokens += aligned - begin

    @staticmethod
    def _reason_to_stay_private(req: Any, start: int, aligned: int, page: int) -> str | None:
        if (
            req.input_embeds is not None
            or req.positional_embed_overrides is not None
            or req.multimodal_inputs is not None
            or req.session is not None
            or getattr(req, "skip_radix_cache_insert", False)
        ):
            return "private"
        if req.extend_range.start != start or start % page or req.cache_protected_len != start:
            return "unaligned"
        return "short" if aligned <= start else None

    def _count_shared(self, req: Any) -> None:
        """Count the part of the request's prefix that this very pass computes."""
        if req.retracted_stain:  # stock counts cached tokens of the first prefill only
            return
        shared, node = 0, req.last_node
        # Published nodes are the deepest ones: whatever hangs below one is as new.
        while getattr(node, "published_in", 0) == self._pass:
            shared += len(node.key)
            node = node.parent
        if shared:
            req.shared_in_turn = getattr(req, "shared_in_turn", 0) + shared
            self.figures.shared_in_turn += shared

    def _alloc(self, adder: Any, allocator: Any, size: int) -> Any:
        slots = allocator.alloc(size)
        if slots is None:  # it has fewer
            self.figures.evictions += 1
            if not self._touched:
                self._touched = True
                self._touch_waiting(adder)
            self._evict(self.cache, size)
            slots = allocator.alloc(size)
        return slots

    def _touch_waiting(self, adder: Any) -> None:
        """Make the prefixes that waiting requests will match the most recently used ones.

        Stock evicts once a pass, when every admitted request has locked its prefix. Publishing evicts
        in the middle of it, and must not take what a request admitted later in this pass needs. Only
        as many requests are looked at as this pass can still admit.
        """
        if self.cache.eviction_policy == "mru":  # would be evicted first
            return
        budget = adder.rem_total_tokens if adder.rem_chunk_tokens is None else adder.rem_chunk_tokens
        admitted = set(adder.can_run_list)
        for req in self._waiting:
            if req in admitted:
                continue
            if budget <= 0:
                break
            ids = req.origin_input_ids + req.output_ids
            match = self.cache.match_prefix(
                self._match_params(key=self._key(ids, req.extra_key, cache_salt=req.cache_salt))
            )
            budget -= len(ids) - len(match.device_indices)


def _joined(*slots: Any) -> Any:
    import torch

    return torch.cat(slots)
