"""OpenTelemetry spans that write down what they are told; the SDK is no dependency of ours."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry import trace


class Span(trace.NonRecordingSpan):
    """A span that writes down what it is told."""

    def __init__(self, name: str, parent: trace.SpanContext) -> None:
        super().__init__(trace.INVALID_SPAN_CONTEXT)
        self.name, self.parent, self.ended = name, parent, 0
        self.attributes: dict[str, Any] = {}
        self.status: Any = None

    def is_recording(self) -> bool:
        return True

    def set_attribute(self, key: str, value: Any) -> None:
        self.attributes[key] = value

    def set_attributes(self, attributes: Any) -> None:
        self.attributes.update(attributes)

    def set_status(self, status: Any, description: str | None = None) -> None:
        self.status = (status, description)

    def end(self, end_time: int | None = None) -> None:
        self.ended += 1


def recorded(monkeypatch: pytest.MonkeyPatch, api: Any) -> list[Span]:
    """The spans that are made from now on; `api` is `opentelemetry.trace`, as the client sees it."""
    made: list[Span] = []

    class Tracer(trace.NoOpTracer):
        def start_span(self, name: str, *args: Any, **kwargs: Any) -> Span:
            made.append(Span(name, trace.get_current_span().get_span_context()))
            return made[-1]

    monkeypatch.setattr(api, "get_tracer", lambda *args, **kwargs: Tracer())
    return made
