"""Opens prefill sessions on one engine and keeps them out of each other's and the decodes' way."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import aclosing
from time import monotonic

from ..engine import Engine
from ..errors import FlashAgentsError
from ..tally import tally_of
from ..types import Delta, GenerateRequest, SamplingParams
from .chunk_sizer import ChunkSizer, PrefillCurve
from .common_prefix import common_prefix
from .session import PrefillSession
from .warmup_budget import WarmupBudget

#: `EngineInfo.features` of servers with our plug-in.
FEATURE_WARMUP_BUDGET = "warmup_budget"  # the scheduler keeps warm-ups within a share of its time
FEATURE_INTRA_TURN = "intra_turn"  # requests of one batch share what they have in common
FEATURE_SOFT_PINS = "soft_pins"  # a session's KV is evicted last, until the session is over

_WORTH_WAITING = 64  # tokens that another session is just computing
# Of a request's fixed cost: what a warm-up must save for each further request that it delays. On a CPU more:
# the processes around the model, and what others decode, run there on the very cores that a warm-up takes.
_DEAR, _DEAR_ON_CPU = 0.05, 0.5
_LARGEST_PASS = 8192  # SGLang's own chunk of a prefill: longer requests bar the way for several passes


class Prefiller:
    """The sessions of one engine.

    What the client can do for a server without our plug-in is done here:

    - warm-ups stay within a share of time while requests of this process decode (`WarmupBudget`);
    - a session waits while another one computes a prefix that both share, instead of computing it too.

    And for any server: the more requests of this process run, the more a warm-up has to save (`pays`), so
    that an engine that is busy with others gets few and large ones, and with many short prompts none.

    Args:
        engine: any engine.
        chunk_size: a fixed chunk size for all sessions; None learns it (`ChunkSizer`).
        share: of the engine's time for warm-ups beside decodes.

    Attributes:
        curve: measured prefill times.
        budget: the share of time.
        gap: seconds from the end of upstream to the real request, on average; None: not seen yet.
    """

    def __init__(self, engine: Engine, *, chunk_size: int | None = None, share: float = 0.05) -> None:
        self.engine = engine
        self.curve = PrefillCurve()
        self.clock = monotonic
        self.budget = WarmupBudget(lambda: self.clock(), share=share)
        self.gap: float | None = None
        self._chunk_size = chunk_size
        self._sessions: dict[PrefillSession, None] = {}  # in order of opening
        self._timer: asyncio.TimerHandle | None = None
        self._change: asyncio.Future[None] | None = None
        self._unpinning: set[asyncio.Task[None]] = set()
        self._issued = 0  # chunks and real requests so far
        self.prefill_only = SamplingParams(max_new_tokens=0)  # of the next warm-up, see `sends`

    def open(
        self,
        *,
        lora: str | None = None,
        extra_key: str | None = None,
        cache_salt: str | None = None,
        routed_dp_rank: int | None = None,
        expected: int | None = None,
        chunk_size: int | None = None,
        agent: str = "",
        workflow: str = "",
    ) -> PrefillSession:
        """Open a session; end it with `generate` or `close`.

        Args:
            lora: adapter of the agent whose prompt it is.
            extra_key: see `GenerateRequest`.
            cache_salt: see `GenerateRequest`.
            routed_dp_rank: with data parallelism, the rank that all its requests go to.
            expected: tokens that upstream will write, where that can be guessed.
            chunk_size: for this session alone.
            agent: whose prompt it is, for traces; that of the real request where it is left out.
            workflow: the same, of the workflow.
        """
        sizer = ChunkSizer(self.curve, chunk_size or self._chunk_size, expected=expected)
        session = PrefillSession(
            self,
            sizer,
            lora=lora,
            extra_key=extra_key,
            cache_salt=cache_salt,
            routed_dp_rank=routed_dp_rank,
            agent=agent,
            workflow=workflow,
        )
        self._sessions[session] = None
        if (tally := tally_of(self.engine)) is not None:
            tally.opened()
        return session

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        """An ordinary request that has no session; warm-ups make room for it."""
        try:
            self.sends(request.sampling)
            with self.budget.decode():
                async with aclosing(self.engine.generate(request)) as stream:
                    async for delta in stream:
                        yield delta
        finally:
            self.changed_now()

    async def close(self) -> None:
        """Close all sessions. The engine stays open: it is its owner's."""
        for session in list(self._sessions):
            await session.close()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._unpinning:
            await asyncio.wait(self._unpinning)

    # For the sessions.

    @property
    def answers_at_once(self) -> bool:
        """A real request need not wait for its session's chunk in flight.

        The server cancels the chunk where it has not begun, and shares its work where it has.
        """
        return self.has(FEATURE_WARMUP_BUDGET) and self.has(FEATURE_INTRA_TURN)

    def unpin(self, session_id: str) -> None:
        """A session is over without a real request that would have ended its pin."""
        if self.has(FEATURE_SOFT_PINS):
            task = asyncio.get_running_loop().create_task(self._close_session(session_id))
            self._unpinning.add(task)
            task.add_done_callback(self._unpinning.discard)

    async def _close_session(self, session_id: str) -> None:
        with contextlib.suppress(FlashAgentsError):  # the pin runs out by itself
            await self.engine.close_session(session_id)

    def has(self, feature: str) -> bool:
        """Whether the engine's server does this itself."""
        return self.engine.info is not None and feature in self.engine.info.features

    def allow(self, session: PrefillSession, waiting: int) -> int:
        """How many of the waiting tokens a session may prefill now; 0 to be asked again later."""
        if not self.has(FEATURE_INTRA_TURN) and self._in_the_works(session) >= _WORTH_WAITING:
            return 0  # `changed_now` comes when that chunk is done
        if not self.budget.decoding:
            return min(waiting, _LARGEST_PASS)
        delay = 0.0 if self.has(FEATURE_WARMUP_BUDGET) else self.budget.delay()
        if delay > 0:
            self._wake_in(delay)
            return 0
        longest = self.longest_pass
        return waiting if longest is None else min(waiting, self.curve.largest(longest))

    @property
    def longest_pass(self) -> float | None:
        """Seconds that a warm-up's pass may last at present; None: as long as it takes."""
        return self.budget.longest_pass if self.budget.decoding else None

    def pays(self, waiting: int) -> bool:
        """Whether a warm-up of the waiting tokens is worth a request of its own, as busy as the engine is.

        It saves its session what the tokens take above the fixed cost of a request, which the real request
        pays in any case; all others that run pay for it. One that runs is the upstream agent: it alone says
        nothing against the warm-up.
        """
        others = self.budget.running - 1
        if others < 1 or self.budget.share == 1:
            return True
        fixed = self.curve.seconds(1)
        on_cpu = self.engine.info is not None and self.engine.info.device == "cpu"
        dear = _DEAR_ON_CPU if on_cpu else _DEAR
        return self.curve.seconds(waiting) - fixed >= dear * others * fixed

    def charge(self, tokens: int) -> float:
        """Take the expected time of a chunk from the budget; returns what was taken."""
        if self.has(FEATURE_WARMUP_BUDGET):
            return 0.0
        return self.budget.charge(self.curve.seconds(tokens))

    def issued(self) -> int:
        """A chunk or a real request goes out; returns what `observe` wants to know of it."""
        self._issued += 1
        return self._issued if self._nothing_in_flight() else -1

    def sends(self, sampling: SamplingParams) -> None:
        """A real request goes out.

        Warm-ups sample nothing, but for one step SGLang merges them into the batch that decodes, and that
        batch is sampled as its most demanding member asks for as long as it lives: a single warm-up with a
        temperature makes every step of a greedy batch slower. So warm-ups ask for what real requests do.
        """
        self.issued()
        self.prefill_only = SamplingParams(
            max_new_tokens=0,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
        )

    def observe(self, charged: float, tokens: int, seconds: float, issued: int) -> None:
        """A chunk has taken `seconds` and computed `tokens`.

        Waiting says nothing about the prefill: for other requests of this process, or because the server
        holds warm-ups back beside decodes. There only a shorter time than expected is learnt from.
        """
        held = self.has(FEATURE_WARMUP_BUDGET) and self.budget.decoding
        alone = issued == self._issued and self._nothing_in_flight()
        if (alone and not held) or seconds < self.curve.seconds(tokens):
            self.curve.observe(tokens, seconds)
        self.budget.correct(charged, seconds)

    def _nothing_in_flight(self) -> bool:
        return all(session.in_flight is None for session in self._sessions)

    def observe_gap(self, seconds: float) -> None:
        """A real request came `seconds` after its upstream had ended."""
        self.gap = seconds if self.gap is None else self.gap + 0.2 * (seconds - self.gap)

    def tell_others(self, session: PrefillSession, ids: list[int]) -> None:
        """A session has prefilled these tokens: those that begin alike need not."""
        for other in self._sessions:
            if other is not session and other.namespace() == session.namespace():
                other.learn(ids)

    def forget(self, session: PrefillSession) -> None:
        """A session has closed."""
        if (tally := tally_of(self.engine)) is not None:
            figures = session.figures
            tally.closed(computed=figures.computed, prewarmed=figures.prewarmed, wasted=figures.wasted)
        self._sessions.pop(session, None)
        self.changed_now()

    def changed_now(self) -> None:
        """Something has ended: sessions that were held back may go on."""
        if self._change is not None and not self._change.done():
            self._change.set_result(None)
        self._change = None
        for session in list(self._sessions):
            session.pump()

    async def changed(self) -> None:
        """Wait for the next change."""
        if self._change is None:
            self._change = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._change)

    def _in_the_works(self, session: PrefillSession) -> int:
        """Tokens that the session needs and another one, of its namespace, is just computing."""
        most = 0
        for other in self._sessions:
            ids = other.in_flight
            if other is not session and ids is not None and other.namespace() == session.namespace():
                most = max(most, common_prefix(ids, session.target) - max(session.warm, other.warm))
        return most

    def _wake_in(self, seconds: float) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._wake)

    def _wake(self) -> None:
        self._timer = None
        self.changed_now()


__all__ = ["FEATURE_INTRA_TURN", "FEATURE_SOFT_PINS", "FEATURE_WARMUP_BUDGET", "Prefiller"]
