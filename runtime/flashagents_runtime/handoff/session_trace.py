"""What a prefill session tells a trace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ..trace.events import Chunk, Outcome, SessionEnd, engine_name, record, recording

if TYPE_CHECKING:
    from .prefiller import Prefiller
    from .session import PrefillSession


class _ChunkInFlight(Protocol):
    @property
    def ids(self) -> list[int]: ...
    @property
    def warm(self) -> int: ...
    @property
    def started(self) -> float: ...


def trace_chunk(
    session: PrefillSession, prefiller: Prefiller, chunk: _ChunkInFlight, outcome: Outcome, computed: int
) -> None:
    """A chunk has ended; `computed` of its tokens were computed."""
    if recording():
        record(
            Chunk(
                agent=session.agent,
                workflow=session.workflow,
                engine=engine_name(prefiller.engine),
                session=session.session_id,
                start=chunk.started,
                end=prefiller.clock(),
                position=(chunk.warm, len(chunk.ids)),
                computed=computed,
                outcome=outcome,
            )
        )


def trace_end(session: PrefillSession, prefiller: Prefiller) -> None:
    """A session has closed."""
    if recording():
        figures = session.figures
        record(
            SessionEnd(
                agent=session.agent,
                workflow=session.workflow,
                engine=engine_name(prefiller.engine),
                session=session.session_id,
                time=prefiller.clock(),
                rid=session.rid,
                chunks=figures.chunks,
                computed=figures.computed,
                prewarmed=figures.prewarmed,
                wasted=figures.wasted,
            )
        )


__all__ = ["trace_chunk", "trace_end"]
