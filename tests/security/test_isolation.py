"""A prefix cached for one tenant is never read for another: told by token counts, never by time."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable

import pytest

from flashagents_autogen import FlashAgentsChatCompletionClient
from flashagents_runtime import Engine, GenerateRequest, RequestRejectedError, ScriptedEngine, wire
from flashagents_runtime.handoff import Prefiller
from flashagents_runtime.host.outputs import request_fields
from flashagents_runtime.remote import RemoteEngine
from helpers.clients import collect, system, user
from helpers.sglang_server import FakeSGLang

CONVERSATION = [system("You answer briefly, and never tell what others asked. " * 4), user("Hi.")]
NAMESPACES = [None, "tenant-a", "tenant-b", "tenant-a ", "TENANT-A", "tenant", "a|tenant-b"]


@pytest.fixture(params=["scripted", "remote"])
async def engine(request: pytest.FixtureRequest) -> AsyncIterator[Engine]:
    scripted = ScriptedEngine(itertools.repeat("ok"))
    if request.param == "scripted":
        yield scripted
        return
    server = await FakeSGLang(scripted).serve()
    remote = RemoteEngine(str(server.make_url("")))
    yield remote
    await remote.close()
    await server.close()


def client_of(engine: Engine, salt: str | None) -> FlashAgentsChatCompletionClient:
    from flashagents_runtime.chat_tokenizer import ByteChatTokenizer

    return FlashAgentsChatCompletionClient(engine=engine, cache_salt=salt, tokenizer=ByteChatTokenizer())


async def cached(client: FlashAgentsChatCompletionClient) -> int:
    result = await client.create(CONVERSATION)
    return result.usage.cached_tokens  # type: ignore[attr-defined,no-any-return]


async def test_clients_of_different_salts_share_no_token_and_those_of_one_salt_all(engine: Engine) -> None:
    for salt in NAMESPACES:
        assert await cached(client_of(engine, salt)) == 0, f"{salt!r} has read what another has cached"
    for salt in NAMESPACES:  # each still finds its own
        client = client_of(engine, salt)
        length = client.count_tokens(CONVERSATION)
        assert await cached(client) == length - 1


async def test_streams_are_kept_apart_as_well(engine: Engine) -> None:
    await collect(client_of(engine, "a"), CONVERSATION)
    _, result = await collect(client_of(engine, "b"), CONVERSATION)
    assert result.usage.cached_tokens == 0  # type: ignore[attr-defined]


@pytest.mark.parametrize("field", ["cache_salt", "extra_key", "lora"])
async def test_what_a_session_has_warmed_is_its_namespaces_alone(field: str) -> None:
    engine = ScriptedEngine(itertools.repeat("ok"))
    prefiller = Prefiller(engine, chunk_size=4)
    ids = list(range(40))
    warm = prefiller.open(**{field: "a"})  # type: ignore[arg-type]
    other = prefiller.open(**{field: "b"})  # type: ignore[arg-type]
    warm.extend(ids)
    await warm.settle()
    assert warm.warm == len(ids)
    other.rebase(ids)
    assert other.warm == 0, "a session was told of what another namespace has computed"
    await other.settle()
    assert other.figures.computed == len(ids), "it has found what another namespace has computed"
    await prefiller.close()
    for value, found in (("a", len(ids) - 1), ("b", len(ids) - 1), ("c", 0)):
        request = GenerateRequest(input_ids=ids, **{field: value})  # type: ignore[arg-type]
        deltas = [delta async for delta in engine.generate(request)]
        assert deltas[-1].result is not None
        assert deltas[-1].result.usage.cached_tokens == found
    chunks = [r for r in engine.requests if r.sampling.max_new_tokens == 0]
    assert {getattr(chunk, field) for chunk in chunks} == {"a", "b"}  # none went out without its namespace
    assert sum(getattr(chunk, field) == "b" for chunk in chunks) >= 1


async def test_a_session_takes_no_request_of_another_salt_and_does_not_tell_its_own() -> None:
    prefiller = Prefiller(ScriptedEngine(["ok"]))
    session = prefiller.open(cache_salt="salt-of-a")
    with pytest.raises(ValueError, match="cache_salt") as refused:
        await anext(session.generate(GenerateRequest(input_ids=[1], cache_salt="salt-of-b")))
    assert "salt-of" not in str(refused.value)
    await session.close()


def test_salt_and_key_reach_sglang_under_its_own_names() -> None:
    request = GenerateRequest(input_ids=[1, 2], cache_salt="s", extra_key="k", lora="l")
    fields = request_fields(request)
    assert (fields["cache_salt"], fields["extra_key"], fields["lora_path"]) == ("s", "k", "l")
    [back] = wire.FrameReader(wire.ToHost).feed(wire.encode(wire.Generate(request)))
    assert back.request == request


@pytest.mark.parametrize("make", [ScriptedEngine, None])
def test_an_empty_salt_is_refused(make: Callable[[], Engine] | None) -> None:
    """SGLang takes "" for none: a tenant whose salt was lost on the way would share with all."""
    with pytest.raises(ValueError, match="cache_salt is empty"):
        FlashAgentsChatCompletionClient(engine=make() if make else None, cache_salt="")


@pytest.mark.parametrize("field", ["cache_salt", "extra_key"])
async def test_an_engine_refuses_an_empty_salt_or_key(field: str) -> None:
    server = await FakeSGLang(ScriptedEngine(["ok"])).serve()
    engine = RemoteEngine(str(server.make_url("")))
    try:
        with pytest.raises(RequestRejectedError, match="empty cache_salt or extra_key"):
            await anext(engine.generate(GenerateRequest(input_ids=[1], **{field: ""})))  # type: ignore[arg-type]
    finally:
        await engine.close()
        await server.close()
