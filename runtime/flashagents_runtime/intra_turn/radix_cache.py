"""SGLang's radix cache, with nodes that remember in which admission pass they were published."""

from __future__ import annotations

import functools
from typing import Any

from .. import sglang_seams as seams


@functools.cache
def cache_class() -> Any:
    """`FlashAgentsRadixCache`, a subclass of SGLang's RadixCache; imports SGLang at the first call."""
    base = seams.symbol("sglang.srt.mem_cache.radix_cache.RadixCache")
    tree_node = seams.symbol("sglang.srt.mem_cache.radix_cache.TreeNode")

    class FlashAgentsRadixCache(base):  # type: ignore[misc, valid-type]  # SGLang is untyped here
        """RadixCache whose nodes keep `published_in` when they are split."""

        def _split_node(self, key: Any, child: Any, split_len: int) -> Any:
            upper = super()._split_node(key, child, split_len)
            if hasattr(child, "published_in"):
                upper.published_in = child.published_in
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

    return FlashAgentsRadixCache


def adopt(cache: Any) -> bool:
    """Make `cache` a FlashAgentsRadixCache if it is exactly SGLang's RadixCache; says whether it is one.

    In place, because a second constructor call would register its metrics collectors twice.
    """
    if type(cache) is seams.symbol("sglang.srt.mem_cache.radix_cache.RadixCache"):
        cache.__class__ = cache_class()
    return isinstance(cache, cache_class())
