"""One clock for the schedulers of all tensor-parallel ranks.

Each rank runs a scheduler of its own over the same requests, and all must admit and evict the same at the
same step. What is decided here depends on the time, and each process has its own clock. So the first rank's
time goes to all of them with the requests that it receives for them (SGLang has a broadcast for these at
every step anyway), and stands still until the next.
"""

from __future__ import annotations

import time
import weakref
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

from .. import sglang_seams as seams

#: Seconds after the last message of a prefill session for which steps without a message are timed, too.
_LATELY = 60.0


class Tick(NamedTuple):
    """What the first rank sends behind the requests of a step."""

    now: float
    """Seconds since its clock was made."""
    decided: int
    """Checksum of its decisions before this step."""


class LeadersClock:
    """The first rank's time at the begin of a step, in seconds; the same in all ranks.

    A step has a time where it has a message, which costs nothing more, and where something runs or is held
    and a session has shown itself lately: a second broadcast of some bytes. An engine without sessions has
    none of these.

    With the time goes a checksum of the first rank's decisions. It is compared after the fact: a rank that
    has evicted otherwise ends before it runs another pass, one that has admitted otherwise has launched that
    pass already, and may wait in its collective operations until SGLang's watchdog ends it.

    Args:
        local: this process's clock; read by the first rank only.
    """

    def __init__(self, local: Callable[[], float] = time.monotonic) -> None:
        self._local = local
        self._origin = local()
        self._now = 0.0
        self._until = float("-inf")
        """Of the first rank: how long steps without a message are timed."""
        self._decided = 0
        self._step = 0
        """Steps that have received."""
        self._timed = 0
        """The last of them that had a time."""
        self.busy = False
        """Something runs or is held: the time is wanted at the next step."""
        self.heard: Callable[[], None] = lambda: None
        """Called when a step has got its time."""
        live.add(self)

    def __call__(self) -> float:
        return self._now

    @property
    def timed(self) -> bool:
        """This step has a time."""
        return self._timed == self._step

    @property
    def steady(self) -> bool:
        """The step before had a time, too, so what it did has lasted from then until now."""
        return self._timed == self._step - 1

    def decide(self, *what: Any) -> None:
        """Note a decision, of numbers and strings, which must be the same in every rank."""
        self._decided = zlib.crc32(repr(what).encode(), self._decided)

    def lead(self, messages: list[Any]) -> list[Any]:
        """The first rank: what to broadcast in this step instead of `messages`, which are not changed."""
        now = self._local() - self._origin
        if any(map(_of_a_session, messages)):
            self._until = now + _LATELY
        if messages or (self.busy and now < self._until):
            return [*messages, Tick(max(now, self._now), self._decided)]
        return messages

    def follow(self, received: list[Any]) -> list[Any]:
        """Every rank: the messages of this step without its time, which is noted.

        Raises SeamError in a rank that has decided otherwise than the first one.
        """
        self._step += 1
        if not received or not isinstance(received[-1], Tick):
            return received
        *messages, tick = received
        if tick.decided != self._decided:
            raise seams.SeamError(
                "the schedulers of this engine's ranks have decided differently (admission or eviction), so "
                "their caches are no longer alike; FLASHAGENTS_DISABLE=soft_pins,warmup_budget,sjf leaves "
                "these decisions to SGLang"
            )
        self._now = tick.now
        self.heard()
        self._timed = self._step
        return messages


def clock_for(ctx: Any, cache: Any) -> Callable[[], float]:
    """The clock by which the scheduler of `cache` decides, in seconds from any origin."""
    if ctx.server_args.tp_size == 1:
        return time.monotonic
    if not hasattr(cache, "clock"):
        cache.clock = LeadersClock()
    clock: LeadersClock = cache.clock
    return clock


def refusal_of_ranks(args: Any) -> str | None:
    """Why decisions by the clock cannot be made with these ServerArgs; None where they can."""
    for name, alone in (("pp_size", 1), ("attn_cp_size", 1), ("enable_dp_attention", False)):
        if getattr(args, name) != alone:
            return f"{name}={getattr(args, name)!r}: its ranks would decide by different clocks"
    if args.disaggregation_mode != "null":
        return f"disaggregation_mode={args.disaggregation_mode!r} has not been tried with it"
    return None


live: weakref.WeakSet[LeadersClock] = weakref.WeakSet()
"""Those of this process, which holds one scheduler: what receives its requests does not know its cache."""


def around_broadcast(original: Callable[..., Any], self: Any, recv_reqs: list[Any] | None) -> Any:
    """The hook. `recv_reqs` is None in all ranks but the first."""
    clock = next(iter(live), None)
    if clock is None:
        return original(self, recv_reqs)
    return clock.follow(original(self, recv_reqs if recv_reqs is None else clock.lead(recv_reqs)))


def _of_a_session(message: Any) -> bool:
    several = getattr(message, "batch", None)  # BatchTokenizedGenerateReqInput
    if isinstance(several, list):
        return any(map(_of_a_session, several))
    return getattr(message, "session_id", None) is not None


RANKS = {
    "sglang.srt.managers.scheduler_components.request_receiver.SchedulerRequestReceiver"
    "._broadcast_reqs_across_ranks": around_broadcast,
}
