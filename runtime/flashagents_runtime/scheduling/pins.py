"""Soft pins: the KV of prefill sessions is evicted last, the oldest pin first, within a share of the pool.

A pin is an eviction order and never a lock: pinned nodes stay in `evictable_size()`, so the admission
budget sees the same as ever, and a real request takes what it needs, pins or not.

A pin stands at the deepest node of what its session has prefilled. Radix nodes are evicted from the leaves
up, so all nodes above it are kept with it. When that node is evicted after all, the pin moves up to its
parent: what is left of the prefix stays pinned.

Sessions that are never used must not cost others their cache, however many there are. So pins hold at most
`most` tokens, the newest of them, and make room for warm-ups themselves; and what warm-ups alone have put
there (`warm_only` of a node) is evicted before everything else once its pin has ended. The rest of the pool
is for those who asked for an answer. And the less of the latest warm-ups was of use, the less all may hold.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from .. import sglang_seams as seams
from .kinds import is_warm_up
from .ranks import LeadersClock
from .worth import Worth


@dataclass
class _Pin:
    node: Any
    """TreeNode whose `pinned_by` names the session."""
    order: int
    """Larger is newer."""
    expires: float


class Pins:
    """The pins of one radix tree, by session. Changes nothing of the tree but its nodes' `pinned_by`, a set
    of sessions, and `warm_only`.

    Args:
        ttl: seconds after its last warm-up that a session's pin lasts.
        clock: the time in seconds, from any origin.
        most: says how many tokens all pins may hold together now, each counted once.
        worth: is told what becomes of what warm-ups have computed.
    """

    def __init__(
        self,
        ttl: float,
        clock: Callable[[], float],
        most: Callable[[], float] = lambda: float("inf"),
        worth: Worth | None = None,
    ) -> None:
        if ttl <= 0:
            raise ValueError(f"a pin's time to live should be above 0 seconds, not {ttl}")
        self.ttl = ttl
        self.most = most
        self.worth = worth or Worth(1)
        self._clock = clock
        self._ranks = clock if isinstance(clock, LeadersClock) else None
        self._pins: dict[str, _Pin] = {}  # the oldest first
        self._count = 0
        self._grown = False
        """A pin has come since the last `within_share`."""
        self._held = 0
        """Tokens that they held then; evictions have taken of them since."""
        self.expired = 0
        self.gave_way = 0
        """Pins that ended because all together would have held too much."""
        self.evicted_tokens = 0
        """Of nodes that were pinned: what pressure has taken."""
        live.add(self)

    def __len__(self) -> int:
        return len(self._pins)

    def __contains__(self, session: str) -> bool:
        return session in self._pins

    def finished(self, cache: Any, req: Any, length: int, node: Any) -> None:
        """A request has left the pool (`node`: its last one); `length` tokens of it are in the tree.

        A warm-up moves its session's pin to its own end; one that was aborted is of no more use, and
        changes nothing, and one that is too large by itself is not pinned. Any other request of a session is
        the final one, and ends the pin.
        """
        if not is_warm_up(req):
            self.worth.used(mark_used(node))
            if req.session_id is not None and req.finished():
                self.drop(req.session_id)
        elif (
            length
            and req.finished()
            and not isinstance(
                req.finished_reason, seams.symbol("sglang.srt.managers.schedule_batch.FINISH_ABORT")
            )
        ):
            radix_key = seams.symbol("sglang.srt.mem_cache.radix_cache.RadixKey")
            match_params = seams.symbol("sglang.srt.mem_cache.base_prefix_cache.MatchPrefixParams")
            key = radix_key(req.origin_input_ids[:length], req.extra_key, cache_salt=req.cache_salt)
            end = cache.match_prefix(match_params(key=key)).last_device_node
            self.worth.used(mark_warm_only(end, length - req.cached_tokens))
            if length > self.most():
                self.drop(req.session_id)
                self.gave_way += 1
            else:
                self.pin(req.session_id, end)

    def pin(self, session: str, node: Any) -> None:
        """The session's KV ends at `node` now; its pin is the newest and lives from now."""
        self.drop(session)
        if node.parent is None:
            return  # the root holds nothing
        self._count += 1
        self._grown = True
        self._pins[session] = _Pin(node, self._count, self._clock() + self.ttl)
        if not hasattr(node, "pinned_by"):
            node.pinned_by = set()
        node.pinned_by.add(session)

    def drop(self, session: str) -> bool:
        """End a session's pin; says whether there was one. What nobody else has used of it goes first now."""
        pin = self._pins.pop(session, None)
        if pin is None:
            return False
        pin.node.pinned_by.discard(session)
        return True

    def clear(self) -> None:
        """End all pins."""
        for session in list(self._pins):
            self.drop(session)

    def expire(self) -> None:
        """End the pins whose time is over."""
        now = self._clock()
        while self._pins:
            session, pin = next(iter(self._pins.items()))
            if pin.expires > now:
                return
            self.drop(session)
            self.expired += 1

    def within_share(self, more: int = 0) -> None:
        """End the pins that would hold more than `most` tokens together with all newer ones, and `more`."""
        most = self.most() - more
        if not self._grown and self._held <= most:
            return
        held: set[Any] = set()
        total = 0
        for session, pin in list(self._pins.items())[::-1]:
            path, node = [], pin.node
            while node.parent is not None and node not in held:
                path.append(node)
                node = node.parent
            tokens = sum(len(node.key) for node in path)
            if total + tokens > most:
                self.drop(session)
                self.gave_way += 1
            else:
                total += tokens
                held.update(path)
        self._grown, self._held = False, total

    def rank(self, node: Any) -> int | None:
        """The age of the newest pin at a node, larger is newer; None where nothing is pinned."""
        sessions = getattr(node, "pinned_by", None)
        return max(self._pins[session].order for session in sessions) if sessions else None

    def evicted(self, node: Any) -> None:
        """`node`, a leaf, is about to be deleted: its pins move to its parent, if that is not the root."""
        if self._ranks is not None:
            self._ranks.decide(len(node.key), node.key.token_ids[-1])
        if getattr(node, "warm_only", False):
            self.worth.wasted(len(node.key))
        sessions = getattr(node, "pinned_by", None)
        if not sessions:
            return
        self.evicted_tokens += len(node.key)
        parent = node.parent
        if parent.parent is None:
            for session in list(sessions):
                self.drop(session)
            return
        if not hasattr(parent, "pinned_by"):
            parent.pinned_by = set()
        parent.pinned_by |= sessions
        for session in sessions:
            self._pins[session].node = parent

    def findings(self, nodes: set[Any]) -> Iterator[str]:
        """What is wrong between the pins and `nodes`, all of the tree's but its root."""
        for session, pin in self._pins.items():
            if pin.node not in nodes:
                yield f"the pin of session {session} stands at node {pin.node.id}, which is not in the tree"
            elif session not in pin.node.pinned_by:
                yield f"node {pin.node.id} does not know the pin of session {session}"
        for node in nodes:
            for session in getattr(node, "pinned_by", ()):
                if session not in self._pins or self._pins[session].node is not node:
                    yield f"node {node.id} is pinned by session {session}, whose pin stands elsewhere"


live: weakref.WeakSet[Pins] = weakref.WeakSet()
"""Those of this process, which holds one scheduler."""


def mark_warm_only(node: Any, tokens: int) -> int:
    """The last `tokens` of the prefix that ends at `node` were computed by a warm-up.

    Returns how many of them a request that generates has had meanwhile.
    """
    used = 0
    while node.parent is not None and tokens >= len(node.key):
        tokens -= len(node.key)
        if getattr(node, "warm_only", None) is None:  # nobody has used it
            node.warm_only = True
        elif not node.warm_only:
            used += len(node.key)
        node = node.parent
    return used


def mark_used(node: Any) -> int:
    """A request that generates had the prefix that ends at `node`.

    Returns how many of its tokens were warm-ups' alone until now.
    """
    used = 0
    while node is not None:
        if getattr(node, "warm_only", False):
            used += len(node.key)
        node.warm_only = False
        node = node.parent
    return used


class PinnedLast:
    """An eviction strategy of SGLang around another one, by three ranks and its own order in each: what
    warm-ups have left behind, what requests have used, what is pinned.
    """

    def __init__(self, strategy: Any, pins: Pins) -> None:
        self._strategy = strategy
        self._pins = pins

    def get_priority(self, node: Any) -> tuple[int, Any]:
        """Smaller is evicted earlier."""
        rank = self._pins.rank(node)
        if rank is not None:
            return (1, rank)
        return (-1 if getattr(node, "warm_only", False) else 0, self._strategy.get_priority(node))
