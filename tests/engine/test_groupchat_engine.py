"""Every kind of team on the real engine and the real model: the overlap changes no text.

Each team runs twice from an empty cache, without and with the overlap, greedily. The messages must be
equal, forecasts right where the next speaker is certain, and of an upstream text all but the last chunk
in the cache when the next request comes, part of it sent before the upstream agent had ended. So that this
does not depend on how fast a machine decodes and prefills, texts are handed on at the pace of their readers'
prefill (`Paced`); the last tests have the engine's own pace.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

import msgspec
import pytest
from autogen_agentchat.agents import AssistantAgent, SocietyOfMindAgent
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.teams import (
    DiGraphBuilder,
    GraphFlow,
    MagenticOneGroupChat,
    RoundRobinGroupChat,
    SelectorGroupChat,
    Swarm,
)
from autogen_agentchat.tools import AgentTool

import flashagents_autogen
from flashagents_autogen import FlashAgentsChatCompletionClient, FlashGroupChatRuntime, GroupChatPolicy
from flashagents_autogen.groupchat.turns import Turn, hit_rate
from flashagents_runtime import Delta, GenerateRequest
from flashagents_runtime.chat_tokenizer import load_chat_tokenizer
from flashagents_runtime.embedded import EmbeddedEngine
from helpers.documented import documented, run, shown
from helpers.examples import load_benchmark

CHUNK = 12
POLICY = GroupChatPolicy(chunk_size=CHUNK, share=1.0)
TASK = "A week by train from Paris to Rome."
TOKENS = 26


class Paced:
    """The engine, its texts handed on as their readers' prefill keeps up: a decode that is the slower one.

    Attributes:
        runtime: whose sessions are waited for; None waits for nothing.
    """

    def __init__(self, engine: EmbeddedEngine) -> None:
        self._engine = engine
        self.runtime: FlashGroupChatRuntime | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        real = request.sampling.max_new_tokens != 0
        if real:
            await self._settled()
        async with aclosing(self._engine.generate(request)) as stream:
            async for delta in stream:
                if real:
                    await self._settled()
                yield delta

    async def _settled(self) -> None:
        """No chunk is due or in flight, also of the session whose real request this is."""
        if self.runtime is None:
            return
        await asyncio.sleep(0)  # what was said is read in the next step of the loop
        for prefiller in self.runtime.engines.known():
            for session in list(prefiller._sessions):
                await session.settle()
                while session.in_flight is not None:
                    await asyncio.sleep(0.001)


class Stage:
    """The engine, and agents on it."""

    def __init__(self, engine: EmbeddedEngine) -> None:
        self.engine = Paced(engine)
        self.client = self.with_args()

    def with_args(self, tokens: int = TOKENS, **args: Any) -> FlashAgentsChatCompletionClient:
        """A client; answers are of one length, so that no text is too short to be seen."""
        args = {"engine": self.engine, "ignore_eos": True, **args}
        return FlashAgentsChatCompletionClient(temperature=0, max_tokens=tokens, **args)

    def agent(self, name: str, client: Any = None, **args: Any) -> AssistantAgent:
        system = f"You are {name}, who plans journeys with others. Keep to facts, write plain sentences."
        return AssistantAgent(name, model_client=client or self.client, system_message=system, **args)

    async def both(self, make: Callable[[], Any], policy: GroupChatPolicy = POLICY) -> list[Turn]:
        """Run a team without and with the overlap; returns the turns of the latter."""
        stock = await make().run(task=TASK)
        await self.empty()
        async with FlashGroupChatRuntime(policy) as runtime:
            team = make()
            runtime.attach(team)
            self.engine.runtime = runtime
            flash = await team.run(task=TASK)
            self.engine.runtime = None
            assert len(runtime.expectations) == 0
        assert not [event for event in runtime.events if event.kind == "error"]
        assert [(type(m), m.source, _text(m)) for m in flash.messages] == [
            (type(m), m.source, _text(m)) for m in stock.messages
        ]
        return list(runtime.turns)

    async def empty(self) -> None:
        for _ in range(200):
            if await self.engine.flush_cache():
                return
            await asyncio.sleep(0.05)
        pytest.fail("the engine does not become idle")


class Changed:
    """The engine, with a change made to every real request: for what a client's arguments cannot say."""

    def __init__(self, engine: Paced, change: Callable[[GenerateRequest], GenerateRequest]) -> None:
        self._engine = engine
        self._change = change

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        if request.sampling.max_new_tokens != 0:
            request = self._change(request)
        async with aclosing(self._engine.generate(request)) as stream:
            async for delta in stream:
                yield delta


def without_strict_tools(request: GenerateRequest) -> GenerateRequest:
    """A hand-off's tool is strict, which takes the one grammar that a request may have."""
    assert request.format is not None
    tools = [msgspec.structs.replace(tool, strict=False) for tool in request.format.tools]
    return msgspec.structs.replace(request, format=msgspec.structs.replace(request.format, tools=tools))


def _text(message: Any) -> str:
    # Ids of tool calls are drawn at random.
    return message.to_text() if isinstance(getattr(message, "content", None), str) else ""


def of(turns: list[Turn], agent: str) -> list[Turn]:
    return [turn for turn in turns if turn.agent == agent]


def check(turn: Turn) -> None:
    """It was foreseen; each upstream text but its last chunk is warm, and some of it was before its end."""
    assert turn.right is True, turn.agent
    assert turn.slots, turn.agent
    for slot in turn.slots:
        assert slot.end - slot.start > CHUNK
        assert slot.prewarmed >= slot.end - slot.start - CHUNK
        assert slot.issued_early > 0
        assert turn.cached >= slot.start + slot.done_early


@pytest.fixture
def stage(real_engine: EmbeddedEngine) -> Stage:
    return Stage(real_engine)


async def test_round_robin(stage: Stage) -> None:
    names = ("planner", "critic", "writer")
    turns = await stage.both(lambda: RoundRobinGroupChat([stage.agent(n) for n in names], max_turns=4))
    for turn in turns[1:]:
        check(turn)


async def test_selector(stage: Stage) -> None:
    picks = stage.with_args(6, regex="(planner|critic|writer)", ignore_eos=False)

    def make() -> SelectorGroupChat:
        agents = [stage.agent(name) for name in ("planner", "critic", "writer")]
        return SelectorGroupChat(agents, model_client=picks, max_turns=2)

    turns = await stage.both(make)
    check(of(turns, "SelectorGroupChatManager")[1])


async def test_swarm(stage: Stage) -> None:
    def hands_off_to(target: str) -> FlashAgentsChatCompletionClient:
        call = rf'<tool_call>\n\{{"name": "transfer_to_{target}", "arguments": \{{\}}\}}\n</tool_call>'
        return stage.with_args(
            60, engine=Changed(stage.engine, without_strict_tools), regex=call, ignore_eos=False
        )

    to_flights, to_hotels = hands_off_to("flights"), hands_off_to("hotels")

    def make() -> Swarm:
        triage = stage.agent("triage", to_flights, handoffs=["flights"])
        flights = stage.agent("flights", to_hotels, handoffs=["hotels"])
        agents = [triage, flights, stage.agent("hotels")]
        return Swarm(agents, termination_condition=MaxMessageTermination(4))

    turns = await stage.both(make)
    assert [turn.agent for turn in turns] == ["triage", "flights", "hotels"]
    for turn in turns[1:]:
        assert turn.right is True
        assert turn.cached >= turn.prompt - CHUNK - 8


async def test_graph_flow(stage: Stage) -> None:
    # AutoGen orders what dora hears by who ends first: that should be bert.
    longer = stage.with_args(TOKENS + 14)

    def make() -> GraphFlow:
        a, b, d = (stage.agent(name) for name in ("anna", "bert", "dora"))
        c = stage.agent("carl", longer)
        builder = DiGraphBuilder()
        builder.add_node(a).add_node(b).add_node(c).add_node(d)
        builder.add_edge(a, b).add_edge(a, c).add_edge(b, d).add_edge(c, d)
        return GraphFlow([a, b, c, d], builder.build())  # type: ignore[arg-type]

    turns = await stage.both(make)
    for name in ("bert", "carl", "dora"):
        (turn,) = of(turns, name)
        check(turn)


NO = r'\{"reason": "", "answer": false\}'
LEDGER = (
    rf'\{{"is_request_satisfied": {NO}, "is_in_loop": {NO}, '
    r'"is_progress_being_made": \{"reason": "", "answer": true\}, '
    r'"next_speaker": \{"reason": "", "answer": "(planner|critic)"\}, '
    r'"instruction_or_question": \{"reason": "", "answer": "[A-Za-z ]{60,70}"\}\}'
)


async def test_magentic_one(stage: Stage, model_path: str) -> None:
    info = {**stage.client.model_info, "structured_output": False, "json_output": False}
    chat = load_chat_tokenizer(model_path)

    def brief_but_for_ledgers(request: GenerateRequest) -> GenerateRequest:
        if "pure JSON format" in chat.decode(request.input_ids):
            return request
        sampling = msgspec.structs.replace(request.sampling, regex=None, max_new_tokens=8)
        return msgspec.structs.replace(request, sampling=sampling)

    engine = Changed(stage.engine, brief_but_for_ledgers)
    manager = stage.with_args(240, engine=engine, regex=LEDGER, model_info=info, ignore_eos=False)

    def make() -> MagenticOneGroupChat:
        agents = [stage.agent(name) for name in ("planner", "critic")]
        return MagenticOneGroupChat(agents, model_client=manager, max_turns=1)

    turns = await stage.both(make)
    agents = [turn for turn in turns if turn.agent in ("planner", "critic")]
    # Texts of a dozen tokens: too short for a chunk before their end.
    assert agents[0].right is True and agents[0].prewarmed > 0
    ledger = of(turns, "MagenticOneOrchestrator")[3]
    assert ledger.right is True and ledger.prewarmed > 0


async def test_a_society_of_mind_and_a_team_within_a_team(stage: Stage) -> None:
    def make() -> RoundRobinGroupChat:
        inner = RoundRobinGroupChat([stage.agent("bert")], max_turns=1, name="inner")
        society = SocietyOfMindAgent("society", inner, stage.client)
        within = RoundRobinGroupChat([stage.agent("carl")], max_turns=1, name="within")
        return RoundRobinGroupChat([stage.agent("anna"), society, within, stage.agent("dora")], max_turns=4)

    turns = await stage.both(make)
    for name in ("bert", "society", "carl", "dora"):
        check(of(turns, name)[-1])


TASK_CALL = r'<tool_call>\n\{"name": "writer", "arguments": \{"task": "[A-Za-z ]{60,70}"\}\}\n</tool_call>'


async def test_an_agent_behind_a_tool(stage: Stage) -> None:
    """The call's task streams into the agent behind the tool, and what he says into his owner's prompt."""

    def calls_once(request: GenerateRequest) -> GenerateRequest:
        if request.format is None or not request.format.tools:
            return request  # the reflection
        sampling = msgspec.structs.replace(
            request.sampling, regex=TASK_CALL, max_new_tokens=100, ignore_eos=False
        )
        return msgspec.structs.replace(without_strict_tools(request), sampling=sampling)

    client = stage.with_args(20, engine=Changed(stage.engine, calls_once))
    brief = stage.with_args(20)

    def make() -> RoundRobinGroupChat:
        tool = AgentTool(stage.agent("writer", brief), return_value_as_last_message=True)
        owner = stage.agent("owner", client, tools=[tool], reflect_on_tool_use=True)
        return RoundRobinGroupChat([owner, stage.agent("reader", brief)], max_turns=2)

    turns = await stage.both(make)
    assert [turn.agent for turn in turns] == ["owner", "writer", "owner", "reader"]
    for turn in turns[1:]:
        check(turn)


async def test_a_documented_program_of_autogens(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As it stands but for the import, without and with `install()`."""
    program, printed = documented()["GraphFlow-1"].swapped(), []
    options = {"temperature": 0, "max_tokens": 14, "ignore_eos": True}
    for overlap in (False, True):
        await stage.empty()
        runtime = flashagents_autogen.install(FlashGroupChatRuntime(POLICY)) if overlap else None
        try:
            await asyncio.to_thread(run, program, stage.engine, monkeypatch, **options)
        finally:
            flashagents_autogen.uninstall()
        printed.append(sorted(shown(capsys.readouterr().out).splitlines()))
        if runtime is not None:
            await runtime.close()
            rate = runtime.hit_rate()
            assert rate.turns == rate.right > 0
    assert printed[0] == printed[1]


SAID = (
    *(
        ("planner", "Take the night train to Milan, then go on by noon."),
        ("critic", "That is a short night."),
    ),
    *(("writer", "Then sleep in Lyon"), ("critic", "Better"), ("planner", "So be it")),
)


async def test_a_conversation_is_taken_up(real_engine: EmbeddedEngine) -> None:
    """A sample of `benchmarks/groupchat/real.py`, which plays real ones by all teams. Differences raise."""
    real = load_benchmark("groupchat/real.py")
    conversation = real.replay.Conversation("sample", TASK, SAID)
    turns = await real.both(real_engine, "Selector", [conversation], 8)
    assert hit_rate(turns).right >= 2  # the selector's own prompts
    assert any(turn.prewarmed for turn in turns)


async def test_agents_called_by_hand(stage: Stage) -> None:
    async def chain() -> list[str]:
        text, said = TASK, []
        for agent in agents:
            text = (await agent.run(task=text)).messages[-1].to_text()
            said.append(text)
        return said

    agents = [stage.agent(name) for name in ("planner", "critic")]
    stock = await chain()
    await stage.empty()
    agents = [stage.agent(name) for name in ("planner", "critic")]
    async with FlashGroupChatRuntime(POLICY) as runtime:
        runtime.link(*agents)
        stage.engine.runtime = runtime
        assert await chain() == stock
    check(runtime.turns[-1])


async def test_install_with_learnt_chunks(stage: Stage) -> None:
    """One line, the default policy: what a user gets."""

    def make() -> RoundRobinGroupChat:
        return RoundRobinGroupChat([stage.agent(name) for name in ("planner", "critic")], max_turns=3)

    stock = await make().run(task=TASK)
    await stage.empty()
    runtime = flashagents_autogen.install()
    try:
        flash = await make().run(task=TASK)
    finally:
        flashagents_autogen.uninstall()
        await runtime.close()
    assert [m.to_text() for m in flash.messages] == [m.to_text() for m in stock.messages]
    assert [turn.right for turn in list(runtime.turns)[-2:]] == [True, True]
