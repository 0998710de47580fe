"""`check_integrity`: every KV slot has exactly one owner, and every lock a holder.

Called between two steps of a scheduler. The owners are the allocator's free list, the radix tree, and
the private part of each live request's row (see `publish`); KV that SGLang's streaming sessions park is
theirs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["IntegrityError", "around_on_idle", "check_integrity"]


class IntegrityError(RuntimeError):
    """KV bookkeeping is inconsistent; the message lists what was found."""


def check_integrity(scheduler: Any) -> None:
    """Check tree, pool, locks and requests of a scheduler whose cache is a RadixCache.

    Reads all of the pool's bookkeeping to the host (milliseconds per 10,000 slots); mutates nothing.
    Raises IntegrityError.
    """
    findings = list(_findings(scheduler))
    if findings:
        shown = "\n  ".join(findings[:20])
        raise IntegrityError(f"{len(findings)} inconsistencies:\n  {shown}")


def around_on_idle(original: Callable[..., Any], self: Any) -> Any:
    """Hook on `Scheduler.on_idle` under FLASHAGENTS_CHECK=1."""
    check_integrity(self)
    return original(self)


def _findings(s: Any) -> Iterator[str]:
    tree = getattr(s.tree_cache, "inner", s.tree_cache)
    allocator = s.token_to_kv_pool_allocator
    page = allocator.page_size
    owner: dict[int, str] = {}

    def own(slots: list[int], who: str) -> Iterator[str]:
        for slot in slots:
            if slot in owner:
                yield f"slot {slot} belongs to {owner[slot]} and to {who}"
            owner[slot] = who

    yield from own(_free_slots(allocator, page), "the free list")
    yield from _tree_findings(tree, own)
    sessions = [slot for slot in getattr(s.tree_cache, "slots", {}).values() if slot.is_holding_kv]
    holders = [*live_requests(s), *sessions]
    for req in holders:
        yield from _row_findings(s, tree, req, page, own)
    yield from _lock_findings(tree, holders)
    pins = getattr(tree, "pins", None)
    if pins is not None:
        yield from pins.findings(set(nodes(tree)))
    publisher = getattr(tree, "intra_turn", None)
    if publisher is not None and publisher.slots:
        yield f"published slots of {len(publisher.slots)} requests were never handed out"
    total = allocator.size if page == 1 else allocator.num_pages * page
    if len(owner) != total:
        yield f"{total - len(owner)} of {total} slots have no owner"


def live_requests(s: Any) -> list[Any]:
    """The scheduler's requests that hold a row, each once: running, in flight, or between two chunks."""
    batches = [s.running_batch, s.last_batch, *(b for b, _ in getattr(s, "result_queue", ()))]
    reqs = [req for batch in batches if batch is not None for req in batch.reqs]
    reqs += [s.chunked_req] if s.chunked_req is not None else []
    # A request of a streaming session gives its row to the session when it ends.
    return [req for req in dict.fromkeys(reqs) if req.req_pool_idx is not None and req.kv is not None]


def nodes(tree: Any) -> Iterator[Any]:
    """All nodes of a radix tree but its root, parents first."""
    stack = list(tree.root_node.children.values())
    while stack:
        node = stack.pop()
        yield node
        stack.extend(node.children.values())


def path(tree: Any, node: Any) -> list[Any]:
    """Nodes from below the root down to `node`."""
    found = []
    while node is not tree.root_node:
        found.append(node)
        node = node.parent
    return found[::-1]


def _free_slots(allocator: Any, page: int) -> list[int]:
    pages: list[int] = [*allocator.free_pages.tolist(), *allocator.release_pages.tolist()]
    if page == 1:
        return pages
    return [p * page + i for p in pages for i in range(page)]


def _tree_findings(tree: Any, own: Callable[[list[int], str], Iterator[str]]) -> Iterator[str]:
    evictable = protected = 0
    for node in nodes(tree):
        if len(node.key) != len(node.value):
            yield f"node {node.id} has {len(node.key)} tokens and {len(node.value)} slots"
        if len(node.key) % tree.page_size:
            yield f"node {node.id} has {len(node.key)} tokens, no whole pages"
        if node.parent.children.get(node.key.child_key(tree.page_size)) is not node:
            yield f"node {node.id} is not its parent's child under its own key"
        if node.lock_ref:
            protected += len(node.key)
        else:
            evictable += len(node.key)
        leaf = not node.children and not node.lock_ref
        if leaf is not (node in tree.evictable_leaves):
            yield f"node {node.id} is {'' if leaf else 'not '}an evictable leaf, the tree says otherwise"
        yield from own(node.value.tolist(), f"node {node.id}")
    if (evictable, protected) != (tree.evictable_size(), tree.protected_size()):
        yield (
            f"the tree holds {evictable} evictable and {protected} protected tokens, its counters say "
            f"{tree.evictable_size()} and {tree.protected_size()}"
        )


def _row_findings(
    s: Any, tree: Any, req: Any, page: int, own: Callable[[list[int], str], Iterator[str]]
) -> Iterator[str]:
    who = f"request {getattr(req, 'rid', 'of a session')}"
    row = s.req_to_token_pool.req_to_token[req.req_pool_idx].tolist()
    allocated, protected = req.kv.kv_allocated_len, req.cache_protected_len
    in_tree = [slot for node in path(tree, req.last_node) for slot in node.value.tolist()]
    if in_tree != row[:protected]:
        yield f"{who}: the first {protected} slots of its row are not those of its path ({len(in_tree)})"
    yield from own(row[protected:allocated], who)
    if page > 1 and allocated % page:
        last = row[allocated - 1]
        yield from own(list(range(last + 1, (last // page + 1) * page)), f"{who} (rest of its page)")


def _lock_findings(tree: Any, holders: list[Any]) -> Iterator[str]:
    expected = Counter(node for req in holders for node in path(tree, req.last_node))
    for node in nodes(tree):
        if node.lock_ref != expected[node]:
            yield f"node {node.id} has {node.lock_ref} locks and {expected[node]} holders"
    pool_indices = Counter(req.req_pool_idx for req in holders)
    for index, count in pool_indices.items():
        if count > 1:
            yield f"row {index} belongs to {count} requests"
