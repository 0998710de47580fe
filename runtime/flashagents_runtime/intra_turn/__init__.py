"""Intra-turn prefix cache: requests that share a cold prefix compute it once, in one pass.

When the scheduler admits a request to a prefill batch, the KV slots of its new tokens are allocated at
once and inserted into the radix tree, *before* the forward pass. The next request admitted to the same
batch matches them like any cached prefix. This is exact where a layer writes the batch's K and V before
it attends (see `support`). docs/intra-turn-cache.md has the whole picture.

- `publish.Publisher`: what is published, for one tree cache
- `hooks`: where SGLang's scheduler calls it
- `support`: the configurations that it serves
- `integrity`: `check_integrity`, over tree, pool, locks and requests
"""

from .feature import IntraTurn
from .integrity import IntegrityError, check_integrity

__all__ = ["IntegrityError", "IntraTurn", "check_integrity"]
