"""The radix cache of a scheduler whose adapters share: it knows which member wrote each node.

The K and V of a node were computed with the hidden states of one member, the *writer*. When that adapter
is unloaded or replaced, its nodes must go, and with them what was computed on top of them. Nodes that a
running request holds cannot go; then the group gets a new namespace, and all it has cached is left behind.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from ..intra_turn.integrity import nodes
from ..intra_turn.radix_cache import cache_class
from . import sharing
from .members import Group


@functools.cache
def shared_cache_class() -> Any:
    """`SharedRadixCache`, a subclass of `FlashAgentsRadixCache`; imports SGLang at the first call."""
    base = cache_class()

    class SharedRadixCache(base):  # type: ignore[misc, valid-type]
        """Nodes carry `writer`, the number of the member whose request put them there."""

        sharing: Any = None
        _inserting: Any = None
        dropped_tokens = 0
        new_namespaces = 0

        # ---- who wrote what

        def add_locked_child(self, *args: Any, req: Any) -> Any:
            node = super().add_locked_child(*args, req=req)
            node.writer = self._number(req)
            return node

        def cache_unfinished_req(self, req: Any, chunked: bool = False) -> None:
            self._inserting = req
            try:
                super().cache_unfinished_req(req, chunked)
            finally:
                self._inserting = None

        def cache_finished_req(self, req: Any, is_insert: bool = True, **kwargs: Any) -> None:
            self._inserting = req
            try:
                super().cache_finished_req(req, is_insert, **kwargs)
            finally:
                self._inserting = None

        def _insert_helper(self, *args: Any, **kwargs: Any) -> tuple[int, Any]:
            length, node = super()._insert_helper(*args, **kwargs)
            if node is not self.root_node and not hasattr(node, "writer"):
                node.writer = self._number(self._inserting)
            return length, node

        def _split_node(self, key: Any, child: Any, split_len: int) -> Any:
            upper = super()._split_node(key, child, split_len)
            if hasattr(child, "writer"):
                upper.writer = child.writer
            return upper

        def _number(self, req: Any) -> int:
            number: int = self.sharing.members.number(req.lora_id) if req is not None else 0
            return number

        # ---- what is no longer true

        def drop_writer(self, group: Group, number: int) -> None:
            """Forget what a member wrote in its group's namespace, and all that follows it."""
            self._drop(group, [n for n in self._tops(group) if n.writer == number])

        def drop_group(self, group: Group) -> None:
            """Forget all of a group's namespace."""
            self._drop(group, [n for n in self._tops(group) if n.parent is self.root_node])

        def _tops(self, group: Group) -> Iterator[Any]:
            space = group.namespace
            return (n for n in nodes(self) if (n.key.extra_key or "").endswith(space))

        def _drop(self, group: Group, tops: list[Any]) -> None:
            # In the order of the tree, as ranks must free alike: sets go by address.
            doomed: dict[Any, None] = {}
            for top in tops:  # parents come first, so a top below another one is there already
                if top not in doomed:
                    doomed |= dict.fromkeys(_below(top))
            if any(node.lock_ref for node in doomed):
                self.sharing.members.leave_behind(group)
                self.new_namespaces += 1
                return
            for node in sorted(doomed, key=_depth, reverse=True):
                self.token_to_kv_pool_allocator.free_segment(node.value, start_pos=0)
                self.dropped_tokens += len(node.key)
                self._delete_leaf(node)
                self._record_remove_event(node)

        def drop_figures(self) -> dict[str, int]:
            """Counters for the handshake."""
            return {"dropped_tokens": self.dropped_tokens, "new_namespaces": self.new_namespaces}

    return SharedRadixCache


def _below(node: Any) -> Iterator[Any]:
    stack = [node]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(node.children.values())


def _depth(node: Any) -> int:
    depth = 0
    while node.parent is not None:
        node, depth = node.parent, depth + 1
    return depth


def adopt(cache: Any, state: sharing.Sharing) -> None:
    """Make a `FlashAgentsRadixCache` one that knows its writers, and under `base` who has seen what."""
    from .catch_up import catch_up_cache_class

    cache.__class__ = catch_up_cache_class() if state.config.scheme == "base" else shared_cache_class()
    cache.sharing = state
    state.tree = cache


__all__ = ["adopt", "shared_cache_class"]
