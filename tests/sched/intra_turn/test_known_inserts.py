"""What a published request leaves in the tree is what stock's insert would leave, to each counter."""

from __future__ import annotations

from typing import Any

import pytest

from helpers.scheduler_harness import Request, SchedulerHarness

from .conftest import Tokens

pytestmark = pytest.mark.engine


def tree(scheduler: SchedulerHarness) -> list[tuple[Any, ...]]:
    """The nodes below the root, in a fixed order, with all that eviction looks at but time and slots."""
    cache = scheduler.scheduler.tree_cache
    found, stack = [], [(cache.root_node, ())]
    while stack:
        node, path = stack.pop()
        for child in node.children.values():
            here = (*path, tuple(child.key.token_ids))
            found.append((here, child.hit_count, child.priority, child.lock_ref, len(child.value)))
            stack.append((child, here))
    return sorted(found)


@pytest.mark.parametrize("new", [1, 5])
def test_the_tree_is_the_same_without_the_second_insert(
    scheduler: SchedulerHarness, tokens: Tokens, monkeypatch: pytest.MonkeyPatch, new: int
) -> None:
    cache = type(scheduler.scheduler.tree_cache)
    known: list[bool] = []
    original = cache._in_tree
    prompts = [tokens(n) for n in (5, 16, 32, 47)]
    shared = tokens(48)
    prompts += [shared + tokens(n) for n in (1, 16, 20)]

    def run(name: str) -> list[tuple[Any, ...]]:
        scheduler.flush()
        for wave in (prompts[:5], prompts[5:], prompts[:1]):
            ids = [f"{name}-{new}-{len(known)}-{i}" for i in range(len(wave))]
            scheduler.submit(*[Request(rid, p, new) for rid, p in zip(ids, wave, strict=True)])
            scheduler.run()
        return tree(scheduler)

    def watch(self: Any, req: Any, n: int) -> bool:
        known.append(original(self, req, n))
        return known[-1]

    monkeypatch.setattr(cache, "_in_tree", watch)
    ours = run("ours")
    overlap = scheduler.scheduler.enable_overlap
    assert any(known) or (overlap and new == 1)  # there the first output token is inserted too
    monkeypatch.setattr(cache, "_in_tree", lambda self, req, n: False)
    assert run("stock") == ours
