"""The engine that is shipped for users' own tests."""

from __future__ import annotations

import asyncio

import pytest

from flashagents_runtime import (
    ContextLengthError,
    Engine,
    EngineClosedError,
    EngineDiedError,
    GenerateRequest,
    Reply,
    RequestRejectedError,
    SamplingParams,
    ScriptedEngine,
)
from flashagents_runtime.types import Delta


def request(ids: list[int] | None = None, n: int | None = None) -> GenerateRequest:
    return GenerateRequest(input_ids=ids or [1, 2, 3], sampling=SamplingParams(max_new_tokens=n))


async def run(engine: ScriptedEngine, wanted: GenerateRequest | None = None) -> list[Delta]:
    return [delta async for delta in engine.generate(wanted or request())]


async def test_says_its_script_in_order() -> None:
    engine = ScriptedEngine(["ab", Reply(text=["one ", "two"]), lambda r: f"{len(r.input_ids)}"])
    assert isinstance(engine, Engine)
    assert ["".join(d.text for d in await run(engine)) for _ in range(3)] == ["ab", "one two", "3"]
    with pytest.raises(RequestRejectedError, match="has ended"):
        await run(engine)
    assert len(engine.requests) == 4
    assert engine.aborted == []


@pytest.mark.parametrize(
    ("n", "text", "reason"),
    [(None, "abcd", "stop"), (4, "abcd", "stop"), (3, "abc", "length"), (1, "a", "length")],
)
async def test_max_new_tokens_cuts_the_answer(n: int | None, text: str, reason: str) -> None:
    deltas = await run(ScriptedEngine(["abcd"]), request(n=n))
    result = deltas[-1].result
    assert result is not None
    assert ("".join(d.text for d in deltas), result.finish_reason) == (text, reason)
    assert result.usage.completion_tokens == len(text)


async def test_a_prefill_only_request_takes_no_reply_and_fills_the_cache() -> None:
    engine = ScriptedEngine(["x"])
    [delta] = await run(engine, request([1, 2, 3, 4], n=0))
    assert delta.result is not None and delta.result.finish_reason == "length"
    last = (await run(engine, request([1, 2, 3, 4, 5])))[-1].result
    assert last is not None and last.usage.cached_tokens == 4


async def test_cached_tokens_follow_the_longest_common_prefix() -> None:
    engine = ScriptedEngine(["a"] * 4)
    cached = []
    for ids in ([1, 2, 3], [1, 2, 9], [1, 2, 3], [1, 2, 3, ord("a"), 7]):
        result = (await run(engine, request(ids)))[-1].result
        assert result is not None
        cached.append(result.usage.cached_tokens)
    assert cached == [0, 2, 2, 4]
    assert await engine.flush_cache()


async def test_a_scripted_error_comes_after_its_text() -> None:
    engine = ScriptedEngine([Reply(text="ab", error=RuntimeError("boom"))])
    got = []
    with pytest.raises(RuntimeError, match="boom"):
        async for delta in engine.generate(request()):
            got.append(delta.text)
    assert got == ["a"]


async def test_abort_and_leaving_early_are_recorded() -> None:
    engine = ScriptedEngine([Reply(text="abc", interval=5.0)] * 2)
    first, second = request(), request()
    task = asyncio.create_task(run(engine, first))
    await asyncio.sleep(0.01)
    assert (await engine.state()).running == 1
    await engine.abort(first.rid)
    assert (await task)[-1].result.finish_reason == "abort"  # type: ignore[union-attr]
    stream = engine.generate(second)
    await anext(stream)
    await stream.aclose()
    assert engine.aborted == [first.rid, second.rid]
    assert (await engine.state()).running == 0


async def test_death_and_close_wake_waiting_calls() -> None:
    for end, error in (("die", EngineDiedError), ("close", EngineClosedError)):
        engine = ScriptedEngine([Reply(text="abc", delay=60.0)])
        task = asyncio.create_task(run(engine))
        await asyncio.sleep(0.01)
        if end == "die":
            engine.die()
        else:
            await engine.close()
        with pytest.raises(error):
            await task
        with pytest.raises(error):
            await engine.start()


async def test_what_does_not_fit_is_refused() -> None:
    engine = ScriptedEngine(["a"], context_length=4)
    with pytest.raises(ContextLengthError):
        await run(engine, request([1, 2, 3, 4]))
    with pytest.raises(RequestRejectedError, match="empty"):
        await run(engine, GenerateRequest(input_ids=[]))
