"""SGLang's radix cache, with nodes that remember in which admission pass they were published, and pins."""

from __future__ import annotations

import functools
import time
from typing import Any

from .. import sglang_seams as seams


@functools.cache
def cache_class() -> Any:
    """`FlashAgentsRadixCache`, a subclass of SGLang's RadixCache; imports SGLang at the first call."""
    base = seams.symbol("sglang.srt.mem_cache.radix_cache.RadixCache")
    tree_node = seams.symbol("sglang.srt.mem_cache.radix_cache.TreeNode")

    class FlashAgentsRadixCache(base):  # type: ignore[misc, valid-type]  # SGLang is untyped here
        """RadixCache that serves pins; nodes keep `published_in` and `warm_only` when they are split.

        A split needs nothing for pins: the lower half is the old node, and a pin stands at its end.
        """

        pins: Any = None
        """`scheduling.pins.Pins`, whose order `eviction_strategy` follows; None without the feature."""

        def evict(self, params: Any) -> Any:
            if self.pins is not None:
                self.pins.expire()
                self.pins.within_share()
            return super().evict(params)

        def _delete_leaf(self, node: Any) -> None:
            if self.pins is not None:
                self.pins.evicted(node)
            super()._delete_leaf(node)

        def reset(self) -> None:
            if self.pins is not None:
                self.pins.clear()
            super().reset()

        def cache_finished_req(self, req: Any, is_insert: bool = True, *, kv_len_to_handle: int) -> None:
            """As stock, without inserting again what the tree has; then the request's session may pin it."""
            node = req.last_node
            self._finish(req, is_insert, kv_len_to_handle)
            if self.pins is not None:
                self.pins.finished(self, req, kv_len_to_handle if is_insert else 0, node)

        def _split_node(self, key: Any, child: Any, split_len: int) -> Any:
            upper = super()._split_node(key, child, split_len)
            for name in ("published_in", "warm_only"):
                if hasattr(child, name):
                    setattr(upper, name, getattr(child, name))
            return upper

        def held_again(self, req: Any, key: Any) -> Any:
            """Slots of the first tokens of `key`, below `req.last_node`, that `req` computes although they
            are in the tree; it locks them instead of its last node. None here: see `lora_sharing.catch_up`.
            """
            return self._empty_match_result.device_indices

        def pass_again(self, req: Any, start: int, count: int) -> None:
            """`req` will compute `count` tokens behind its first `start` that `held_again` has found."""

        def add_locked_child(
            self,
            parent: Any,
            child_key: Any,
            key: Any,
            value: Any,
            priority: int,
            published_in: int,
            *,
            req: Any,
        ) -> Any:
            """Insert a node of `req` below `parent`, which has no child under `child_key`; returns the node.

            The caller's lock on `parent` becomes one on the new node: the same as `_insert_helper`,
            `inc_lock_ref(node)`, `dec_lock_ref(parent)`, without walking the path twice. `value` (slots,
            int64, one a token) is copied.
            """
            node = tree_node(priority=priority)
            node.parent = parent
            node.key = key
            node.value = value.clone()
            node.lock_ref = 1
            node.published_in = published_in
            parent.children[child_key] = node
            parent.priority = max(parent.priority, priority)
            self.protected_size_ += len(key)
            self._record_store_event(node)
            return node

        def cache_unfinished_req(self, req: Any, chunked: bool = False) -> None:
            """As stock; where the tree has all of the request already, without walking it twice."""
            n = req.extend_range.end
            if not self._in_tree(req, n):
                super().cache_unfinished_req(req, chunked)
                return
            self._touch(req, chunked)
            row = self.req_to_token_pool.req_to_token[req.req_pool_idx, :n]
            req.prefix_indices = row.to(dtype=req.prefix_indices.dtype, copy=True)

        def _finish(self, req: Any, is_insert: bool, kv_len_to_handle: int) -> None:
            n = min(kv_len_to_handle, len(req.origin_input_ids) + len(req.output_ids))
            if not is_insert or self.disable_finished_insert or not self._in_tree(req, n):
                super().cache_finished_req(req, is_insert, kv_len_to_handle=kv_len_to_handle)
                return
            self._touch(req, False)
            start = req.cache_protected_len
            if start < n:  # less than a page
                tail = self.req_to_token_pool.req_to_token[req.req_pool_idx, start:n]
                self.token_to_kv_pool_allocator.free_segment(tail, start_pos=start)
            self.dec_lock_ref(req.last_node)

        def _in_tree(self, req: Any, n: int) -> bool:
            """Whether the whole pages of the first `n` tokens are the path to `req.last_node`.

            So it is where publishing made `cache_protected_len` the end of them. Inserting them again would
            change nothing but what `_touch` does.
            """
            if self.disable or self.is_eagle or req.last_node is None:
                return False
            return n > 0 and req.cache_protected_len == n // self.page_size * self.page_size

        def _touch(self, req: Any, chunked: bool) -> None:
            """What `_insert_helper` does to the nodes that it passes."""
            now, priority, node = time.monotonic(), req.priority or 0, req.last_node
            while node is not None:
                node.last_access_time = now
                node.priority = max(node.priority, priority)
                if node is not self.root_node:
                    self._inc_hit_count(node, chunked)
                node = node.parent

    return FlashAgentsRadixCache


def adopt(cache: Any) -> bool:
    """Make `cache` a FlashAgentsRadixCache if it is exactly SGLang's RadixCache; says whether it is one.

    In place, because a second constructor call would register its metrics collectors twice.
    """
    if type(cache) is seams.symbol("sglang.srt.mem_cache.radix_cache.RadixCache"):
        cache.__class__ = cache_class()
    return isinstance(cache, cache_class())
