"""Prefills one agent's next prompt while it is still being written."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import msgspec

from ..errors import FlashAgentsError, SessionClosedError
from ..types import Delta, GenerateRequest, GenerateResult
from .chunk_sizer import ChunkSizer
from .common_prefix import common_prefix
from .intervals import Intervals
from .session_trace import trace_chunk, trace_end

if TYPE_CHECKING:
    from .prefiller import Prefiller

State = Literal["idle", "prefilling", "stalled", "generating", "closed"]

_log = logging.getLogger(__name__)


class SessionFigures(msgspec.Struct, kw_only=True):
    """What a session has done; all but `chunks` and `seconds` in tokens.

    Attributes:
        chunks: warm-up requests issued.
        aborted_chunks: of these, aborted before they were done.
        computed: tokens that warm-ups computed (for aborted ones, at most: those they were to compute).
        prompt: length of the real prompt; 0 before `generate` has ended.
        cached: of the real prompt, read from the cache.
        prewarmed: of the cached ones, computed by this session.
        wasted: computed for nothing; `computed == prewarmed + wasted` once the session has closed.
        seconds: sum of the times that chunks took, from request to result, on an engine that was up.
    """

    chunks: int = 0
    aborted_chunks: int = 0
    computed: int = 0
    prompt: int = 0
    cached: int = 0
    prewarmed: int = 0
    wasted: int = 0
    seconds: float = 0.0


@dataclass
class _Chunk:
    """A warm-up on its way.

    `valid`: how much of its prompt the target still begins with; `timed`: False where the engine has to
    start first, so that its time says nothing.
    """

    ids: list[int]
    warm: int
    valid: int
    started: float
    charged: float
    timed: bool
    issued: int
    task: asyncio.Task[GenerateResult | None] = field(init=False)


class PrefillSession:
    r"""The growing prompt of one agent, its beginning kept warm in the engine's radix cache.

    ::

                  due and allowed
            idle ────────────────► prefilling          `extend` and `rebase` work in all three;
             ▲ ▲                    │  │  │            tokens that come while a chunk is in flight
             │ └────── done ────────┘  │  │            pool up and make the next one larger
             └──── no use: abort ──────┘  │
                                          └─ refused, or the engine died ──► stalled
            idle, prefilling, stalled ── generate ──► generating ── any end ──► closed
            idle, prefilling, stalled ── close ─────────────────────────────► closed

    - A chunk is an ordinary request over the whole prompt so far with `max_new_tokens=0`: the engine
      finds what is cached and computes the rest. At most one is in flight.
    - A chunk is aborted once the prompt has less than half of its new tokens in common with it.
    - Stalled: warming has failed; `generate` still works, as an ordinary request.
    - `generate` sends the real prompt as an ordinary request. It decides what is computed; the session
      has only made the cache likelier to hold its beginning. So results never depend on the session.

    Not thread-safe: use it from the event loop that it was first used on. Opened by `Prefiller.open`.

    Attributes:
        session_id: sent with every request (`GenerateRequest.session_id`).
        figures: counts so far.
        error: why warming has stalled; None where it has not.
        agent, workflow: whose prompt it is, for traces; "" where that was not said.
        rid: of the real request; "" before `generate`.
    """

    def __init__(
        self,
        prefiller: Prefiller,
        sizer: ChunkSizer,
        *,
        lora: str | None = None,
        extra_key: str | None = None,
        cache_salt: str | None = None,
        routed_dp_rank: int | None = None,
        agent: str = "",
        workflow: str = "",
    ) -> None:
        self.agent, self.workflow = agent, workflow
        self.rid = ""
        self.session_id = uuid.uuid4().hex
        self.figures = SessionFigures()
        self.error: FlashAgentsError | None = None
        self._prefiller = prefiller
        self._sizer = sizer
        self.lora, self.extra_key = lora, extra_key
        self.cache_salt, self.routed_dp_rank = cache_salt, routed_dp_rank
        self._target: list[int] = []  # what the prompt will begin with
        self._warm = 0  # of the target, prefilled as far as we know
        self._lost = False  # once: what was warm had been evicted
        self._by_us = Intervals()  # positions of the target computed by this session
        self._flushing: Literal["no", "worth", "always"] = "no"
        self._flushed_at: float | None = None
        self._chunk: _Chunk | None = None
        self._leaving: set[asyncio.Task[GenerateResult | None]] = set()  # aborted, not yet gone
        self._state: State = "idle"
        self._answered = False  # the real request has come to its end

    @property
    def state(self) -> State:
        """Where in the diagram the session stands."""
        return "prefilling" if self._state == "idle" and self._chunk is not None else self._state

    @property
    def target(self) -> list[int]:
        """The prompt so far; not to be changed."""
        return self._target

    @property
    def warm(self) -> int:
        """How many tokens of the prompt so far have been prefilled, by this session or another one."""
        return self._warm

    @property
    def in_flight(self) -> list[int] | None:
        """The prompt of the chunk in flight."""
        return None if self._chunk is None else self._chunk.ids

    @property
    def computed(self) -> Intervals:
        """The prompt's positions whose tokens this session has computed, as they are now."""
        return self._by_us.copy()

    def namespace(self) -> tuple[object, ...]:
        """Sessions with equal values share the radix cache."""
        return (self.lora, self.extra_key, self.cache_salt, self.routed_dp_rank)

    # The prompt grows.

    def extend(self, ids: list[int]) -> None:
        """Append tokens that have come from upstream; issues a chunk where one is due.

        Raises:
            SessionClosedError: after `generate` or `close`.
        """
        self._check_open()
        if ids:
            self._target += ids
            self._flushing = "no"
            self._sizer.arrived(len(ids), self._prefiller.clock())
            self.pump()

    def rebase(self, ids: list[int]) -> None:
        """Replace the prompt by a new guess; what both begin with stays warm.

        Raises:
            SessionClosedError: after `generate` or `close`.
        """
        self._check_open()
        self._keep(ids)
        self._target = list(ids)
        self._flushing = "no"
        if self._is_due():
            # Not at once: what makes the forecast starts the upstream agent next, and beside its decode a
            # chunk is made smaller.
            asyncio.get_running_loop().call_soon(self.pump)

    def flush(self, *, always: bool = False) -> None:
        """Nothing more comes for now: issue what waits, where that is worth a request of its own.

        Args:
            always: issue it in any case; for heads that are known long before they are needed. Where other
                requests run beside the upstream agent's, still only if it pays (`Prefiller.pays`).

        Raises:
            SessionClosedError: after `generate` or `close`.
        """
        self._check_open()
        self._flushing = "always" if always else "worth"
        self._flushed_at = self._prefiller.clock()
        self.pump()

    async def settle(self) -> None:
        """Wait until no chunk is in flight and none is due or held back."""
        while self._state == "idle":
            if self._chunk is not None:
                await asyncio.wait([self._chunk.task])
            elif self._is_due():
                await self._prefiller.changed()
            else:
                return

    def learn(self, ids: list[int]) -> None:
        """Another session of the same namespace has prefilled these tokens."""
        self._warm = max(self._warm, common_prefix(self._target, ids))

    # The end.

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        """Send the real prompt; the session is closed when the stream ends, in whatever way.

        A chunk in flight that is of use is waited for, since a plain engine shares its work only when it
        is done (`Prefiller.answers_at_once`); any other is aborted. `usage.prewarmed_tokens` of the result
        is filled in.

        Args:
            request: an ordinary request with the canonical tokens of the whole prompt. Its
                `session_id`, and where they are None its `lora`, `extra_key`, `cache_salt` and
                `routed_dp_rank`, are the session's.

        Raises:
            SessionClosedError: a second `generate`, or one after `close`.
            ValueError: the request is for another LoRA adapter, key, salt or rank than the session.
        """
        self._check_open()
        request = self._adopt(request)
        self._state, self.rid = "generating", request.rid
        if self._flushing == "worth" and self._flushed_at is not None:
            self._prefiller.observe_gap(self._prefiller.clock() - self._flushed_at)
        try:
            self._keep(request.input_ids)
            if self._chunk is not None and not self._prefiller.answers_at_once:
                await asyncio.wait([self._chunk.task])
            self._prefiller.sends(request.sampling)
            with self._prefiller.budget.decode():
                async with aclosing(self._prefiller.engine.generate(request)) as stream:
                    async for delta in stream:
                        yield self._count(delta) if delta.result is not None else delta
        finally:
            await self.close()

    def generate_plain(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        """The same request without the session, which may be closed or not: nothing is prewarmed."""
        return self._prefiller.generate(msgspec.structs.replace(self._adopt(request), session_id=None))

    def abandon(self) -> None:
        """Close without waiting for the chunk in flight, which is being aborted. Twice is fine."""
        if self._state != "closed":
            self._state = "closed"
            if self._chunk is not None:
                self._abort_chunk()
            self.figures.wasted = self.figures.computed - self.figures.prewarmed
            if self.figures.chunks and not self._answered:
                self._prefiller.unpin(self.session_id)
            trace_end(self, self._prefiller)
            self._prefiller.forget(self)

    async def close(self) -> None:
        """Abort what is in flight and end the session; figures stay readable. Closing twice is fine."""
        self.abandon()
        while self._leaving:
            await asyncio.wait(self._leaving)

    def _check_open(self) -> None:
        if self._state in ("generating", "closed"):
            raise SessionClosedError("this prefill session has generated or was closed; open a new one")

    def _adopt(self, request: GenerateRequest) -> GenerateRequest:
        changes: dict[str, object] = {"session_id": self.session_id}
        for name in ("lora", "extra_key", "cache_salt", "routed_dp_rank"):
            mine, theirs = getattr(self, name), getattr(request, name)
            if theirs is not None and theirs != mine:
                if name in ("extra_key", "cache_salt"):  # a tenant's secrets
                    raise ValueError(f"the request's {name} is not that of its session")
                raise ValueError(f"the request has {name}={theirs!r}, but its session {mine!r}")
            changes[name] = mine
        return msgspec.structs.replace(request, **changes)

    def _count(self, delta: Delta) -> Delta:
        """The last delta, with the tokens that this session prewarmed."""
        assert delta.result is not None
        self._answered = True
        usage = delta.result.usage
        ours = self._by_us.total(usage.cached_tokens)
        figures = self.figures
        figures.prompt, figures.cached, figures.prewarmed = usage.prompt_tokens, usage.cached_tokens, ours
        usage = msgspec.structs.replace(usage, prewarmed_tokens=ours)
        return msgspec.structs.replace(delta, result=msgspec.structs.replace(delta.result, usage=usage))

    # Chunks.

    def _keep(self, ids: list[int]) -> None:
        """The prompt becomes `ids`: keep the common beginning, abort a chunk that mostly goes elsewhere."""
        keep = common_prefix(self._target, ids)
        self._warm = min(self._warm, keep)
        self._by_us.cut(keep)
        if self._chunk is not None:
            self._chunk.valid = min(self._chunk.valid, common_prefix(self._chunk.ids, ids))
            whole, useful = len(self._chunk.ids) - self._chunk.warm, self._chunk.valid - self._chunk.warm
            if useful * 2 < whole:
                self._abort_chunk()

    def _is_due(self) -> bool:
        waiting = len(self._target) - self._warm
        if self._sizer.chunk_size is None and waiting > 0 and not self._prefiller.pays(waiting):
            return False  # asked again when a request has ended
        if waiting <= 0 or self._flushing == "no":
            return self._sizer.is_due(waiting, self._prefiller.longest_pass)
        return self._flushing == "always" or self._sizer.is_worth_a_flush(waiting, self._prefiller.gap)

    def pump(self) -> None:
        """Issue a chunk where one is due and allowed. Called by the `Prefiller` when things change."""
        if self._state != "idle" or self._chunk is not None or self._leaving or not self._is_due():
            return
        size = self._prefiller.allow(self, len(self._target) - self._warm)
        if size > 0:
            self._issue(self._warm + size)

    def _issue(self, end: int) -> None:
        ids = self._target[:end]
        self._sizer.issued(end - self._warm, self._prefiller.longest_pass)
        request = GenerateRequest(
            input_ids=ids,
            sampling=self._prefiller.prefill_only,
            session_id=self.session_id,
            lora=self.lora,
            extra_key=self.extra_key,
            cache_salt=self.cache_salt,
            routed_dp_rank=self.routed_dp_rank,
        )
        charged = self._prefiller.charge(end - self._warm)
        timed = self._prefiller.engine.info is not None
        issued = self._prefiller.issued()
        self._chunk = _Chunk(ids, self._warm, end, self._prefiller.clock(), charged, timed, issued)
        self._chunk.task = asyncio.get_running_loop().create_task(self._prefill(request))
        self._chunk.task.add_done_callback(self._done)
        self.figures.chunks += 1

    async def _prefill(self, request: GenerateRequest) -> GenerateResult | None:
        async with aclosing(self._prefiller.engine.generate(request)) as stream:
            async for delta in stream:
                if delta.result is not None:
                    return delta.result
        return None

    def _abort_chunk(self) -> None:
        chunk, self._chunk = self._chunk, None
        assert chunk is not None
        self.figures.aborted_chunks += 1
        self.figures.computed += len(chunk.ids) - chunk.warm
        trace_chunk(self, self._prefiller, chunk, "cancelled", len(chunk.ids) - chunk.warm)
        self._leaving.add(chunk.task)
        chunk.task.cancel()

    def _done(self, task: asyncio.Task[GenerateResult | None]) -> None:
        if task in self._leaving:
            self._leaving.discard(task)
            if not task.cancelled():
                task.exception()  # an aborted chunk may fail as it likes
        else:
            chunk, self._chunk = self._chunk, None
            assert chunk is not None
            self._take(chunk, task)
        self._prefiller.changed_now()

    def _take(self, chunk: _Chunk, task: asyncio.Task[GenerateResult | None]) -> None:
        """Book a chunk that has ended by itself."""
        seconds = self._prefiller.clock() - chunk.started
        error = None if task.cancelled() else task.exception()
        result = None if task.cancelled() or error is not None else task.result()
        if result is None or result.finish_reason == "abort":
            self.figures.aborted_chunks += 1
            if self._state == "generating" and self._prefiller.answers_at_once:
                return  # cancelled by the server, which does so before a chunk has begun
            self.figures.computed += len(chunk.ids) - chunk.warm
            trace_chunk(self, self._prefiller, chunk, "failed", len(chunk.ids) - chunk.warm)
            if self._state == "idle":
                self._state = "stalled"
            if isinstance(error, FlashAgentsError):
                self.error = error
            elif error is not None:
                _log.error("a prefill chunk failed; the prompt will be computed later", exc_info=error)
            return
        end = min(result.usage.prompt_tokens, len(chunk.ids))  # the server may have cut it: see `gate.Gate`
        cached = min(result.usage.cached_tokens, end)
        self.figures.computed += end - cached
        trace_chunk(self, self._prefiller, chunk, "done", end - cached)
        self._warm = max(self._warm, min(chunk.valid, end))
        self._by_us.add(cached, min(chunk.valid, end))
        self._prefiller.tell_others(self, chunk.ids[:end])
        if end <= chunk.warm:  # what it had has been evicted: now the server holds this much, and no more
            if self._lost and self._state == "idle":
                self._state = "stalled"  # it goes faster than it comes
            self._lost, self._warm = True, min(chunk.valid, end)
        if chunk.timed:
            self.figures.seconds += seconds
            self._prefiller.observe(chunk.charged, end - cached, seconds, chunk.issued)


__all__ = ["PrefillSession", "SessionFigures", "State"]
