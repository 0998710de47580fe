"""The examples on the real engine, with short answers: overlap changes when, never what."""

from __future__ import annotations

import io

from autogen_agentchat.messages import TextMessage
from rich.console import Console

from flashagents_autogen import FlashAgentsChatCompletionClient
from flashagents_autogen.teams.timeline import same_texts
from flashagents_runtime.embedded import EmbeddedEngine
from helpers.examples import load_example


def quiet() -> Console:
    return Console(file=io.StringIO(), width=100)


async def test_the_travel_planner_says_the_same_with_overlap(
    real_engine: EmbeddedEngine, model_path: str
) -> None:
    example = load_example("travel_planner")
    client = FlashAgentsChatCompletionClient(model_path, engine=real_engine, temperature=0, max_tokens=16)
    out = quiet()
    runs = await example.compare(client, "Plan a day in Rome.", "", out)
    assert same_texts(runs)
    off, on = runs.values()
    assert [turn.agent for turn in on] == list(example.AGENTS)
    assert sum(turn.prewarmed_tokens for turn in off) == 0
    assert all(turn.prewarmed_tokens > 0 for turn in on[1:])
    assert "same answers: yes" in out.file.getvalue()  # type: ignore[attr-defined]


async def test_the_guide_is_computed_once(real_engine: EmbeddedEngine, model_path: str) -> None:
    example = load_example("travel_planner")
    client = FlashAgentsChatCompletionClient(model_path, engine=real_engine, temperature=0, max_tokens=4)
    guide = example.GUIDE.read_text().strip()
    turns = await example.watch(example.build_team(client, False, guide), "Plan a day.", quiet())
    assert turns[0].cached_tokens == 0 and turns[0].prompt_tokens > 2500
    assert all(turn.cached_tokens > 2500 for turn in turns[1:])


async def test_map_reduce_says_the_same_with_overlap(real_engine: EmbeddedEngine, model_path: str) -> None:
    example = load_example("map_reduce")
    client = FlashAgentsChatCompletionClient(model_path, engine=real_engine, temperature=0, max_tokens=16)
    papers = example.PAPERS.read_text()[:600]
    runs = {}
    for overlap in (False, True):
        assert await real_engine.flush_cache()
        team = example.build_team(client, overlap=overlap)
        runs[str(overlap)] = await example.review(team, papers, quiet())
    assert same_texts(runs)
    assert runs["True"][-1].agent == "meta_reviewer" and runs["True"][-1].prewarmed_tokens > 0


async def test_slides_are_the_same_and_begin_earlier(real_engine: EmbeddedEngine, model_path: str) -> None:
    example = load_example("slides")
    client = FlashAgentsChatCompletionClient(model_path, engine=real_engine, temperature=0, max_tokens=8)
    planner = FlashAgentsChatCompletionClient(model_path, engine=real_engine, temperature=0)
    task = TextMessage(content=example.DOCUMENT.read_text()[:400], source="user")
    runs = {}
    for at_once in (False, True):
        assert await real_engine.flush_cache()
        runs[str(at_once)] = await example.write_slides(
            client, task, 3, at_once=at_once, analyser_client=planner
        )
    assert same_texts(runs)
    for at_once, turns in runs.items():
        by_agent = {turn.agent: turn for turn in turns}
        assert list(sorted(by_agent)) == ["analyser", "slide_01", "slide_02", "slide_03"]
        began = by_agent["slide_01"].began < by_agent["analyser"].ended
        assert began is (at_once == "True")
