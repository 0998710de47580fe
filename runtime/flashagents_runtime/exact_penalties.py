"""Penalties that do not depend on what else the engine does.

In SGLang 0.5.18 a request's repetition, frequency and presence penalties are brought up to date before
each decode step with the last token of `req.output_ids` (`ScheduleBatch.cumulate_penalty_output_tokens`).
Under the overlapped event loop the newest token is not there yet: in an undisturbed run the step `i`
counts token `i - 1`, one behind. When the prefill of another request comes between two decode steps, the
results catch up meanwhile, the step counts token `i`, and token `i - 1` is never counted. So any request
that arrives, and our warm-ups among them, changes the answers of those that are being decoded.

This feature counts token `i - 1` in step `i` always: what SGLang does when nothing comes between.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .scheduling.kinds import state_of

_CUMULATE = "sglang.srt.managers.schedule_batch.ScheduleBatch.cumulate_penalty_output_tokens"


class ExactPenalties:
    """`flashagents_runtime.plugin.Feature`; it keeps no state."""

    name = "exact_penalties"

    @property
    def hooks(self) -> Mapping[str, Callable[..., Any]]:
        return {_CUMULATE: around_cumulate}

    def refusal(self, ctx: Any, cache: Any) -> str | None:
        if ctx.server_args.speculative_algorithm is not None:
            return "speculative decoding counts several tokens a step"
        return None

    def attach(self, ctx: Any, cache: Any) -> None:
        """Only batches of this cache are counted so."""
        cache.exact_penalties = True

    def figures(self, cache: Any) -> dict[str, Any]:
        return {}


def around_cumulate(original: Callable[..., Any], batch: Any) -> None:
    """Count, for each request of a batch that is about to be decoded, the token of the step before last.

    Without the overlapped loop results are always complete, and SGLang's own way is the same every time.
    """
    if not batch.enable_overlap or not state_of(batch.tree_cache, "exact_penalties"):
        original(batch)
        return
    import torch

    tokens = torch.tensor([_due(req) for req in batch.reqs], dtype=torch.int64)
    if torch.device(batch.device).type == "cuda":
        tokens = tokens.pin_memory()  # so that the copy does not wait for the forward pass
    batch.sampling_info.penalizer_orchestrator.cumulate_output_tokens(
        tokens.to(batch.device, non_blocking=True)
    )


def _due(req: Any) -> int:
    """The token that a request's next decode step counts; `decode_batch_idx` steps came before it."""
    said = req.output_ids
    if req.retracted_stain:
        # Its steps are counted anew from where it was taken back.
        return int(said[-1]) if len(said) else int(req.origin_input_ids[-1])
    step = req.decode_batch_idx
    if step == 0:
        return int(req.origin_input_ids[-1])  # SGLang's own start: no result is there yet
    return int(said[min(step, len(said)) - 1])


__all__ = ["ExactPenalties", "around_cumulate"]
