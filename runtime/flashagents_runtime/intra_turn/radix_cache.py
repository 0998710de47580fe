"""SGLang's radix cache, with nodes that remember in which admission pass they were published."""

from __future__ import annotations

import functools
from typing import Any

from .. import sglang_seams as seams


@functools.cache
def cache_class() -> Any:
    """`FlashAgentsRadixCache`, a subclass of SGLang's RadixCache; imports SGLang at the first call."""
    base = seams.symbol("sglang.srt.mem_cache.radix_cache.RadixCache")

    class FlashAgentsRadixCache(base):  # type: ignore[misc, valid-type]  # SGLang is untyped here
        """RadixCache whose nodes keep `published_in` when they are split."""

        def _split_node(self, key: Any, child: Any, split_len: int) -> Any:
            upper = super()._split_node(key, child, split_len)
            if hasattr(child, "published_in"):
                upper.published_in = child.published_in
            return upper

    return FlashAgentsRadixCache


def adopt(cache: Any) -> bool:
    """Make `cache` a FlashAgentsRadixCache if it is exactly SGLang's RadixCache; says whether it is one.

    In place, because a second constructor call would register its metrics collectors twice.
    """
    if type(cache) is seams.symbol("sglang.srt.mem_cache.radix_cache.RadixCache"):
        cache.__class__ = cache_class()
    return isinstance(cache, cache_class())
