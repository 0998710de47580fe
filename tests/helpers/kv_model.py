"""What every KV slot must hold, by a dictionary: the model that the cache is tested against.

The K that a transformer's last layer writes for a token follows from the whole prefix (and the adapter).
`KvModel` remembers it for each prefix the first time it sees it, and compares every later copy; so a
slot that holds another prefix's KV, or none, is found whoever owns it. After each check the free slots
are filled with NaN: what reads a slot that was never written spreads NaN and is found too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from flashagents_runtime.intra_turn.integrity import check_integrity, live_requests, nodes

Prefix = tuple[object, ...]


class KvModel:
    """Call it with the scheduler between two steps; raises AssertionError or IntegrityError."""

    def __init__(self) -> None:
        self.keys: dict[Prefix, torch.Tensor] = {}
        self.compared = 0

    def __call__(self, scheduler: Any) -> None:
        check_integrity(scheduler)
        pool = scheduler.token_to_kv_pool_allocator.get_kvcache()
        k = pool.get_key_buffer(pool.layer_num - 1).flatten(1)
        for prefix, slot in self._written(scheduler):
            value = k[slot]
            known = self.keys.get(prefix)
            if known is None:
                assert torch.isfinite(value).all(), f"slot {slot} holds garbage for {prefix}"
                self.keys[prefix] = value.clone()
            else:
                self.compared += 1
                assert torch.allclose(value, known, atol=1e-3, rtol=1e-3), (
                    f"slot {slot} differs from what its prefix means: {(value - known).abs().max()}"
                )
        self._poison(scheduler, pool)

    @staticmethod
    def _written(scheduler: Any) -> list[tuple[Prefix, int]]:
        """(prefix, slot) for all of the tree, and the rows of live requests as far as computed."""
        tree = getattr(scheduler.tree_cache, "inner", scheduler.tree_cache)
        found: list[tuple[Prefix, int]] = []
        at: dict[Any, int] = {tree.root_node: 0}  # hash of the prefix that ends with a node
        for node in nodes(tree):  # parents first
            space = (node.key.extra_key, node.key.cache_salt)
            prefixes = list(_prefixes(node.key.token_ids, at[node.parent]))
            at[node] = prefixes[-1]
            found += [((space, p), slot) for p, slot in zip(prefixes, node.value.tolist(), strict=True)]
        for req in live_requests(scheduler):
            row = scheduler.req_to_token_pool.req_to_token[req.req_pool_idx].tolist()
            prefixes = list(_prefixes([*req.origin_input_ids, *req.output_ids], 0))
            known = min(req.kv.kv_allocated_len, len(prefixes))
            space = (req.extra_key, req.cache_salt)
            found += [((space, prefixes[i]), row[i]) for i in range(req.cache_protected_len, known)]
        return found

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
