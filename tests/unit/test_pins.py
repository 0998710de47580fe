"""Pins as an eviction order: a dictionary of nodes is enough, no scheduler."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from flashagents_runtime.scheduling.pins import PinnedLast, Pins, mark_used, mark_warm_only
from flashagents_runtime.scheduling.ranks import LeadersClock


@dataclass(eq=False)
class Node:
    """What Pins sees of SGLang's TreeNode."""

    id: int
    parent: Any
    used: float = 0.0
    key: list[int] = field(default_factory=lambda: [1, 2, 3])


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def pins(clock: Clock) -> Pins:
    return Pins(10.0, clock)


def order_of(pins: Pins, nodes: list[Node]) -> list[int]:
    """Ids in the order of eviction; least recently used first among those that are not pinned."""
    strategy = PinnedLast(SimpleNamespace(get_priority=lambda node: node.used), pins)
    return [node.id for node in sorted(nodes, key=strategy.get_priority)]


def tree(n: int) -> tuple[Node, list[Node]]:
    root = Node(0, None)
    return root, [Node(i + 1, root, used=float(n - i)) for i in range(n)]


def test_pinned_nodes_go_last_and_the_oldest_pin_first(pins: Pins) -> None:
    _, nodes = tree(5)
    assert order_of(pins, nodes) == [5, 4, 3, 2, 1]
    pins.pin("a", nodes[4])
    pins.pin("b", nodes[2])
    assert order_of(pins, nodes) == [4, 2, 1, 5, 3]
    pins.pin("a", nodes[4])  # a further warm-up: now the newest
    assert order_of(pins, nodes) == [4, 2, 1, 3, 5]
    assert pins.drop("a") and not pins.drop("a")
    assert order_of(pins, nodes) == [5, 4, 2, 1, 3]


def test_a_node_is_as_new_as_its_newest_pin(pins: Pins) -> None:
    _, nodes = tree(2)
    pins.pin("a", nodes[0])
    pins.pin("b", nodes[1])
    pins.pin("c", nodes[0])
    assert order_of(pins, nodes) == [2, 1]
    pins.drop("c")
    assert order_of(pins, nodes) == [1, 2]


def test_time_to_live(pins: Pins, clock: Clock) -> None:
    _, nodes = tree(2)
    pins.pin("a", nodes[0])
    clock.now += 6
    pins.pin("b", nodes[1])
    clock.now += 4
    pins.expire()
    assert "a" not in pins and "b" in pins and pins.expired == 1
    pins.pin("b", nodes[0])
    clock.now += 9
    pins.expire()
    assert "b" in pins
    clock.now += 1
    pins.expire()
    assert len(pins) == 0


def test_an_evicted_pin_moves_up_and_ends_at_the_root(pins: Pins) -> None:
    root = Node(0, None)
    upper = Node(1, root)
    lower = Node(2, upper)
    other = Node(3, upper)
    pins.pin("a", lower)
    pins.pin("b", other)
    pins.evicted(lower)
    assert list(pins.findings({upper, other})) == []
    assert pins.rank(upper) is not None and pins.evicted_tokens == 3
    pins.evicted(other)
    assert list(pins.findings({upper})) == []
    pins.evicted(upper)
    assert len(pins) == 0 and list(pins.findings(set())) == []


def path(parent: Node, first: int, *lengths: int) -> list[Node]:
    """Nodes one below the other, the uppermost below `parent`."""
    nodes = []
    for i, length in enumerate(lengths):
        parent = Node(first + i, parent, key=[0] * length)
        nodes.append(parent)
    return nodes


def test_pins_hold_their_share_and_the_newest_of_them_stay(clock: Clock) -> None:
    pins = Pins(10.0, clock, most=lambda: 10)
    head, old, new = path(Node(0, None), 1, 4, 3, 3)
    branch, large = path(head, 4, 4, 20)
    pins.pin("old", old)
    pins.pin("new", new)  # 10 tokens with its path, of which "old" has 7
    pins.within_share()
    assert "old" in pins and "new" in pins and pins.gave_way == 0
    pins.pin("branch", branch)  # 8 with its head, which counts once: 2 are left for "new" and "old"
    pins.within_share()
    assert [s for s in ("old", "new", "branch") if s in pins] == ["branch"] and pins.gave_way == 2
    pins.pin("small", head)
    pins.within_share()
    assert "branch" in pins and "small" in pins
    pins.pin("large", large)
    pins.within_share()
    assert len(pins) == 2 and "large" not in pins, "what fits nobody's share costs the others nothing"


def test_what_warm_ups_left_behind_goes_first(pins: Pins) -> None:
    root = Node(0, None)
    head, own, tail = path(root, 1, 4, 3, 2)
    other = Node(9, root, used=-100.0)
    mark_warm_only(tail, 5)  # the head was there before
    assert [getattr(n, "warm_only", False) for n in (head, own, tail)] == [False, True, True]
    assert order_of(pins, [other, tail]) == [3, 9]
    pins.pin("a", tail)
    assert order_of(pins, [other, tail]) == [9, 3]
    pins.drop("a")
    mark_used(own)
    assert order_of(pins, [other, own, tail]) == [3, 9, 2]
    mark_warm_only(own, 3)  # a warm-up that came to it later did not make it
    assert order_of(pins, [other, own]) == [9, 2]


def test_moving_clearing_and_the_root(pins: Pins) -> None:
    root, nodes = tree(2)
    pins.pin("a", root)
    assert len(pins) == 0
    pins.pin("a", nodes[0])
    pins.pin("a", nodes[1])
    assert pins.rank(nodes[0]) is None and pins.rank(nodes[1]) is not None
    pins.clear()
    assert len(pins) == 0 and list(pins.findings(set(nodes))) == []


def test_findings(pins: Pins) -> None:
    _, nodes = tree(2)
    pins.pin("a", nodes[0])
    assert "not in the tree" in next(pins.findings({nodes[1]}))
    nodes[0].pinned_by.clear()  # type: ignore[attr-defined]
    assert "does not know" in next(pins.findings(set(nodes)))
    nodes[1].pinned_by = {"a"}  # type: ignore[attr-defined]
    assert any("stands elsewhere" in line for line in pins.findings(set(nodes)))


def test_a_pin_must_live(clock: Clock) -> None:
    with pytest.raises(ValueError, match="above 0"):
        Pins(0, clock)


class Key(list[int]):
    """Of a node, as SGLang's RadixKey."""

    @property
    def token_ids(self) -> list[int]:
        return self


def test_over_ranks_what_is_evicted_is_part_of_the_checksum() -> None:
    sums = set()
    for keys in ([Key([1, 2])], [Key([1, 3])], [Key([0, 1, 2])], [Key([1, 2])] * 2, []):
        ranks = LeadersClock(Clock())
        pins = Pins(10.0, ranks)
        for key in keys:
            pins.evicted(Node(1, Node(0, None), key=key))
        sums.add(ranks.lead([object()])[-1].decided)
    assert len(sums) == 5
