"""One OpenTelemetry span a call, nested in the caller's, without content unless asked."""

from __future__ import annotations

import pytest
from opentelemetry import trace

from flashagents_runtime import EngineDiedError, Reply
from helpers.clients import scripted, user
from helpers.spans import Span, recorded


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> list[Span]:
    monkeypatch.delenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", raising=False)
    return recorded(monkeypatch, trace)


async def test_a_call_is_a_span(spans: list[Span]) -> None:
    client, _ = scripted("Hello!", temperature=0.5, max_tokens=9, stop="X")
    result = await client.create([user("secret")])
    [span] = spans
    assert (span.name, span.ended, span.status) == ("chat scripted", 1, None)
    expected = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "scripted",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.max_tokens": 9,
        "gen_ai.request.stop_sequences": ["X"],
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.usage.input_tokens": result.usage.prompt_tokens,
        "gen_ai.usage.output_tokens": 6,
        "flashagents.usage.prewarmed_tokens": 0,
    }
    assert {key: span.attributes.get(key) for key in expected} == expected
    assert "secret" not in str(span.attributes) and "Hello" not in str(span.attributes)


async def test_content_is_noted_where_it_is_asked_for(
    spans: list[Span], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "true")
    client, _ = scripted("Hello!")
    await client.create([user("secret")])
    assert "secret" in spans[0].attributes["gen_ai.input.messages"]
    assert "Hello!" in spans[0].attributes["gen_ai.output.messages"]


async def test_a_span_is_the_child_of_the_callers_and_does_not_leak(spans: list[Span]) -> None:
    client, _ = scripted("ab")
    context = trace.SpanContext(7, 8, False)
    with trace.use_span(trace.NonRecordingSpan(context)):
        async for _ in client.create_stream([user()]):
            assert trace.get_current_span().get_span_context() is context
    assert spans[0].parent is context and spans[0].ended == 1


async def test_errors(spans: list[Span]) -> None:
    client, _ = scripted(Reply(text="ab", error=EngineDiedError("gone")), "abc")
    with pytest.raises(EngineDiedError):
        await client.create([user()])
    assert spans[0].attributes["error.type"] == "EngineDiedError"
    assert spans[0].status == (trace.StatusCode.ERROR, "gone") and spans[0].ended == 1
    stream = client.create_stream([user()])
    await anext(stream)
    await stream.aclose()  # leaving early is no error
    assert spans[1].status is None and spans[1].ended == 1
    assert spans[1].attributes["gen_ai.usage.output_tokens"] == 1
