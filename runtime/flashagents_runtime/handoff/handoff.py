"""An upstream agent's stream, handed on to any number of downstream agents while it is decoded."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing

from ..types import Delta
from .downstream import Downstream, UpstreamEnd
from .session import PrefillSession

_log = logging.getLogger(__name__)


class Handoff:
    """One upstream agent's way to its downstream agents.

    - Chain: one target; its own stream goes through a further Handoff.
    - Fan-out: several targets.
    - Fan-in: several Handoffs with the same target, each with its slot of the target's prompt.
    - Cross-engine: targets may be on other engines, with other models and tokenizers: text goes over.

    The upstream agent is never touched by what happens downstream: a target that fails is left out.

    Args:
        targets: downstream agents, each with the slot of its prompt that this agent's answer fills.
        text_of: the text of a delta that downstream agents will see; by default all of it.

    Example:
        >>> handoff = Handoff([(writer, 0)])
        >>> async for delta in handoff.through(engine.generate(request)):
        ...     show(delta.text)
    """

    def __init__(
        self,
        targets: Iterable[tuple[Downstream, int]] = (),
        *,
        text_of: Callable[[Delta], str] = lambda delta: delta.text,
    ) -> None:
        self._targets: list[tuple[Downstream, int]] = []
        self._said: list[str] = []  # for targets that come late
        self._text_of = text_of
        self._ended: UpstreamEnd | None = None
        for downstream, slot in targets:
            self.add(downstream, slot)

    def add(self, downstream: Downstream, slot: int = 0) -> None:
        """Add a target, also while the agent speaks: it is told all that has been said."""
        self._targets.append((downstream, slot))
        if self._said:
            self._tell(downstream, slot, "".join(self._said))
        if self._ended is not None:
            self._tell(downstream, slot, self._ended)

    def drop(self, downstream: Downstream) -> None:
        """It is no longer expected to follow; close it separately."""
        self._targets = [(target, slot) for target, slot in self._targets if target is not downstream]

    def feed(self, text: str) -> None:
        """The agent has said more. Only for those who do not use `through`."""
        if text and self._ended is None:
            self._said.append(text)
            for downstream, slot in list(self._targets):
                self._tell(downstream, slot, text)

    def done(self) -> None:
        """The agent has said everything."""
        self._end(UpstreamEnd(0, "done"))

    def fail(self, error: BaseException | None = None) -> None:
        """The agent has failed, or was cancelled where there is no error. Ignored after another end."""
        self._end(UpstreamEnd(0, "cancelled" if error is None else "failed", error))

    async def through(self, upstream: AsyncGenerator[Delta, None]) -> AsyncGenerator[Delta, None]:
        """Pass an agent's stream on unchanged, and its text to the targets.

        An error of the stream is told to the targets and raised. Leaving the stream early, or an abort
        of its request, counts as cancelled.
        """
        try:
            async with aclosing(upstream) as stream:
                async for delta in stream:
                    self.feed(self._text_of(delta))
                    if delta.result is not None:
                        if delta.result.finish_reason == "abort":
                            self.fail()
                        else:
                            self.done()
                    yield delta
        except Exception as error:
            self.fail(error)
            raise
        finally:
            self.fail()  # without effect after any other end

    def _end(self, end: UpstreamEnd) -> None:
        if self._ended is None:
            self._ended = end
            for downstream, slot in list(self._targets):
                self._tell(downstream, slot, end)

    def _tell(self, downstream: Downstream, slot: int, what: str | UpstreamEnd) -> None:
        try:
            if isinstance(what, str):
                downstream.feed(what, slot)
            else:
                downstream.end(UpstreamEnd(slot, what.how, what.error))
        except Exception:
            _log.exception("a downstream agent could not be told; it goes on without prefill")
            self.drop(downstream)
            downstream.session.abandon()


async def warm_up(*sessions: PrefillSession) -> None:
    """Prefill what the sessions have now (heads that are known before anyone speaks), and wait for it.

    Heads that several sessions share are computed once; the sessions stay open.
    """
    for session in sessions:
        session.flush(always=True)
    for session in sessions:
        await session.settle()


__all__ = ["Handoff", "warm_up"]
