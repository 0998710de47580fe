"""Role agents on a real engine, whose hand-offs are compared with the overlap off."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from flashagents_runtime import Delta, GenerateRequest, SamplingParams, Usage
from flashagents_runtime.chat import ChatMessage
from flashagents_runtime.chat_tokenizer import HFChatTokenizer
from flashagents_runtime.embedded import EmbeddedEngine
from flashagents_runtime.handoff import (
    CutRules,
    Downstream,
    Prefiller,
    PromptForecast,
    forecast_messages,
    slot_marker,
)

GUIDE = (
    "You work in a team that plans journeys. Keep to facts, write plain sentences, and never repeat what "
    "another member of the team has said. Distances are in kilometres, prices in euros, times in hours. "
)
ROLES = {
    "planner": GUIDE * 2 + "You are the planner: propose a route.",
    "writer": GUIDE * 2 + "You are the writer: describe the route for a brochure.",
    "critic": GUIDE * 2 + "You are the critic: name one weakness of the route.",
    "editor": GUIDE * 2 + "You are the editor: merge what the others said into two sentences.",
}
Answer = tuple[str, list[int], Usage]
CHUNK = 24


class Team:
    """Role agents on one engine."""

    def __init__(self, engine: EmbeddedEngine, model_path: str) -> None:
        self.engine = engine
        self.chat = HFChatTokenizer(model_path)
        self.rules = CutRules(Tokenizer.from_file(str(Path(model_path) / "tokenizer.json")))
        self.prefiller = Prefiller(engine, chunk_size=CHUNK, share=1.0)

    def messages(self, role: str, texts: list[str]) -> list[ChatMessage]:
        task = ChatMessage(role="user", content="A week by train from Paris to Rome.", source="user")
        said = [ChatMessage(role="user", content=text, source=f"agent{i}") for i, text in enumerate(texts)]
        return [ChatMessage(role="system", content=ROLES[role]), task, *said]

    def request(self, role: str, *texts: str, tokens: int = 40) -> GenerateRequest:
        """The real request: rendered and tokenised anew."""
        ids = self.chat.encode(self.chat.render(self.messages(role, list(texts))))
        return GenerateRequest(input_ids=ids, sampling=SamplingParams(temperature=0.0, max_new_tokens=tokens))

    def forecast(self, role: str, slots: int = 1) -> PromptForecast:
        return forecast_messages(
            self.chat.render, self.messages(role, [slot_marker(i) for i in range(slots)]), slots
        )

    def downstream(self, role: str, slots: int = 1) -> Downstream:
        return Downstream(self.prefiller.open(), self.forecast(role, slots), self.rules, batch=1)

    async def off(self, role: str, *texts: str, tokens: int = 40) -> Answer:
        return await read(self.engine.generate(self.request(role, *texts, tokens=tokens)))


async def read(stream: AsyncGenerator[Delta, None]) -> Answer:
    text, ids = "", []
    async with aclosing(stream):
        async for delta in stream:
            text += delta.text
            ids += delta.token_ids
    assert delta.result is not None
    return text, ids, delta.result.usage


async def empty(engine: EmbeddedEngine) -> None:
    """Wait until the engine is idle, and empty its cache."""
    for _ in range(200):
        if await engine.flush_cache():
            return
        await asyncio.sleep(0.05)
    pytest.fail("the engine does not become idle")


async def ask(target: Downstream, request: GenerateRequest, *, settled: bool = True) -> Answer:
    """The target's real prompt: what was warm before it was sent is found in the cache.

    How much that is when upstream ends depends on how fast this machine prefills. So most tests let the
    session finish what is due (`settled`); then all but less than a chunk has to be warm.
    """
    session, prompt = target.session, len(request.input_ids)
    if settled:
        await session.settle()
        assert session.warm > prompt - CHUNK
    assert request.input_ids[: session.warm] == session.target[: session.warm]
    warm = min(session.warm, prompt - 1)  # the last token is always computed
    answer = await read(target.generate(request))
    usage, figures = answer[2], target.figures
    assert figures.computed == figures.prewarmed + figures.wasted
    assert usage.prewarmed_tokens == figures.prewarmed > 0
    assert usage.cached_tokens == figures.cached >= warm
    return answer
