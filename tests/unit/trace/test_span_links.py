"""OpenTelemetry: a turn's span links to the span of the turn before it in the same workflow."""

from __future__ import annotations

from typing import Any

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.teams import RoundRobinGroupChat
from opentelemetry import trace

from flashagents_runtime import Reply, RequestRejectedError
from flashagents_runtime.trace import scope
from helpers.clients import scripted, user


class Span(trace.NonRecordingSpan):
    def __init__(self, number: int, links: Any) -> None:
        super().__init__(trace.SpanContext(trace_id=1, span_id=number, is_remote=False))
        self.number = number
        self.links = [link.context.span_id for link in links or ()]
        self.attributes: dict[str, Any] = {}

    def is_recording(self) -> bool:
        return True

    def set_attributes(self, attributes: Any) -> None:
        self.attributes.update(attributes)


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> list[Span]:
    made: list[Span] = []

    class Tracer(trace.NoOpTracer):
        def start_span(self, name: str, *args: Any, links: Any = None, **more: Any) -> Span:
            span = Span(len(made) + 1, links)
            if name.startswith("chat "):  # AutoGen has spans of its own around ours
                made.append(span)
            return span

    monkeypatch.setattr(trace, "get_tracer", lambda *args, **kwargs: Tracer())
    return made


async def test_a_team_is_a_chain(spans: list[Span]) -> None:
    client, _ = scripted(*["Yes."] * 5)
    agents: Any = [AssistantAgent(name, model_client=client) for name in ("a", "b", "c")]
    await RoundRobinGroupChat(agents, max_turns=3).run(task="Go.")
    await RoundRobinGroupChat(agents[:2], max_turns=2).run(task="Go.")
    assert [span.attributes["gen_ai.agent.name"] for span in spans] == ["a", "b", "c", "a", "b"]
    assert [span.links for span in spans] == [[], [1], [2], [], [4]], "another team begins anew"


async def test_a_failure_is_no_upstream(spans: list[Span]) -> None:
    client, _ = scripted("One.", Reply(text="x", error=RequestRejectedError("no")), "Two.")
    with scope(workflow="failing"):
        await client.create([user()])
        with pytest.raises(RequestRejectedError):
            await client.create([user()])
        await client.create([user()])
    assert [span.links for span in spans] == [[], [1], [1]]


async def test_outside_of_workflows_nothing_is_linked(spans: list[Span]) -> None:
    client, _ = scripted("One.", "Two.")
    await client.create([user()])
    await client.create([user()])
    assert [span.links for span in spans] == [[], []]
