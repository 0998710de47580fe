"""A trace as bars: what every picture of a time line draws, whatever draws it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from html import escape

from .events import Chunk, Event, Mark, ToolRun, Turn
from .view import TraceView


@dataclass(frozen=True)
class Bar:
    """From `start` to `end`, in seconds since the trace's first event, in lane `lane`.

    `kind` is a key of `colors.KINDS`; `hint` is HTML with all names escaped; `low` for the lane's lower half.
    """

    kind: str
    lane: int
    start: float
    end: float
    hint: str
    label: str = ""
    low: bool = False


@dataclass(frozen=True)
class Gap:
    """An arrow from the end of one turn to the first token of the next."""

    from_lane: int
    to_lane: int
    start: float
    end: float
    hint: str


class Bars:
    """The bars, gaps and lane names of a trace."""

    def __init__(self, view: TraceView) -> None:
        self.view = view
        self._origin = view.bounds[0]
        if view.by_workflow:
            names = list(dict.fromkeys(workflow for workflow, _ in view.lanes))
            self._lanes = {lane: names.index(lane[0]) for lane in view.lanes}
            self.lanes = [_short(name) or "no workflow" for name in names]
        else:
            several = len({workflow for workflow, _ in view.lanes}) > 1
            self._lanes = {lane: i for i, lane in enumerate(view.lanes)}
            self.lanes = [_lane_name(workflow, agent, several) for workflow, agent in view.lanes]

    def _lane(self, event: Event) -> int:
        return self._lanes[event.workflow, event.agent]

    def _at(self, time: float) -> float:
        return time - self._origin

    @cached_property
    def bars(self) -> list[Bar]:
        """All bars; those of chunks and tools lie in the lower half of their lane."""
        found: list[Bar] = []
        for turn in self.view.turns:
            found += self._turn(turn)
        found += [self._chunk(chunk) for chunk in self.view.chunks]
        found += [self._tool(tool) for tool in self.view.tools]
        return found

    @cached_property
    def gaps(self) -> list[Gap]:
        """Between turns."""
        out = []
        for gap in self.view.handoffs:
            lane = (gap.workflow, gap.upstream)
            if lane in self._lanes and (gap.workflow, gap.agent) in self._lanes:
                hint = (
                    f"<b>{escape(gap.upstream)} → {escape(gap.agent)}</b><br>"
                    f"{_ms(gap.end - gap.start)} from the last token to the first"
                )
                start, end = self._at(gap.start), self._at(gap.end)
                out.append(Gap(self._lanes[lane], self._lane(gap), start, end, hint))
        return out

    @cached_property
    def marks(self) -> list[tuple[int, float, str]]:
        """(lane, time, hint) of everything that has no length."""
        return [(self._lane(mark), self._at(mark.time), _mark_hint(mark)) for mark in self.view.marks]

    def _turn(self, turn: Turn) -> list[Bar]:
        lane, start, end = self._lane(turn), self._at(turn.start), self._at(turn.end)
        first = end if turn.first is None else self._at(turn.first)
        share = f" ({turn.cached / turn.prompt:.0%})" if turn.prompt else ""
        hint = "<br>".join(
            [
                f"<b>{escape(turn.agent) or 'agent'}</b> {escape(_short(turn.workflow))}",
                f"first token after {_ms(first - start)}, in all {_ms(end - start)}"
                if turn.first is not None
                else f"no token in {_ms(end - start)}",
                f"prompt {turn.prompt}, cached {turn.cached}{share}",
                f"prewarmed {turn.prewarmed}, shared in turn {turn.shared_in_turn}",
                f"{turn.completion} tokens generated",
                *([f"<b>{turn.outcome}</b> {escape(turn.error[:120])}"] if turn.outcome != "done" else []),
                escape(turn.engine),
            ]
        )
        label = escape(turn.agent) if self.view.by_workflow else f"{turn.completion}"
        waiting = Bar("wait", lane, start, first, hint)
        return (
            [waiting, Bar("decode", lane, first, end, hint, label)] if turn.first is not None else [waiting]
        )

    def _chunk(self, chunk: Chunk) -> Bar:
        low, high = chunk.position
        hint = (
            f"<b>{escape(chunk.agent) or 'agent'}</b>, ahead of its turn<br>"
            f"tokens {low} to {high}, {chunk.computed} computed<br>"
            f"{_ms(chunk.end - chunk.start)}, {chunk.outcome}<br>{escape(chunk.engine)}"
        )
        kind = "ahead" if chunk.outcome == "done" else "aborted"
        return Bar(kind, self._lane(chunk), self._at(chunk.start), self._at(chunk.end), hint, low=True)

    def _tool(self, tool: ToolRun) -> Bar:
        took = f"{_ms(tool.end - tool.start)}, {tool.outcome}"
        hint = f"<b>{escape(tool.tool)}</b> for {escape(tool.agent)}<br>{took}"
        start, end = self._at(tool.start), self._at(tool.end)
        return Bar("tool", self._lane(tool), start, end, hint, escape(tool.tool), low=True)


def _short(workflow: str) -> str:
    """A team's id is a UUID: its first part is enough to tell a few apart."""
    return workflow[:8] if len(workflow) == 36 and workflow.count("-") == 4 else workflow[:40]


def _lane_name(workflow: str, agent: str, several: bool) -> str:
    agent = agent[:32] or "agent"
    return f"{_short(workflow)} {agent}".strip() if several else agent


def _ms(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"


def _mark_hint(mark: Mark) -> str:
    data = "".join(f"<br>{escape(str(name))}: {escape(str(value)[:80])}" for name, value in mark.data.items())
    return f"<b>{escape(mark.name)}</b> {escape(mark.agent)}{data}"


__all__ = ["Bar", "Bars", "Gap"]
