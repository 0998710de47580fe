"""See a run: who decoded when, what was prefilled meanwhile, what was found and what was in vain.

Framework-neutral: clients, hand-off and teams call `record`; sinks such as `Trace` listen.
"""

from .events import (
    AnyEvent,
    Chunk,
    Event,
    Handoff,
    Mark,
    Outcome,
    SessionEnd,
    ToolRun,
    TraceSink,
    Turn,
    add_sink,
    engine_name,
    record,
    recording,
    remove_sink,
)
from .groups import Group
from .recorder import Trace, check_target
from .scope import Scope, current_scope, scope
from .view import Gaps, Row, Summary, TraceView
from .watch import watch_turn

__all__ = [
    "AnyEvent",
    "Chunk",
    "Event",
    "Gaps",
    "Group",
    "Handoff",
    "Mark",
    "Outcome",
    "Row",
    "Scope",
    "SessionEnd",
    "Summary",
    "ToolRun",
    "Trace",
    "TraceSink",
    "TraceView",
    "Turn",
    "add_sink",
    "check_target",
    "current_scope",
    "engine_name",
    "record",
    "recording",
    "remove_sink",
    "scope",
    "watch_turn",
]
