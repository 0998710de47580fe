"""`base`: an agent catches up with what others have cached (LRAgent's LR prefill), in the radix cache.

K and V_base of a node serve all members; its rows serve those whose pass has written them, the node's
`seen`. So a member's match ends where its rows end. From there its request is computed as ever, but the
tokens that the tree holds already are given the tree's slots instead of new ones: the pass writes the
member's rows there and leaves K and V as they are (`attention`). Who owns the slots of such a request's row::

    0        start                 begin        aligned      end
    |- seen --|- held, not seen ----|- published -|- private --|
    |---------------- the tree's, locked by req --|- the req's -|
"""

from __future__ import annotations

import functools
from typing import Any

from ..intra_turn.integrity import nodes, path
from .members import Group
from .tree import shared_cache_class


@functools.cache
def catch_up_cache_class() -> Any:
    """`CatchUpRadixCache`, a subclass of `SharedRadixCache`; imports SGLang at the first call."""
    base = shared_cache_class()

    class CatchUpRadixCache(base):  # type: ignore[misc, valid-type]
        """Nodes carry `seen`, a bit for each member's number whose rows they hold."""

        caught_up_tokens = 0
        carried_tokens = 0

        def match_prefix(self, params: Any) -> Any:
            """The longest prefix whose rows the asking member has; all of it where no request asks."""
            result = super().match_prefix(params)
            bit = 1 << self._number(params.req)
            if bit == 1:
                return result
            length, last = 0, self.root_node
            for node in path(self, result.last_device_node):
                if not node.seen & bit:
                    break
                length, last = length + len(node.key), node
            if last is result.last_device_node:
                return result
            return result._replace(
                device_indices=result.device_indices[:length],
                last_device_node=last,
                last_host_node=last,
                best_match_node=last,
            )

        # ---- a request is admitted

        def held_again(self, req: Any, key: Any) -> Any:
            """Slots of the first tokens of `key` that the tree holds below `req.last_node`; locks them."""
            if not self._number(req):
                return super().held_again(req, key)
            import torch

            node, slots = req.last_node, []
            while len(key):
                child = node.children.get(key.child_key(self.page_size)) if node.children else None
                if child is None:
                    break
                length = child.key.match(key, page_size=self.page_size)
                node = self._split_node(child.key, child, length) if length < len(child.key) else child
                slots.append(node.value)
                key = key[length:]
            if not slots:
                return super().held_again(req, key)
            self.inc_lock_ref(node)
            self.dec_lock_ref(req.last_node)
            req.last_node = node
            return torch.cat(slots)

        def pass_again(self, req: Any, start: int, count: int) -> None:
            """The pass to come writes the member's rows of `count` held tokens behind the first `start`."""
            bit, end, at = 1 << self._number(req), start + count, 0
            for node in path(self, req.last_node):
                at += len(node.key)
                if start < at <= end:
                    node.seen |= bit
            req.flashagents_again = count
            self.caught_up_tokens += count

        def add_locked_child(self, *args: Any, req: Any) -> Any:
            node = super().add_locked_child(*args, req=req)
            node.seen = 1 << self._number(req)
            return node

        # ---- what SGLang inserts itself

        def _insert_helper(self, *args: Any, **kwargs: Any) -> tuple[int, Any]:
            length, node = super()._insert_helper(*args, **kwargs)
            if node is not self.root_node and not hasattr(node, "seen"):
                node.seen = 1 << self._number(self._inserting)
            return length, node

        def _split_node(self, key: Any, child: Any, split_len: int) -> Any:
            upper = super()._split_node(key, child, split_len)
            upper.seen = child.seen
            return upper

        def cache_unfinished_req(self, req: Any, chunked: bool = False) -> None:
            """A request that stayed private goes on with the tree's slots: its rows move there."""
            number = self._number(req)
            row = self.req_to_token_pool.req_to_token[req.req_pool_idx]
            first = req.cache_protected_len
            before = row[first : len(req.get_fill_ids())].clone() if number else None
            super().cache_unfinished_req(req, chunked)
            if before is None:
                return
            after = row[first : first + len(before)]
            moved = (before != after).nonzero().flatten()
            if len(moved):
                rows = self.sharing.rows
                rows[:, after[moved].long(), number - 1] = rows[:, before[moved].long(), number - 1]
                self.carried_tokens += len(moved)

        # ---- what is no longer true

        def drop_writer(self, group: Group, number: int) -> None:
            super().drop_writer(group, number)
            for node in nodes(self):
                node.seen &= ~(1 << number)

        def drop_figures(self) -> dict[str, int]:
            return {
                **super().drop_figures(),
                "caught_up_tokens": self.caught_up_tokens,
                "carried_tokens": self.carried_tokens,
            }

    return CatchUpRadixCache


__all__ = ["catch_up_cache_class"]
