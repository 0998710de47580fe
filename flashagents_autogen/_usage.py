"""Token counts of a call, with what the cache gave."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from autogen_core.models import RequestUsage

from flashagents_runtime import Usage
from flashagents_runtime.html_tables import figures_html


@dataclass(eq=False)
class FlashRequestUsage(RequestUsage):
    """AutoGen's usage with our cache figures; equal to a plain `RequestUsage` of the same two counts.

    Attributes:
        cached_tokens: prompt tokens that came from the KV cache.
        prewarmed_tokens: of these, put there while an upstream agent was still speaking.
        shared_in_turn_tokens: of these, computed by another request of the same pass.
    """

    cached_tokens: int = 0
    prewarmed_tokens: int = 0
    shared_in_turn_tokens: int = 0

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RequestUsage):
            return NotImplemented
        mine = (self.prompt_tokens, self.completion_tokens)
        return mine == (other.prompt_tokens, other.completion_tokens)

    __hash__ = None  # type: ignore[assignment]  # mutable, as its base class

    def _repr_html_(self) -> str:
        return figures_html("Tokens", asdict(self))

    @classmethod
    def of(cls, usage: Usage) -> FlashRequestUsage:
        """From the engine's figures."""
        return cls(
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            cached_tokens=usage.cached_tokens,
            prewarmed_tokens=usage.prewarmed_tokens,
            shared_in_turn_tokens=usage.shared_in_turn_tokens,
        )


def add_usage(a: Usage, b: Usage) -> Usage:
    """The sum of two usages."""
    return Usage(**{name: getattr(a, name) + getattr(b, name) for name in Usage.__struct_fields__})


__all__ = ["FlashRequestUsage", "add_usage"]
