"""See a run: who decoded when, what was prefilled meanwhile, what was found and what was in vain.

Framework-neutral: the engine's clients, hand-off and teams call `record`; sinks listen.
"""

from .events import (
    AnyEvent,
    Chunk,
    Event,
    Handoff,
    Mark,
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

__all__ = [
    "AnyEvent",
    "Chunk",
    "Event",
    "Handoff",
    "Mark",
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
