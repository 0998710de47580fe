"""Errors of hand-offs."""

from __future__ import annotations

from ..errors import FlashAgentsError


class SessionClosedError(FlashAgentsError, RuntimeError):
    """A prefill session was used after `generate` or `close`; open a new one."""


class UpstreamFailedError(FlashAgentsError):
    """An upstream agent failed or was cancelled, and the policy is to abort what depends on it.

    Attributes:
        slot: the place of its text in the prompt.
        error: what ended it; None where it was cancelled or aborted.
    """

    def __init__(self, slot: int, error: BaseException | None) -> None:
        self.slot = slot
        self.error = error
        why = "was cancelled" if error is None else f"failed: {error}"
        super().__init__(f"the upstream agent whose answer fills slot {slot} of this prompt {why}")


__all__ = ["SessionClosedError", "UpstreamFailedError"]
