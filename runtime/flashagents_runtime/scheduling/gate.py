"""Which waiting warm-ups may go into the next prefill pass."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from .. import sglang_seams as seams
from .kinds import is_warm_up
from .pass_budget import PassBudget


@dataclass
class GateFigures:
    """Counters since start."""

    passes: int = 0
    """Prefill passes of warm-ups."""
    chunks: int = 0
    """Warm-ups in them."""
    beside_decodes: int = 0
    """Of the passes, those that made decodes wait."""
    seconds_beside_decodes: float = 0.0
    cancelled: int = 0
    """Warm-ups that waited when their session's final request came."""


class Gate:
    """Holds warm-ups of one scheduler back.

    - A real request goes first: while one waits, or is in the middle of a chunked prefill, no warm-up
      starts, so none makes its pass longer.
    - Beside decodes warm-ups stay within a `PassBudget`. Those that were held go in one pass together,
      because a pass costs more than its tokens.
    - A warm-up that still waits when its session's final request is there is cancelled: nobody waits for
      it, and the final request computes the same.

    Held warm-ups stay in the waiting queue between two passes, where SGLang's abort finds them.
    """

    def __init__(self, budget: PassBudget, clock: Callable[[], float]) -> None:
        self.budget = budget
        self.figures = GateFigures()
        self._clock = clock
        self._decoding = False
        self._in_flight: deque[tuple[float, bool]] = deque()
        """Of each warm-up pass launched and not yet processed: when, and whether decodes waited."""
        self._processed_at = 0.0
        self._abort_req = seams.symbol("sglang.srt.managers.io_struct.AbortReq")

    def hold(self, scheduler: Any, running_batch: Any) -> list[Any]:
        """Take the warm-ups that must wait out of `scheduler.waiting_queue`, and return them."""
        queue = scheduler.waiting_queue
        if not any(is_warm_up(req) for req in queue):
            self._decoding = False
            return []
        decoding = [req for req in running_batch.reqs if not is_warm_up(req) and not req.finished()]
        real = [req for req in queue if not is_warm_up(req)]
        self._cancel(scheduler, {req.session_id for req in (*real, *decoding)} - {None})
        chunked = scheduler.chunked_req
        if chunked is not None and not is_warm_up(chunked):
            real = [*real, chunked]
        self._decoding = bool(decoding)
        may_start = self.budget.may_start(self._decoding) and not (self._decoding and self._in_flight)
        if not real and may_start:
            return []
        held = [req for req in scheduler.waiting_queue if is_warm_up(req)]
        scheduler.waiting_queue = [req for req in scheduler.waiting_queue if not is_warm_up(req)]
        return held

    def _cancel(self, scheduler: Any, sessions: set[str]) -> None:
        late = [req for req in scheduler.waiting_queue if is_warm_up(req) and req.session_id in sessions]
        for req in late:
            # By SGLang's own way, so that the client hears of it. Request ids have one length.
            scheduler.abort_request(self._abort_req(rid=req.rid))
        self.figures.cancelled += len(late)

    def launched(self, batch: Any) -> None:
        """A batch is about to run (None: none is)."""
        chunks = sum(map(is_warm_up, batch.reqs)) if batch is not None and _computes_prompts(batch) else 0
        if chunks:
            self._in_flight.append((self._clock(), self._decoding))
            self.figures.passes += 1
            self.figures.chunks += chunks

    def processed(self, batch: Any) -> None:
        """A batch's results have come.

        With overlap the next batch is queued behind it by then; results come in order, so a pass lasted
        from the results before it, or its launch, to its own.
        """
        now = self._clock()
        if self._in_flight and _computes_prompts(batch) and any(map(is_warm_up, batch.reqs)):
            launched_at, beside_decodes = self._in_flight.popleft()
            if beside_decodes:
                seconds = now - max(launched_at, self._processed_at)
                self.budget.pay(seconds)
                self.figures.beside_decodes += 1
                self.figures.seconds_beside_decodes += seconds
        self._processed_at = now

    def plain(self) -> dict[str, Any]:
        """The figures, of plain types."""
        return asdict(self.figures)


def _computes_prompts(batch: Any) -> bool:
    return bool(batch.forward_mode.is_extend())
