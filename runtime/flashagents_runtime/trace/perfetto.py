"""Chrome's trace format, which ui.perfetto.dev and chrome://tracing open.

Format: "Trace Event Format", Google, 2016. A workflow is a process there, an agent two threads: its turns and
what was prefilled ahead. Times are whole microseconds since the first event.
"""

from __future__ import annotations

from typing import Any

import msgspec

from .events import Chunk, Event, ToolRun, Turn
from .view import TraceView


def chrome_trace(view: TraceView) -> dict[str, Any]:
    """The trace as the format's JSON object."""
    origin = view.bounds[0]
    processes = {workflow: i for i, workflow in enumerate(dict.fromkeys(w for w, _ in view.lanes), 1)}
    threads = {lane: 2 * i for i, lane in enumerate(view.lanes, 1)}
    out: list[dict[str, Any]] = []

    def us(time: float) -> int:
        return round((time - origin) * 1e6)

    def place(event: Event, ahead: bool = False) -> dict[str, int]:
        return {
            "pid": processes[event.workflow],
            "tid": threads[event.workflow, event.agent] + ahead,
        }

    def span(event: Turn | Chunk | ToolRun, name: str, start: float, end: float, ahead: bool = False) -> None:
        args = {
            k: v for k, v in msgspec.to_builtins(event).items() if k not in ("event", "agent", "workflow")
        }
        category = str(event.__struct_config__.tag)
        out.append(
            {
                "name": name,
                "cat": category,
                "ph": "X",
                "ts": us(start),
                "dur": us(end) - us(start),
                "args": args,
            }
            | place(event, ahead)
        )

    for workflow, process in processes.items():
        out.append(_name("process_name", workflow or "no workflow", process, 0))
    for (workflow, agent), thread in threads.items():
        out.append(_name("thread_name", agent or "agent", processes[workflow], thread))
        out.append(_name("thread_name", f"{agent or 'agent'}, ahead", processes[workflow], thread + 1))
    for turn in view.turns:
        first = turn.end if turn.first is None else turn.first
        span(turn, "until first token", turn.start, first)
        if turn.first is not None:
            span(turn, "decode", first, turn.end)
    for chunk in view.chunks:
        span(chunk, f"prefill {chunk.position[0]} to {chunk.position[1]}", chunk.start, chunk.end, ahead=True)
    for tool in view.tools:
        span(tool, tool.tool, tool.start, tool.end, ahead=True)
    for mark in view.marks:
        point = {
            "name": mark.name,
            "cat": "mark",
            "ph": "i",
            "s": "t",
            "ts": us(mark.time),
            "args": mark.data,
        }
        out.append(point | place(mark))
    lanes = set(view.lanes)
    for number, gap in enumerate(view.handoffs, 1):
        if (gap.workflow, gap.upstream) in lanes and (gap.workflow, gap.agent) in lanes:
            arrow = {"name": "hand-off", "cat": "handoff", "id": number}
            upstream = msgspec.structs.replace(gap, agent=gap.upstream)
            out.append(arrow | {"ph": "s", "ts": us(gap.start)} | place(upstream))
            out.append(arrow | {"ph": "f", "bp": "e", "ts": us(gap.end)} | place(gap))
    return {"traceEvents": out, "displayTimeUnit": "ms"}


def _name(kind: str, name: str, process: int, thread: int) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}


__all__ = ["chrome_trace"]
