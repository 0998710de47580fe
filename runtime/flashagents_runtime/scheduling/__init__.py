"""Prefill sessions in SGLang's scheduler: their KV is kept longest, their warm-ups disturb least.

A *warm-up* is a prefill-only request with a `session_id`; the session's *final* request generates. Both are
ordinary requests, so the same traffic runs on a server without this, only with less effect.
docs/scheduling.md has the whole picture.

- `pins.Pins`: which nodes of the radix tree are evicted last
- `worth.Worth`: how much of what warm-ups have computed was of use
- `pass_budget.PassBudget`: how much time warm-ups may take beside decodes
- `gate.Gate`: which warm-ups wait, go, or are cancelled
- `passes`: what the gate notes of passes, and who else uses the engine
- `sampling`: warm-ups change nothing of how others are sampled
- `order.Order`: real requests before warm-ups, on demand the shortest job first
- `hooks`: where SGLang's scheduler calls them
- `features`: the three parts of the plug-in, ``soft_pins``, ``warmup_budget`` and ``sjf``
"""

from .features import ShortestJobFirst, SoftPins, WarmupBudgetFeature

__all__ = ["ShortestJobFirst", "SoftPins", "WarmupBudgetFeature"]
