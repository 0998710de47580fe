"""What every KV slot must hold, by a dictionary: the model that the cache is tested against.

The K that a transformer's last layer writes for a token follows from the whole prefix (and the adapter).
`KvModel` remembers it for each prefix the first time it sees it, and compares every later copy; so a
slot that holds another prefix's KV, or none, is found whoever owns it. After each check the free slots
are filled with NaN: what reads a slot that was never written spreads NaN and is found too.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from flashagents_runtime.intra_turn.integrity import check_integrity, live_requests, nodes

Prefix = tuple[object, int]
"""A namespace, and the hash of all tokens up to one."""


class KvModel:
    """Call it with the scheduler between two steps; raises AssertionError or IntegrityError."""

    def __init__(self) -> None:
        self._row: dict[Prefix, int] = {}
        self._known = torch.empty(0)
        """The K of each known prefix, at its row."""
        self._of_node: weakref.WeakKeyDictionary[Any, tuple[int, list[int], int]] = (
            weakref.WeakKeyDictionary()
        )
        self._of_req: weakref.WeakKeyDictionary[Any, list[int]] = weakref.WeakKeyDictionary()
        self.compared = 0

    def __call__(self, scheduler: Any) -> None:
        check_integrity(scheduler)
        pool = scheduler.token_to_kv_pool_allocator.get_kvcache()
        k = pool.get_key_buffer(pool.layer_num - 1).flatten(1)
        rows, slots, new = [], [], []
        for prefix, slot in self._written(scheduler):
            row = self._row.get(prefix)
            if row is None:
                self._row[prefix] = len(self._row)
                new.append(slot)
            else:
                rows.append(row)
                slots.append(slot)
        if new:
            values = k[new]
            bad = [s for s, ok in zip(new, torch.isfinite(values).all(-1).tolist(), strict=True) if not ok]
            assert not bad, f"slots {bad} hold KV that was never computed"
            self._known = torch.cat([self._known, values]) if len(self._known) else values.clone()
        if rows:
            far = ~torch.isclose(k[slots], self._known[rows], atol=1e-3, rtol=1e-3).all(-1)
            bad = [s for s, b in zip(slots, far.tolist(), strict=True) if b]
            assert not bad, f"slots {bad} hold something else than their prefixes mean"
            self.compared += len(rows)
        self._poison(scheduler, pool)

    def _written(self, scheduler: Any) -> Iterator[tuple[Prefix, int]]:
        """(prefix, slot) for all of the tree, and for live requests' private parts as far as computed."""
        tree = getattr(scheduler.tree_cache, "inner", scheduler.tree_cache)
        at: dict[Any, int] = {tree.root_node: 0}  # hash of the prefix that ends with a node
        for node in nodes(tree):  # parents first
            space = (node.key.extra_key, node.key.cache_salt)
            before = at[node.parent]
            cached = self._of_node.get(node)
            if cached is None or cached[0] != before or cached[2] != len(node.key):
                cached = (before, list(_prefixes(node.key.token_ids, before)), len(node.key))
                self._of_node[node] = cached
            at[node] = cached[1][-1]
            for prefix, slot in zip(cached[1], node.value.tolist(), strict=True):
                yield (space, prefix), slot
        for req in live_requests(scheduler):
            row = scheduler.req_to_token_pool.req_to_token[req.req_pool_idx].tolist()
            prefixes = self._of_req.setdefault(req, [])
            tokens = [*req.origin_input_ids, *req.output_ids]
            prefixes += _prefixes(tokens[len(prefixes) :], prefixes[-1] if prefixes else 0)
            space = (req.extra_key, req.cache_salt)
            for i in range(req.cache_protected_len, min(req.kv.kv_allocated_len, len(tokens))):
                yield (space, prefixes[i]), row[i]

    @staticmethod
    def _poison(scheduler: Any, pool: Any) -> None:
        allocator = scheduler.token_to_kv_pool_allocator
        free = torch.cat([allocator.free_pages, allocator.release_pages])
        page = allocator.page_size
        if page > 1:
            free = (free[:, None] * page + torch.arange(page)).flatten()
        for layer in range(pool.layer_num):
            pool.get_key_buffer(layer)[free] = float("nan")
            pool.get_value_buffer(layer)[free] = float("nan")


def _prefixes(tokens: Iterable[int], before: int) -> Iterator[int]:
    """Hash of each prefix of `tokens` that follows the prefix with hash `before`."""
    for token in tokens:
        before = hash((before, token))
        yield before
