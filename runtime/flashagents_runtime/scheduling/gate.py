"""Which waiting warm-ups may go into the next prefill pass."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from .. import sglang_seams as seams
from . import sampling
from .kinds import is_warm_up, state_of
from .pass_budget import PassBudget
from .passes import GateFigures, Others, Pass, Results
from .ranks import LeadersClock

#: Tokens of a pass before one has been measured, and of one beside decodes.
_UNMEASURED = 2048
_UNMEASURED_BESIDE = 256

#: A pass beside decodes may always have so many tokens: fewer would hardly take less time, however short
#: it should be, and one slow measurement (of a first pass) is overcome.
_LEAST = 32

#: Seconds until warm-ups that found no room beside decodes are tried again, unless a decode ends before.
_RETRY = 0.1

#: Seconds after the last decode's end: what follows upon it is likely to be a final request.
_GRACE = 0.005


class Gate:
    """Holds warm-ups of one scheduler back.

    - A real request goes first: while one waits, or is in the middle of a chunked prefill, no warm-up
      starts, so none makes its pass longer.
    - Beside decodes warm-ups stay within a `PassBudget`. Those that were held go in one pass together,
      because a pass costs more than its tokens.
    - No two of their passes follow each other beside decodes, whatever the budget: SGLang prefills first, so
      warm-ups without end would stop decodes for good.
    - A pass has only as many as keep it within the budget's `longest_pass`: a real request that comes
      meanwhile has to wait for it. How long passes last is known from those of real requests, too: before
      anything decodes, there has been one.
    - So has one of an idle engine to which several requests without a session have come lately: the next
      one is likely to be none of a session's final requests, which would have the use of a longer pass.
    - When decodes end, warm-ups wait a moment longer, since a final request is likely to follow.
    - One that is longer than a pass is cut to what a pass computes, since nothing could interrupt it for the
      passes that it would take; beside decodes to what keeps the pass within `longest_pass`. It ends with
      fewer `prompt_tokens`, and its session asks for the rest.
    - A warm-up that still waits when its session's final request is there is cancelled: nobody waits for
      it, and the final request computes the same.
    - A warm-up changes nothing of how others are sampled (see `sampling`).
    - Warm-ups that found no room say nothing of the room for real requests (`offered`). They are tried again
      when a decode has ended, else ten times a second: SGLang would look them up at each decode step.

    Held warm-ups stay in the waiting queue between two passes, where SGLang's abort finds them.
    """

    def __init__(self, budget: PassBudget, clock: Callable[[], float]) -> None:
        self.budget = budget
        self.figures = GateFigures()
        self._clock = clock
        self.any_wait = False
        """Warm-ups may be in the waiting queue: nobody looks through it for them before one has come."""
        self._running = 0
        self._decode: list[Any] = []
        """The requests that decoded at the last look."""
        self._looked_at = 0
        """How many were in their batch then, with those that had ended and warm-ups."""
        self._last: Any = None
        """The last one of these."""
        self._some_ended = False
        """Requests have ended since."""
        self._let = False
        """Warm-ups may be in the pass that is being made."""
        self._no_room_until = float("-inf")
        self._decoding = False
        self._decoded_at = float("-inf")
        """When the last decode ended."""
        self._unread: list[Results] = []
        """Those that have come since the clock last moved, where that is once a step."""
        self._ranks = clock if isinstance(clock, LeadersClock) else None
        if self._ranks is not None:
            self._ranks.heard = self._read
        self._others = Others()
        self._expected_others = 0
        self._in_flight: deque[Pass] = deque()
        """The prefill passes that were launched and not yet processed, of whatever requests."""
        self._joined = False
        """Warm-ups may be in the decode batch, or have been since `sampling.of_their_own`."""
        self._went_last = False
        """The last step was a pass of nothing but warm-ups."""
        self._processed_at = 0.0
        self._processed_decode = False
        """The results that came last were of a decode step."""
        self._step = 0.0
        """Seconds from one decode step's results to the next one's."""
        self._pace: float | None = None
        """Seconds a token, in large passes."""
        self._shortest = 0.0
        """Seconds of the shortest pass."""
        self._abort_req = seams.symbol("sglang.srt.managers.io_struct.AbortReq")
        self._match = seams.symbol("sglang.srt.managers.schedule_policy.match_prefix_for_req")

    def hold(self, scheduler: Any, running_batch: Any) -> list[Any]:
        """Take the warm-ups that must wait out of `scheduler.waiting_queue`, and return them."""
        queue = scheduler.waiting_queue
        decoding = self._look(running_batch.reqs)
        running = len(decoding)
        if self._joined:
            if decoding:
                sampling.of_their_own(running_batch, decoding)
            self._joined = any(p.warms for p in self._in_flight) or any(map(is_warm_up, running_batch.reqs))
        was_decoding, self._decoding = self._decoding, running > 0
        if running < self._running:
            self._no_room_until = float("-inf")
        self._running, self._let = running, False
        self._expected_others = self._others.expected(self._clock())
        self.budget.pass_time(running, self._expected_others)
        if was_decoding and not self._decoding:
            self._decoded_at = self._clock()
        self.any_wait = self.any_wait and any(map(is_warm_up, queue))
        if not self.any_wait:
            return []
        real = [req for req in queue if not is_warm_up(req)]
        self._cancel(scheduler, {req.session_id for req in (*decoding, *real)} - {None})
        chunked = scheduler.chunked_req
        if chunked is not None and not is_warm_up(chunked):
            real = [*real, chunked]
        held = [req for req in scheduler.waiting_queue if is_warm_up(req)]
        if self._decoding:
            in_the_way = any(p.warms for p in self._in_flight) or self._went_last
        else:
            in_the_way = self._clock() - self._decoded_at < _GRACE
        if not real and not in_the_way and self._clock() >= self._no_room_until:
            waiting = held
            held = self._too_many(waiting, scheduler)
            self._let = len(held) < len(waiting)
            if decoding:
                for req in waiting[: len(waiting) - len(held)]:
                    sampling.alike(req, decoding[0])
        if held:
            left = set(held)
            scheduler.waiting_queue = [req for req in scheduler.waiting_queue if req not in left]
        return held

    def offered(self, scheduler: Any, running_batch: Any, was_full: bool) -> None:
        """An admission pass has looked at `scheduler.waiting_queue`; `was_full`: `batch_is_full` before it.

        SGLang notes that a request had no room, and looks at no other one until a running one has ended. If
        it was a warm-up, a shorter real request that comes next may well have room.
        """
        chunked = scheduler.chunked_req
        if (chunked is None or is_warm_up(chunked)) and all(map(is_warm_up, scheduler.waiting_queue)):
            running_batch.batch_is_full = was_full

    def _too_many(self, warm_ups: list[Any], scheduler: Any) -> list[Any]:
        """Those of the waiting warm-ups, in their order, that must not be in the next pass."""
        most = scheduler.chunked_prefill_size or float("inf")
        if scheduler.is_mixed_chunk:  # decodes are part of the pass
            most = max(most - len(scheduler.running_batch.reqs), scheduler.page_size)
        pins = state_of(scheduler.tree_cache, "pins")
        if pins is not None:  # sessions together have a share of the cache, whatever they ask for
            most = min(most, pins.most())
            if most < scheduler.page_size:
                return warm_ups
        if self._decoding or self._expected_others:
            most = min(most, max(self._longest(), scheduler.page_size))
        tokens = fitting = 0
        for req in warm_ups:
            more = tokens + self._new_tokens(req, scheduler.tree_cache)
            if fitting and not (self._fits(more) and more <= most):
                break
            tokens, fitting = more, fitting + 1
        if not self.budget.may_start(self._decoding, self._expected(int(min(tokens, most)))):
            return warm_ups
        if pins is not None:
            more = int(min(tokens, most))
            if scheduler.token_to_kv_pool_allocator.available_size() < more:
                pins.within_share(more)
        if tokens > most:
            self._cut(warm_ups[0], int(most), scheduler)
        return warm_ups[fitting:]

    def _cut(self, req: Any, most: int, scheduler: Any) -> None:
        """Let a warm-up end where a pass that computes `most` tokens of it ends, at a whole page."""
        if req.return_logprob or req.multimodal_inputs is not None or req.input_embeds is not None:
            return
        del req.new_tokens  # may be of some time ago
        keep = len(req.origin_input_ids) - self._new_tokens(req, scheduler.tree_cache) + most
        keep -= keep % scheduler.page_size
        if req.num_matched_prefix_tokens < keep < len(req.origin_input_ids):
            req.origin_input_ids = req.origin_input_ids_unpadded = req.origin_input_ids[:keep]
            req.new_tokens = keep - req.num_matched_prefix_tokens
            self.figures.cut += 1

    def _new_tokens(self, req: Any, tree_cache: Any) -> int:
        """Tokens that a warm-up will compute, as seen when it came: looking them up takes its time."""
        if not hasattr(req, "new_tokens"):
            self._match(tree_cache, req, include_req=True)
            req.new_tokens = len(req.origin_input_ids) - req.num_matched_prefix_tokens
        new: int = req.new_tokens
        return new

    def _fits(self, tokens: int) -> bool:
        if self._pace is None:
            return tokens <= _UNMEASURED
        return self._expected(tokens) <= self.budget.longest_pass

    def _longest(self) -> float:
        """Tokens of the longest pass."""
        longest = self.budget.longest_pass
        if longest == float("inf"):
            return longest
        return max(int(longest / self._pace), _LEAST) if self._pace is not None else _UNMEASURED_BESIDE

    def _look(self, reqs: list[Any]) -> list[Any]:
        """Those of the decode batch that decode, mostly the same; notes when they begin to."""
        n = self._looked_at
        if 0 < n <= len(reqs) and reqs[n - 1] is self._last:  # none has left: they keep their order
            if self._some_ended:
                self._decode = [req for req in self._decode if req.finished_reason is None]
            new = reqs[n:]
        else:
            self._decode, new = [], reqs
        self._some_ended = False
        self._looked_at, self._last = len(reqs), reqs[-1] if reqs else None
        if new:
            now = self._clock()
            for req in new:
                if req.finished_reason is None and not is_warm_up(req):
                    self._decode.append(req)
                    if not hasattr(req, "decodes_since"):
                        req.decodes_since = now
                        if req.session_id is None:
                            self._others.came(now)
        return self._decode

    def _expected(self, tokens: int) -> float:
        """Seconds of a pass; 0 before one has been measured."""
        return max(tokens * self._pace, self._shortest) if self._pace is not None else 0.0

    def _cancel(self, scheduler: Any, sessions: set[str]) -> None:
        late = [req for req in scheduler.waiting_queue if is_warm_up(req) and req.session_id in sessions]
        for req in late:
            # By SGLang's own way, so that the client hears of it. Request ids have one length.
            scheduler.abort_request(self._abort_req(rid=req.rid))
        self.figures.cancelled += len(late)

    def launched(self, batch: Any) -> None:
        """A batch is about to run (None: none is)."""
        self._went_last = False
        if self._let and self._decoding and (batch is None or not any(map(is_warm_up, batch.reqs))):
            self._no_room_until = self._clock() + _RETRY
        if batch is None or not _computes_prompts(batch):
            return
        chunks = [req for req in batch.reqs if is_warm_up(req)]
        self._went_last = len(chunks) == len(batch.reqs)
        # with mixed chunks those that decode are in it, too, a token each
        tokens = sum(req.extend_range.length for req in chunks) or sum(batch.extend_lens)
        timed = self._ranks is None or self._ranks.timed
        self._in_flight.append(Pass(self._clock(), tokens, bool(chunks), self._decoding, timed))
        if chunks:
            self._joined = True
            self.figures.passes += 1
            self.figures.chunks += len(chunks)

    def agree(self, plan: Any, held: bool) -> None:
        """Show the other ranks what has been decided; see to it that time goes on while anything is done."""
        if self._ranks is None:
            return
        if plan.batch_to_run is not None:
            batch = plan.batch_to_run
            self._ranks.decide([req.rid for req in batch.reqs], batch.prefix_lens, batch.extend_lens)
        self._ranks.busy = held or plan.batch_to_run is not None or bool(plan.running_batch.reqs)

    def processed(self, batch: Any) -> None:
        """A batch's results have come.

        With overlap, a pass is queued behind a decode step that still runs, and that step's results are
        looked at only once the pass has been launched, which may take some 20 ms. So the pass is taken to
        have begun when these results came, but no later than a decode step after its launch.
        """
        ended = [req for req in batch.reqs if req.finished_reason is not None]
        self._some_ended = self._some_ended or bool(ended)
        decoded = [req for req in ended if hasattr(req, "decodes_since")]
        results = Results(_computes_prompts(batch), [req.decodes_since for req in decoded])
        for req in decoded:
            del req.decodes_since
        if self._unread and self._unread[-1].says_nothing:
            self._unread.pop()
        self._unread.append(results)
        if self._ranks is None:
            self._read()

    def _read(self) -> None:
        """Look at the results that have come, just now.

        With several ranks that is the begin of the next step, which follows at once; where that has no time
        it is later, and says nothing of how long anything took.
        """
        results, self._unread = self._unread, []
        for one in results:
            self._look_at(one, timed=self._ranks is None or self._ranks.steady)

    def _look_at(self, results: Results, *, timed: bool) -> None:
        now = self._clock()
        if self._in_flight and results.of_prompts:
            done = self._in_flight.popleft()
            seconds = now - max(done.launched_at, min(self._processed_at, done.launched_at + self._step))
            if timed and done.timed and seconds > 0 and done.tokens > 0:
                self._learn(seconds, done)
            if done.warms and done.beside_decodes:
                self.budget.pay(seconds)
                self.figures.beside_decodes += 1
                self.figures.seconds_beside_decodes += seconds
        decode = timed and not results.of_prompts
        if decode and self._processed_decode and not self._in_flight:  # else it was looked at late
            self._step = now - self._processed_at
        self._processed_at, self._processed_decode = now, decode
        for since in results.decoded_since:
            self.budget.decoded(now - since)

    def _learn(self, seconds: float, done: Pass) -> None:
        """Small passes pay their floor, and waits only add: follow a fall at once, a rise slowly.

        Passes of real requests are as small as these happen to be, so they say only how fast it can be.
        """
        pace = seconds / done.tokens
        if self._pace is None:
            self._pace, self._shortest = pace, seconds
            return
        slower = 1.02 if done.warms else 1.0
        self._pace = min(pace, slower * self._pace)
        self._shortest = min(seconds, slower * self._shortest)

    def plain(self) -> dict[str, Any]:
        """The figures, of plain types."""
        return asdict(self.figures)


def _computes_prompts(batch: Any) -> bool:
    return bool(batch.forward_mode.is_extend())
