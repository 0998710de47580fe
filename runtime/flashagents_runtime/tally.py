"""What an embedded engine's application has asked of it so far, in numbers: for those who watch it."""

from __future__ import annotations

import threading

import msgspec

from .types import GenerateRequest, Usage


class Counts(msgspec.Struct, kw_only=True):
    """Sums since the engine object was made; tokens, where nothing else is said.

    Attributes:
        answers: real requests that came to their end.
        prompt: of these requests, tokens of the prompts.
        cached: of the prompts, found in the KV cache.
        prewarmed: of the cached ones, put there by a prefill session.
        shared_in_turn: of the cached ones, computed by another request of the same pass.
        completion: generated tokens.
        warm_ups: warm-up requests that came to their end.
        sessions: prefill sessions that are open now.
        ahead: computed by sessions that have closed; `ahead == prewarmed + wasted` of those.
        wasted: of these, computed in vain.
    """

    answers: int = 0
    prompt: int = 0
    cached: int = 0
    prewarmed: int = 0
    shared_in_turn: int = 0
    completion: int = 0
    warm_ups: int = 0
    sessions: int = 0
    ahead: int = 0
    wasted: int = 0


class Tally:
    """Counts once a request and twice a session, never a token. From any thread."""

    def __init__(self) -> None:
        self._counts = Counts()
        self._lock = threading.Lock()

    def answered(self, request: GenerateRequest, usage: Usage) -> None:
        """A request has come to its end; one without an answer is a warm-up."""
        counts = self._counts
        with self._lock:
            if request.sampling.max_new_tokens == 0:
                counts.warm_ups += 1
                return
            counts.answers += 1
            counts.prompt += usage.prompt_tokens
            counts.cached += usage.cached_tokens
            counts.shared_in_turn += usage.shared_in_turn_tokens
            counts.completion += usage.completion_tokens

    def opened(self) -> None:
        """A prefill session has opened."""
        with self._lock:
            self._counts.sessions += 1

    def closed(self, *, computed: int, prewarmed: int, wasted: int) -> None:
        """It has closed; what it was good for."""
        counts = self._counts
        with self._lock:
            counts.sessions -= 1
            counts.ahead += computed
            counts.prewarmed += prewarmed
            counts.wasted += wasted

    def counts(self) -> Counts:
        """A copy."""
        with self._lock:
            return msgspec.structs.replace(self._counts)


def tally_of(engine: object) -> Tally | None:
    """The engine's tally; None where it keeps none, as engines of others do."""
    found = getattr(engine, "tally", None)
    return found if isinstance(found, Tally) else None


__all__ = ["Counts", "Tally", "tally_of"]
