"""What a list of events says: lanes, turns, gaps and sums. Everything that draws a trace draws this."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from functools import cached_property
from typing import TypeVar

import msgspec

from . import groups as _groups
from .events import AnyEvent, Chunk, Event, Handoff, Mark, SessionEnd, ToolRun, Turn

_E = TypeVar("_E", bound=Event)

#: Up to this many agents have a lane each; with more, each workflow has one.
MOST_AGENT_LANES = 40


class Gaps:
    """Finds each turn's hand-off gap: from the last token before it to its own first token.

    The turn before it is the one of the same workflow that ended last before it began, if another agent's.
    """

    def __init__(self, workflows: int = 1024) -> None:
        self._ended: dict[str, deque[Turn]] = {}
        self._most = workflows

    def follow(self, turn: Turn) -> Handoff | None:
        """Take the next turn to end; returns its gap, where it follows another agent's turn."""
        if not turn.workflow:
            return None
        before = self._ended.pop(turn.workflow, None)
        earlier = deque(maxlen=64) if before is None else before
        self._ended[turn.workflow] = earlier  # now the last: those that sleep longest are dropped first
        if len(self._ended) > self._most:
            del self._ended[next(iter(self._ended))]
        last = max((t for t in earlier if t.end <= turn.start), key=lambda t: t.end, default=None)
        if turn.outcome == "done":
            earlier.append(turn)
        if last is None or turn.first is None or last.agent == turn.agent:
            return None
        return Handoff(
            agent=turn.agent,
            workflow=turn.workflow,
            engine=turn.engine,
            upstream=last.agent,
            start=last.end,
            end=turn.first,
            rid=turn.rid,
            upstream_rid=last.rid,
        )


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One turn, for tables. Seconds and tokens; `start` counts from the trace's first event.

    Attributes:
        ahead: seconds of warm-up requests before the turn, overlapped with others' decoding.
        gap: see `Handoff`; None where it follows nobody.
        wasted: computed ahead of it in vain.
        rate: tokens a second while it decoded; None with fewer than two tokens.
    """

    workflow: str
    agent: str
    engine: str
    start: float
    first_token: float | None
    seconds: float
    gap: float | None
    prompt: int
    cached: int
    prewarmed: int
    shared_in_turn: int
    wasted: int
    completion: int
    ahead: float
    rate: float | None
    outcome: str


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over a trace; see `Row`.

    Attributes:
        seconds: from the first event to the last.
        first_token: mean time to the first token.
        gap: mean hand-off gap.
    """

    seconds: float
    turns: int
    workflows: int
    agents: int
    first_token: float | None
    gap: float | None
    prompt: int
    cached: int
    prewarmed: int
    shared_in_turn: int
    wasted: int
    completion: int
    chunks: int
    aborted_chunks: int


class TraceView:
    """Events put in order: chunks and sessions know their agents, turns their gaps.

    Attributes:
        turns, chunks, sessions, tools, marks: the events by kind, in order of time.
        handoffs: recorded gaps, and those that follow from the turns.
    """

    def __init__(self, events: Iterable[AnyEvent]) -> None:
        events = list(events)
        self.turns = sorted((e for e in events if isinstance(e, Turn)), key=lambda t: t.start)
        turns = {turn.rid: turn for turn in self.turns}
        ends = {e.session: e for e in events if isinstance(e, SessionEnd)}

        def owned(event: _E, session: str) -> _E:
            """With the agent of the turn that the session was for; as labelled where none came."""
            end = ends.get(session)
            turn = turns.get(end.rid) if end is not None else None
            if turn is None:
                return event
            return msgspec.structs.replace(event, agent=turn.agent, workflow=turn.workflow)

        chunks = [owned(e, e.session) for e in events if isinstance(e, Chunk)]
        self.chunks = sorted(chunks, key=lambda c: c.start)
        sessions = [owned(e, session) for session, e in ends.items()]
        self.sessions = sorted(sessions, key=lambda e: e.time)
        self.tools = sorted((e for e in events if isinstance(e, ToolRun)), key=lambda e: e.start)
        self.marks = sorted((e for e in events if isinstance(e, Mark)), key=lambda e: e.time)
        recorded = [e for e in events if isinstance(e, Handoff)]
        told = {e.rid for e in recorded}
        gaps = Gaps(len(events) + 1)
        found = [gaps.follow(turn) for turn in sorted(self.turns, key=lambda t: t.end)]
        derived = [gap for gap in found if gap is not None and gap.rid not in told]
        self.handoffs = sorted([*recorded, *derived], key=lambda e: e.start)

    @cached_property
    def bounds(self) -> tuple[float, float]:
        """First and last time of all events."""
        spans: list[Turn | Chunk | ToolRun] = [*self.turns, *self.chunks, *self.tools]
        points = [e.time for e in self.sessions] + [e.time for e in self.marks]
        starts, ends = [e.start for e in spans] + points, [e.end for e in spans] + points
        return (min(starts), max(ends)) if starts else (0.0, 0.0)

    @cached_property
    def lanes(self) -> list[tuple[str, str]]:
        """(workflow, agent), in order of first appearance, workflow by workflow."""
        found: dict[str, dict[str, None]] = {}
        spans: list[Turn | Chunk | ToolRun] = [*self.turns, *self.chunks, *self.tools]
        places = [(e.start, e.workflow, e.agent) for e in spans]
        places += [(e.time, e.workflow, e.agent) for e in self.marks]
        for _, workflow, agent in sorted(places):
            found.setdefault(workflow, {}).setdefault(agent)
        return [(workflow, agent) for workflow, agents in found.items() for agent in agents]

    @property
    def by_workflow(self) -> bool:
        """Whether there are so many agents that a lane holds a whole workflow."""
        return len(self.lanes) > MOST_AGENT_LANES

    @cached_property
    def rows(self) -> list[Row]:
        """One a turn, in order of start."""
        origin = self.bounds[0]
        gaps = {h.rid: h.end - h.start for h in self.handoffs}
        sessions = defaultdict(list)
        for end in self.sessions:
            if end.rid:
                sessions[end.rid].append(end)
        seconds: dict[str, float] = defaultdict(float)
        for chunk in self.chunks:
            seconds[chunk.session] += chunk.end - chunk.start
        rows = []
        for t in self.turns:
            decoding = t.end - t.first if t.first is not None else 0.0
            rows.append(
                Row(
                    workflow=t.workflow,
                    agent=t.agent,
                    engine=t.engine,
                    start=t.start - origin,
                    first_token=None if t.first is None else t.first - t.start,
                    seconds=t.end - t.start,
                    gap=gaps.get(t.rid),
                    prompt=t.prompt,
                    cached=t.cached,
                    prewarmed=t.prewarmed,
                    shared_in_turn=t.shared_in_turn,
                    wasted=sum(end.wasted for end in sessions[t.rid]),
                    completion=t.completion,
                    ahead=sum(seconds[end.session] for end in sessions[t.rid]),
                    rate=(t.completion - 1) / decoding if decoding > 0 and t.completion > 1 else None,
                    outcome=t.outcome,
                )
            )
        return rows

    def groups(self, by: _groups.By) -> list[_groups.Group]:
        """Sums of the turns of each agent, engine or workflow. Raises ValueError for another word."""
        return _groups.groups(self.rows, by)

    @cached_property
    def summary(self) -> Summary:
        """Sums over everything."""
        waits = [t.first - t.start for t in self.turns if t.first is not None]
        gaps = [h.end - h.start for h in self.handoffs]
        return Summary(
            seconds=self.bounds[1] - self.bounds[0],
            turns=len(self.turns),
            workflows=len({workflow for workflow, _ in self.lanes}),
            agents=len(self.lanes),
            first_token=sum(waits) / len(waits) if waits else None,
            gap=sum(gaps) / len(gaps) if gaps else None,
            prompt=sum(t.prompt for t in self.turns),
            cached=sum(t.cached for t in self.turns),
            prewarmed=sum(t.prewarmed for t in self.turns),
            shared_in_turn=sum(t.shared_in_turn for t in self.turns),
            wasted=sum(end.wasted for end in self.sessions),
            completion=sum(t.completion for t in self.turns),
            chunks=len(self.chunks),
            aborted_chunks=sum(c.outcome != "done" for c in self.chunks),
        )


__all__ = ["MOST_AGENT_LANES", "Gaps", "Row", "Summary", "TraceView"]
