"""One stream to many prompts: topologies, failures, and what everybody is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from flashagents_runtime import (
    Delta,
    EngineDiedError,
    GenerateRequest,
    GenerateResult,
    Reply,
    ScriptedEngine,
)
from flashagents_runtime.chat import ChatMessage
from flashagents_runtime.chat_tokenizer import ByteChatTokenizer
from flashagents_runtime.handoff import (
    CutRules,
    Downstream,
    Handoff,
    Policy,
    Prefiller,
    PromptForecast,
    SessionClosedError,
    UpstreamEnd,
    UpstreamFailedError,
    forecast_messages,
    slot_marker,
    warm_up,
)
from helpers.gated_engine import GatedEngine, breathe, is_chunk
from helpers.tiny_tokenizer import tiny_tokenizer


class _Bytes(ByteChatTokenizer):
    context_free = True


CHAT = _Bytes()
RULES = CutRules(CHAT)
ANSWER = "The river Rhine is long: it flows through six countries, from the Alps to the sea.\n"


def messages(name: str, *texts: str) -> list[ChatMessage]:
    system = ChatMessage(role="system", content=f"You are the {name}.")
    said = [ChatMessage(role="user", content=text, source=f"agent{i}") for i, text in enumerate(texts)]
    return [system, ChatMessage(role="user", content="Rivers!", source="user"), *said]


def prompt_of(name: str, *texts: str) -> list[int]:
    return CHAT.encode(CHAT.render(messages(name, *texts)))


def forecast_of(name: str, slots: int = 1) -> PromptForecast:
    return forecast_messages(CHAT.render, messages(name, *map(slot_marker, range(slots))), slots)


def downstream(
    prefiller: Prefiller, name: str = "writer", slots: int = 1, policy: Policy = "finish", told: object = None
) -> Downstream:
    on_end = told.append if isinstance(told, list) else None
    return Downstream(
        prefiller.open(), forecast_of(name, slots), RULES, on_failure=policy, on_end=on_end, batch=1
    )


@pytest.fixture
def engine() -> GatedEngine:
    return GatedEngine([ANSWER, *(f"answer {i}" for i in range(9))], open=True)


@pytest.fixture
def prefiller(engine: GatedEngine) -> Prefiller:
    return Prefiller(engine, chunk_size=16, share=1.0)


async def text_of(stream: AsyncGenerator[Delta, None]) -> tuple[str, GenerateResult]:
    deltas = [delta async for delta in stream]
    assert deltas[-1].result is not None
    return "".join(delta.text for delta in deltas), deltas[-1].result


def upstream(prefiller: Prefiller, name: str = "planner") -> AsyncGenerator[Delta, None]:
    return prefiller.generate(GenerateRequest(input_ids=prompt_of(name)))


def no_tasks_left() -> bool:
    return asyncio.all_tasks() == {asyncio.current_task()}


async def test_chain(engine: GatedEngine, prefiller: Prefiller) -> None:
    """While A speaks B's prompt is prefilled; when A has ended all of it is."""
    told: list[UpstreamEnd] = []
    writer = downstream(prefiller, told=told)
    handoff = Handoff([(writer, 0)])
    said, _ = await text_of(handoff.through(upstream(prefiller)))
    assert said == ANSWER
    assert len(engine.chunks) > 3  # during the stream, not after it
    assert told == [UpstreamEnd(0, "done")]
    assert not writer.partial
    await writer.session.settle()
    real = prompt_of("writer", said)
    assert writer.prompt_ids() == real
    answer, result = await text_of(writer.generate(GenerateRequest(input_ids=real)))
    assert answer == "answer 0"
    assert result.usage.prewarmed_tokens > len(real) - 20
    assert result.usage.cached_tokens == len(real) - 1
    assert no_tasks_left()


async def test_a_pipelined_chain(engine: GatedEngine, prefiller: Prefiller) -> None:
    """B's own stream goes through the next hand-off, and C is warm when B has ended."""
    writer, critic = downstream(prefiller), downstream(prefiller, "critic")
    first, second = Handoff([(writer, 0)]), Handoff([(critic, 0)])
    said, _ = await text_of(first.through(upstream(prefiller)))
    said_b, _ = await text_of(
        second.through(writer.generate(GenerateRequest(input_ids=prompt_of("writer", said))))
    )
    _, result = await text_of(critic.generate(GenerateRequest(input_ids=prompt_of("critic", said_b))))
    assert result.usage.prewarmed_tokens > 0
    assert no_tasks_left()


async def test_fan_out(engine: GatedEngine, prefiller: Prefiller) -> None:
    targets = [downstream(prefiller, name) for name in ("writer", "critic", "editor")]
    said, _ = await text_of(Handoff([(t, 0) for t in targets]).through(upstream(prefiller)))
    for target, name in zip(targets, ("writer", "critic", "editor"), strict=True):
        await target.session.settle()
        real = prompt_of(name, said)
        _, result = await text_of(target.generate(GenerateRequest(input_ids=real)))
        assert result.usage.cached_tokens == len(real) - 1
        assert target.figures.wasted <= 1
    assert no_tasks_left()


async def test_fan_in_keeps_the_prompts_order(engine: GatedEngine, prefiller: Prefiller) -> None:
    """The second branch's text waits until the first one has ended."""
    joiner = downstream(prefiller, "joiner", slots=2)
    one, two = Handoff([(joiner, 0)]), Handoff([(joiner, 1)])
    two.feed("second branch, long before the first one has anything to say")
    two.done()
    head = len(joiner.session.target)
    assert bytes(joiner.session.target).endswith(b"agent0 said:\n")
    one.feed("first branch")
    assert len(joiner.session.target) == head + len("first branch")
    one.done()
    said = ("first branch", "second branch, long before the first one has anything to say")
    assert joiner.prompt_ids() == prompt_of("joiner", *said)
    await joiner.session.settle()
    _, result = await text_of(joiner.generate(GenerateRequest(input_ids=prompt_of("joiner", *said))))
    assert result.usage.cached_tokens == len(prompt_of("joiner", *said)) - 1


async def test_two_engines_with_two_tokenizers() -> None:
    """Text goes over, so that B may be any model; here one with tokens of several characters."""
    rules = CutRules(tiny_tokenizer())
    a, b = ScriptedEngine([ANSWER]), GatedEngine(["done"], open=True)
    on_a, on_b = Prefiller(a), Prefiller(b, chunk_size=4)
    writer = Downstream(on_b.open(lora="writer"), forecast_of("writer"), rules, batch=8)
    said, _ = await text_of(Handoff([(writer, 0)]).through(upstream(on_a)))
    real = rules.encode(CHAT.render(messages("writer", said)))
    assert writer.prompt_ids() == real
    await writer.session.settle()
    _, result = await text_of(writer.generate(GenerateRequest(input_ids=real)))
    assert result.usage.prewarmed_tokens == len(real) - 1
    assert {request.lora for request in b.requests} == {"writer"}
    assert all(not is_chunk(request) for request in a.requests)


@pytest.mark.parametrize("seed", [ANSWER, ANSWER * 2])
async def test_a_wrong_forecast_costs_work_and_nothing_else(
    engine: GatedEngine, prefiller: Prefiller, seed: str
) -> None:
    writer = downstream(prefiller)
    said, _ = await text_of(Handoff([(writer, 0)]).through(upstream(prefiller)))
    real = prompt_of("critic", said, seed)  # somebody else speaks, with more in the context
    answer, result = await text_of(writer.generate(GenerateRequest(input_ids=real)))
    assert answer == "answer 0"
    assert result.usage.prewarmed_tokens < 40  # the template's first words
    assert writer.figures.wasted == writer.figures.computed - writer.figures.prewarmed > len(said)


async def test_a_better_forecast_on_the_way(engine: GatedEngine, prefiller: Prefiller) -> None:
    target = downstream(prefiller, "writer")
    handoff = Handoff([(target, 0)])
    handoff.feed("some words, ")
    target.reforecast(forecast_of("critic"))
    handoff.feed("and more")
    handoff.done()
    target.reforecast(forecast_of("critic"))
    assert target.prompt_ids() == prompt_of("critic", "some words, and more")
    await target.close()
    target.reforecast(forecast_of("writer"))  # too late, ignored
    assert no_tasks_left()


async def test_a_target_that_comes_late_hears_everything(prefiller: Prefiller) -> None:
    handoff = Handoff()
    handoff.feed("some words")
    late = downstream(prefiller)
    handoff.add(late)
    handoff.feed(" and more")
    handoff.done()
    latest = downstream(prefiller)
    handoff.add(latest)
    assert late.prompt_ids() == latest.prompt_ids() == prompt_of("writer", "some words and more")
    await prefiller.close()


async def test_a_target_that_is_no_longer_expected(prefiller: Prefiller) -> None:
    kept, dropped = downstream(prefiller), downstream(prefiller)
    handoff = Handoff([(kept, 0), (dropped, 0)])
    handoff.feed("some ")
    handoff.drop(dropped)
    await dropped.close()
    handoff.feed("words")
    handoff.done()
    assert kept.prompt_ids() == prompt_of("writer", "some words")
    await kept.close()


# Failures.


class Broken(Exception):
    """What an upstream agent fails with."""


@pytest.mark.parametrize("policy", ["finish", "abort"])
@pytest.mark.parametrize("how", ["error", "engine", "cancel", "leave", "abort"])
async def test_upstream_ends_badly(policy: Policy, how: str) -> None:
    """The downstream agent is told, and its KV goes back or is used, as the policy says."""
    error = {"error": Broken(), "engine": EngineDiedError("gone")}.get(how)
    reply = Reply(text=ANSWER[:40], error=error, interval=0.0 if error else 0.01)
    a = ScriptedEngine([reply])
    b = GatedEngine(["after all"])
    told: list[UpstreamEnd] = []
    target = downstream(Prefiller(b, chunk_size=4), policy=policy, told=told)
    handoff = Handoff([(target, 0)])
    request = GenerateRequest(input_ids=prompt_of("planner"))
    said = ""

    async def read() -> None:
        nonlocal said
        stream = handoff.through(a.generate(request))
        try:
            async for delta in stream:
                said += delta.text
                if len(said) == 10 and how == "leave":
                    break
                if len(said) == 10 and how == "abort":
                    await a.abort(request.rid)
        finally:
            await stream.aclose()

    reading = asyncio.create_task(read())
    if how == "cancel":
        while len(said) < 10:
            await asyncio.sleep(0.001)
        reading.cancel()
    await asyncio.wait([reading])
    if error is not None:
        assert reading.exception() is error
    [end] = told
    assert (end.how, end.error) == ("failed" if error else "cancelled", error)
    assert target.partial
    assert (await a.state()).running == 0

    if policy == "abort":
        assert target.session.state == "closed"
        with pytest.raises(UpstreamFailedError, match="slot 0"):
            target.prompt_ids()
    else:
        assert target.prompt_ids() == prompt_of("writer", said)
    b.open = True
    await b.release()
    # Whoever goes on all the same gets an ordinary answer.
    answer, result = await text_of(target.generate(GenerateRequest(input_ids=prompt_of("writer", said))))
    assert answer == "after all"
    assert (result.usage.prewarmed_tokens > 0) is (policy == "finish")
    await target.close()
    assert (await b.state()).running == 0
    assert no_tasks_left()


@pytest.mark.parametrize("policy", ["finish", "abort"])
async def test_one_of_two_branches_fails(prefiller: Prefiller, policy: Policy) -> None:
    joiner = downstream(prefiller, "joiner", slots=2, policy=policy)
    one, two = Handoff([(joiner, 0)]), Handoff([(joiner, 1)])
    one.feed("half a")
    one.fail(Broken())
    two.feed("whole")
    two.done()
    assert joiner.ends[0].how == "failed" and joiner.ends[1].how == "done"
    if policy == "finish":
        assert joiner.prompt_ids() == prompt_of("joiner", "half a", "whole")
    else:
        with pytest.raises(UpstreamFailedError):
            joiner.prompt_ids()
    await joiner.close()
    assert no_tasks_left()


async def test_downstream_trouble_does_not_reach_upstream(
    engine: GatedEngine, prefiller: Prefiller, caplog: pytest.LogCaptureFixture
) -> None:
    dead = GatedEngine(open=True)
    dead.die()
    on_dead = downstream(Prefiller(dead, chunk_size=4))
    buggy, fine = downstream(prefiller), downstream(prefiller)
    buggy.feed = None  # type: ignore[method-assign, assignment]
    closed = downstream(prefiller)
    await closed.close()
    handoff = Handoff([(t, 0) for t in (on_dead, buggy, closed, fine)])
    said, _ = await text_of(handoff.through(upstream(prefiller)))
    assert said == ANSWER
    assert "could not be told" in caplog.text
    assert buggy.session.state == "closed" and on_dead.session.state == "stalled"
    assert fine.prompt_ids() == prompt_of("writer", said)
    with pytest.raises(EngineDiedError):
        await text_of(on_dead.generate(GenerateRequest(input_ids=[1])))
    with pytest.raises(SessionClosedError):
        await text_of(closed.generate(GenerateRequest(input_ids=[1])))
    await prefiller.close()
    assert no_tasks_left()


async def test_an_unfinished_prompt_is_not_given_out(prefiller: Prefiller) -> None:
    target = downstream(prefiller)
    Handoff([(target, 0)]).feed("half")
    with pytest.raises(ValueError, match="not complete"):
        target.prompt_ids()
    await target.close()


async def test_no_forecast_no_harm(engine: GatedEngine, prefiller: Prefiller) -> None:
    target = Downstream(prefiller.open(), PromptForecast(reason="roles must alternate"), RULES)
    said, _ = await text_of(Handoff([(target, 0)]).through(upstream(prefiller)))
    await text_of(target.generate(GenerateRequest(input_ids=prompt_of("writer", said))))
    assert engine.chunks == []


async def test_heads_are_warmed_before_anyone_speaks(engine: GatedEngine, prefiller: Prefiller) -> None:
    targets = [downstream(prefiller, name) for name in ("writer", "critic")]
    await warm_up(*(target.session for target in targets))
    assert all(t.session.warm == len(t.session.target) > 0 for t in targets)
    await breathe()
    heads = len(engine.chunks)
    await prefiller.close()
    assert heads == 2


async def test_a_prompt_that_was_forecast_need_not_be_tokenised_again(prefiller: Prefiller) -> None:
    writer, editor = downstream(prefiller), downstream(prefiller, "editor", slots=2)
    text = CHAT.render(messages("writer", ANSWER))
    writer.feed(ANSWER)
    assert writer.tokens_of(text) is None  # the agent still speaks
    writer.end(UpstreamEnd(0, "done"))
    assert writer.tokens_of(text) == prompt_of("writer", ANSWER)
    assert writer.tokens_of(CHAT.render(messages("critic", ANSWER))) is None
    assert writer.tokens_of(text + " ") is None
    writer.prompt_ids().append(0)
    assert writer.tokens_of(text) == prompt_of("writer", ANSWER)
    editor.feed("two", 1)
    editor.feed("one", 0)
    for slot in (1, 0):
        editor.end(UpstreamEnd(slot, "done"))
    assert editor.tokens_of(CHAT.render(messages("editor", "one", "two"))) == prompt_of(
        "editor", "one", "two"
    )
    await prefiller.close()
    assert writer.tokens_of(text) is not None  # also after the session has closed
