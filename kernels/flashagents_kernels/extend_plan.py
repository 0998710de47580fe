"""What the layers of a forward pass have in common in `extend`, worked out once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from .launches import Launches


class ExtendPlan:
    """The checks, the launch configuration, the scratch and the launches of one layer, for all layers.

    The first `extend` with a plan does what it does without one, and notes it. Each later one with the
    same page tables and options, and with tensors of the same layouts, only starts the same kernels; one
    that differs is done in full. On the torch path a plan does nothing. One plan serves one forward pass on
    one stream: scratch is used again by the next layer.

    Example:
        plan = ExtendPlan()
        for layer in layers:
            extend(q, k, v, qo_indptr, k_cache, v_cache, kv_indptr, kv_indices, max_new=n, plan=plan)
    """

    def __init__(self) -> None:
        self._common: tuple[Any, ...] = ()
        self._launches: Launches | None = None
        self.repeated = 0
        """Calls that started the kernels of the first one."""

    def repeat(self, common: tuple[Any, ...], tensors: Mapping[str, Any]) -> bool:
        """Do the call again with other tensors, if it is like the first one.

        Args:
            common: what is the same in all layers; tensors among it must be the very same ones.
            tensors: what is not, by name.
        """
        launches = self._launches
        if launches is None or not _same(common, self._common) or not launches.fit(tensors):
            return False
        launches.again(tensors)
        self.repeated += 1
        return True

    def record(self, tensors: Mapping[str, Any]) -> Launches | None:
        """Where to note the launches of a call; None where they cannot be repeated, or one is noted."""
        if self._launches is not None:
            return None
        launches = Launches(tensors)
        return launches if launches.usable else None

    def keep(self, common: tuple[Any, ...], launches: Launches) -> None:
        """The call that was noted is through."""
        launches.done()
        self._common, self._launches = common, launches


def _same(some: tuple[Any, ...], others: tuple[Any, ...]) -> bool:
    return len(some) == len(others) and all(
        x is y or (not isinstance(x, torch.Tensor) and not isinstance(y, torch.Tensor) and x == y)
        for x, y in zip(some, others, strict=True)
    )
