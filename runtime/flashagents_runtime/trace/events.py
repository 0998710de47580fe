"""What can happen in a run, and who is told. Times are `time.monotonic()`, in seconds.

Whoever sees something happen builds an event and calls `record`; with nobody listening that is one look at an
empty tuple, and `recording()` says so beforehand. A sink that raises is logged once and told no more:
observing never disturbs serving.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec

if TYPE_CHECKING:
    from ..engine import Engine
    from ..types import EngineInfo

_log = logging.getLogger(__name__)

Outcome = Literal["done", "cancelled", "failed"]


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", omit_defaults=True):
    """What all events say.

    Attributes:
        agent: the agent's name; "" where nobody knows it.
        workflow: what one task of one team has in common, such as the team's id; "" outside of teams.
        engine: the engine that worked, by `engine_name`; "" where none did.
    """

    agent: str = ""
    workflow: str = ""
    engine: str = ""


class Turn(Event, frozen=True, kw_only=True, tag="turn"):
    """One answer of an agent, from request to last token; recorded when it ends.

    Attributes:
        rid: the request's id.
        start: the request went out.
        first: its first token came; None where none did. Before it: queue and prefill; after it: decode.
        end: the last token came, or the request ended otherwise.
        outcome: how it ended.
        prompt: tokens of the prompt.
        cached: of these, found in the KV cache.
        prewarmed: of the cached ones, put there by a prefill session of this agent.
        shared_in_turn: of the cached ones, computed by another request of the same pass.
        completion: generated tokens.
        model: the model that answered.
        error: of a failed one, the error's type and text.
    """

    rid: str
    start: float
    end: float
    first: float | None = None
    outcome: Outcome = "done"
    prompt: int = 0
    cached: int = 0
    prewarmed: int = 0
    shared_in_turn: int = 0
    completion: int = 0
    model: str = ""
    error: str = ""


class Chunk(Event, frozen=True, kw_only=True, tag="chunk"):
    """A part of an agent's next prompt, prefilled ahead of its turn; recorded when it ends.

    Attributes:
        session: id of the prefill session.
        start: the warm-up request went out.
        end: its result came, or it was aborted.
        position: tokens `[position[0], position[1])` of the prompt were to be computed.
        computed: of these, computed indeed; the rest was in the cache by then. Aborted ones: at most that.
        outcome: "cancelled" where the prompt turned out otherwise.
    """

    session: str
    start: float
    end: float
    position: tuple[int, int]
    computed: int = 0
    outcome: Outcome = "done"


class SessionEnd(Event, frozen=True, kw_only=True, tag="session"):
    """A prefill session has closed; what it was good for, in tokens: `computed == prewarmed + wasted`.

    Attributes:
        session: its id.
        time: when.
        rid: the agent's real request; "" where none came.
        chunks: warm-up requests.
        computed: computed ahead of the turn.
        prewarmed: of these, found by the real prompt.
        wasted: of these, computed in vain.
    """

    session: str
    time: float
    rid: str = ""
    chunks: int = 0
    computed: int = 0
    prewarmed: int = 0
    wasted: int = 0


class Handoff(Event, frozen=True, kw_only=True, tag="handoff"):
    """The gap between two agents: `agent` is the one that follows; recorded at its first token.

    Attributes:
        upstream: the agent that spoke before.
        start: its last token.
        end: the follower's first token.
        rid: the follower's request.
        upstream_rid: the request before.
    """

    upstream: str
    start: float
    end: float
    rid: str = ""
    upstream_rid: str = ""


class ToolRun(Event, frozen=True, kw_only=True, tag="tool"):
    """A tool ran for an agent; recorded when it is done.

    Attributes:
        tool: its name.
        start: the call went to it, or the model's answer with the call was whole.
        end: its result was there, or was used.
        call_id: the call's id.
        outcome: "failed" where its result is an error.
    """

    tool: str
    start: float
    end: float
    call_id: str = ""
    outcome: Outcome = "done"


class Mark(Event, frozen=True, kw_only=True, tag="mark"):
    """Anything else worth a mark on the time line, such as a forecast or an error.

    Attributes:
        name: what it is, in one or two words.
        time: when.
        data: what there is to say of it: plain JSON values.
    """

    name: str
    time: float
    data: dict[str, Any] = {}


AnyEvent = Turn | Chunk | SessionEnd | Handoff | ToolRun | Mark


class TraceSink(Protocol):
    """Whoever wants to know. `record` is called from any thread, often: it must return at once."""

    def record(self, event: AnyEvent, /) -> None:
        """Something has happened."""
        ...


_sinks: tuple[TraceSink, ...] = ()
_lock = threading.Lock()


def add_sink(sink: TraceSink) -> None:
    """Tell `sink` of everything from now on; twice is once."""
    global _sinks
    with _lock:
        if not any(other is sink for other in _sinks):
            _sinks = (*_sinks, sink)


def remove_sink(sink: TraceSink) -> None:
    """Tell it no more; fine where it is not told."""
    global _sinks
    with _lock:
        _sinks = tuple(other for other in _sinks if other is not sink)


def recording() -> bool:
    """Whether anybody listens: worth asking before an event is put together."""
    return bool(_sinks)


def record(event: AnyEvent) -> None:
    """Tell all sinks. Never raises: a sink that does is logged and removed."""
    for sink in _sinks:
        try:
            sink.record(event)
        except Exception:
            _log.exception("a trace sink failed and is told no more: %r", sink)
            remove_sink(sink)


def engine_name(engine: Engine) -> str:
    """A short name for an engine: its kind, its model's last part, and which of this process's engines it is.

    For example "embedded:SmolLM2-135M-Instruct#1". Shares of one engine have one name. "" before the start.
    """
    info = engine.info
    if info is None:
        return ""
    with _lock:
        known = _names.get(id(info))
        if known is None or known[0] is not info:  # the entry keeps `info` alive, so ids are not used twice
            name = f"{info.kind}:{info.model.rstrip('/').rpartition('/')[2]}#{len(_names) + 1}"
            known = _names[id(info)] = (info, name)
    return known[1]


_names: dict[int, tuple[EngineInfo, str]] = {}

__all__ = [
    "AnyEvent",
    "Chunk",
    "Event",
    "Handoff",
    "Mark",
    "Outcome",
    "SessionEnd",
    "ToolRun",
    "TraceSink",
    "Turn",
    "add_sink",
    "engine_name",
    "record",
    "recording",
    "remove_sink",
]
