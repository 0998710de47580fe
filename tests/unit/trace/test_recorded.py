"""What clients, teams, tools and prefill sessions leave in a trace."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.teams import RoundRobinGroupChat

from flashagents_runtime import (
    GenerateRequest,
    Reply,
    RequestRejectedError,
    SamplingParams,
    ScriptedEngine,
    ToolCall,
)
from flashagents_runtime.handoff import Prefiller
from flashagents_runtime.trace import Chunk, SessionEnd, ToolRun, Trace, Turn, scope, watch_turn
from helpers.clients import scripted, user
from helpers.gated_engine import GatedEngine, breathe


def turns(trace: Trace) -> list[Turn]:
    return [e for e in trace.events if isinstance(e, Turn)]


async def test_a_turn_has_its_figures() -> None:
    client, engine = scripted("Hello!", "Hello!")
    with Trace() as trace, scope(agent="writer", workflow="paper 17"):
        await client.create([user("same")])
        await client.create([user("same")])
    first, second = turns(trace)
    assert (first.agent, first.workflow, first.outcome, first.model) == (
        "writer",
        "paper 17",
        "done",
        "scripted",
    )
    assert first.rid == engine.requests[0].rid
    assert first.first is not None and first.start <= first.first <= first.end
    assert (first.prompt, first.completion) == (len(engine.requests[0].input_ids), 6)
    assert second.cached == second.prompt - 1
    assert second.engine.startswith("scripted:scripted#")


async def test_a_failure_and_a_reader_who_leaves() -> None:
    client, _ = scripted(Reply(text="ab", error=RequestRejectedError("no room")), "A long answer.")
    with Trace() as trace:
        with pytest.raises(RequestRejectedError):
            await client.create([user()])
        async with aclosing(client.create_stream([user()])) as stream:
            async for _ in stream:
                break
    failed, left = turns(trace)
    assert (failed.outcome, failed.error) == ("failed", "RequestRejectedError: no room")
    assert (left.outcome, left.error) == ("cancelled", "")


async def test_a_stock_team_names_agents_and_workflow() -> None:
    client, _ = scripted("A plan.", "Some food.", "A plan.", "Some food.")

    def team() -> RoundRobinGroupChat:
        agents: Any = [AssistantAgent(n, model_client=client) for n in ("planner", "local_guide")]
        return RoundRobinGroupChat(agents, max_turns=2)

    with Trace() as trace:
        await team().run(task="Paris")
        await team().run(task="Rome")
    assert [t.agent for t in turns(trace)] == ["planner", "local_guide"] * 2
    workflows = [t.workflow for t in turns(trace)]
    assert workflows[0] == workflows[1] != workflows[2] == workflows[3]
    gaps = trace.view.handoffs
    assert [(g.upstream, g.agent) for g in gaps] == [("planner", "local_guide")] * 2
    assert all(g.end >= g.start for g in gaps)


async def test_tools_run_between_the_call_and_its_result() -> None:
    def search(query: str) -> str:
        "Look something up."
        return f"{query} is nice"

    call = ToolCall(name="search", arguments='{"query": "Paris"}')
    client, _ = scripted(Reply(tool_calls=[call, call]), "Paris is nice.")
    agent = AssistantAgent("guide", model_client=client, tools=[search], reflect_on_tool_use=True)
    with Trace() as trace:
        await agent.run(task="Paris?")
    asked, answered = turns(trace)
    tools = [e for e in trace.events if isinstance(e, ToolRun)]
    assert [t.tool for t in tools] == ["search", "search"]
    assert len({t.call_id for t in tools}) == 2
    assert all(asked.end <= t.start <= t.end <= answered.start for t in tools)


def request(ids: list[int]) -> GenerateRequest:
    return GenerateRequest(input_ids=ids, sampling=SamplingParams(max_new_tokens=3))


async def test_a_session_leaves_chunks_and_a_sum() -> None:
    engine = ScriptedEngine(["yes"])
    session = Prefiller(engine, chunk_size=10).open(agent="writer", workflow="w")
    real = request([*range(25), 99])
    with Trace() as trace:
        session.extend(list(range(10)))
        await session.settle()
        session.extend(list(range(10, 20)))
        await session.settle()
        async for _ in session.generate(real):
            pass
    chunks = [e for e in trace.events if isinstance(e, Chunk)]
    assert [c.position for c in chunks] == [(0, 10), (10, 20)]
    assert all((c.agent, c.workflow, c.outcome) == ("writer", "w", "done") for c in chunks)
    [end] = [e for e in trace.events if isinstance(e, SessionEnd)]
    figures = session.figures
    assert (end.rid, end.chunks, end.computed) == (real.rid, 2, figures.computed)
    assert end.computed == end.prewarmed + end.wasted > 0
    assert sum(c.computed for c in chunks) == end.computed


async def test_an_aborted_chunk_is_seen() -> None:
    engine = GatedEngine()
    session = Prefiller(engine, chunk_size=10).open()
    with Trace() as trace:
        session.extend(list(range(10)))
        await breathe()
        session.rebase(list(range(100, 110)))
        await session.close()
    chunks = [e for e in trace.events if isinstance(e, Chunk)]
    assert chunks and chunks[0].outcome == "cancelled"
    [end] = [e for e in trace.events if isinstance(e, SessionEnd)]
    assert (end.rid, end.wasted) == ("", end.computed)


async def test_a_session_belongs_to_the_agent_that_used_it() -> None:
    engine = ScriptedEngine(["yes"])
    session = Prefiller(engine, chunk_size=4).open()
    with Trace() as trace:
        session.extend([1, 2, 3, 4])
        await session.settle()
        real = request([1, 2, 3, 4, 5])
        async for _ in session.generate(real):
            pass
        trace.record(Turn(agent="writer", workflow="w", rid=real.rid, start=1.0, end=2.0))
    view = trace.view
    assert [(c.agent, c.workflow) for c in view.chunks] == [("writer", "w")]
    assert view.rows[0].ahead > 0


async def test_tracing_changes_no_answer() -> None:
    async def answers() -> list[object]:
        client, engine = scripted("One.", "Two.")
        said = [(await client.create([user(str(i))])).content for i in range(2)]
        return [*said, *(r.input_ids for r in engine.requests)]

    without = await answers()
    with Trace():
        assert await answers() == without


async def test_agents_without_a_client() -> None:
    failing = Reply(text="x", error=RequestRejectedError("no room"))
    engine = ScriptedEngine(["yes", failing, "a long answer"])
    real = request([1, 2])
    with Trace() as trace, scope(workflow="w"):
        said = [delta async for delta in watch_turn(engine.generate(real), real, engine, agent="a")]
        with pytest.raises(RequestRejectedError):
            async for _ in watch_turn(engine.generate(request([3])), request([3]), engine):
                pass
        async with aclosing(watch_turn(engine.generate(request([4])), request([4]), engine)) as stream:
            await anext(stream)
    done, failed, left = turns(trace)
    assert "".join(delta.text for delta in said) == "yes"
    assert (done.agent, done.workflow, done.rid, done.outcome) == ("a", "w", real.rid, "done")
    assert (done.prompt, done.completion) == (2, 3)
    assert (failed.outcome, failed.error) == ("failed", "RequestRejectedError: no room")
    assert (left.outcome, left.completion) == ("cancelled", 1)
    assert len(engine.aborted) == 1
