"""The order in which waiting requests are admitted, on top of any policy of SGLang."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import sglang_seams as seams
from .kinds import is_warm_up

#: Prefix matching costs time for each request, so SGLang's own lpm stops sorting there, too.
LONGEST_QUEUE = 128


class Order:
    """Sorts the waiting queue of one scheduler.

    Real requests stand before warm-ups; otherwise the policy's order stays.

    Args:
        clock: the time in seconds, from any origin.

    Attributes:
        shortest_first: among real requests, those with the least expected work go first: the prompt after
            what the radix cache holds of it, which is what has been prewarmed, and the answer.
        patience: seconds after which a request goes before all that are shorter.
    """

    def __init__(
        self, clock: Callable[[], float], *, shortest_first: bool = False, patience: float = 10.0
    ) -> None:
        self.shortest_first = shortest_first
        self.patience = patience
        self.sorted_passes = 0
        self._clock = clock
        self._match: Any = None

    def sort(self, waiting_queue: list[Any], tree_cache: Any) -> None:
        """Sort in place. Refreshes the matched prefix of real requests, as SGLang's policies do."""
        real = [req for req in waiting_queue if not is_warm_up(req)]
        warm_ups = [req for req in waiting_queue if is_warm_up(req)]
        if self.shortest_first and 1 < len(real) <= LONGEST_QUEUE:
            real = self._by_work(real, tree_cache)
        waiting_queue[:] = [*real, *warm_ups]

    def _by_work(self, real: list[Any], tree_cache: Any) -> list[Any]:
        now = self._clock()
        if self._match is None:
            self._match = seams.symbol("sglang.srt.managers.schedule_policy.match_prefix_for_req")
        keys = {}
        for req in real:
            if not hasattr(req, "waits_since"):
                req.waits_since = now
            if now - req.waits_since >= self.patience:
                keys[req] = (0, req.waits_since)
            else:
                self._match(tree_cache, req, include_req=True)
                keys[req] = (1, expected_work(req))
        self.sorted_passes += 1
        return sorted(real, key=keys.__getitem__)


def expected_work(req: Any) -> int:
    """Tokens that a waiting request is still expected to cost: prompt tokens to compute, and its answer.

    The answer counts as `max_new_tokens`, unless the request has a better guess in its
    `custom_params={"expected_tokens": n}`. `num_matched_prefix_tokens` must be fresh.
    """
    params = req.sampling_params
    hint = (params.custom_params or {}).get("expected_tokens")
    answer = params.max_new_tokens if hint is None else min(int(hint), params.max_new_tokens)
    prompt = len(req.origin_input_ids) + len(req.output_ids) - req.num_matched_prefix_tokens
    return int(prompt + max(answer - len(req.output_ids), 0))
