"""On a real engine: tenants share no cached token, and nobody outside of this machine can reach it."""

from __future__ import annotations

import ipaddress

import psutil

from flashagents_autogen import FlashAgentsChatCompletionClient
from flashagents_runtime.embedded import EmbeddedEngine
from helpers.clients import collect, system, user

CONVERSATION = [system("You know many facts, and tell them in few words. " * 6), user("One of them, please.")]


def client(engine: EmbeddedEngine, salt: str | None) -> FlashAgentsChatCompletionClient:
    return FlashAgentsChatCompletionClient(engine=engine, cache_salt=salt, max_tokens=4, temperature=0)


async def test_tenants_share_no_cached_token_and_get_the_same_answers(real_engine: EmbeddedEngine) -> None:
    answers = []
    for salt in (None, "a", "b"):
        result = await client(real_engine, salt).create(CONVERSATION)
        assert result.usage.cached_tokens == 0, f"{salt!r} has read what another tenant cached"  # type: ignore[attr-defined]
        answers.append(result.content)
    for salt in (None, "a", "b"):
        chunks, result = await collect(client(real_engine, salt), CONVERSATION)
        assert result.usage.cached_tokens == result.usage.prompt_tokens - 1  # type: ignore[attr-defined]
        answers.append("".join(chunks))
    assert len(set(answers)) == 1


async def test_an_embedded_engine_listens_to_this_machine_alone(real_engine: EmbeddedEngine) -> None:
    assert real_engine._host is not None and real_engine._host._process is not None
    host = psutil.Process(real_engine._host._process.pid)
    for process in (host, *host.children(recursive=True)):
        for connection in process.net_connections(kind="inet"):
            if connection.status == psutil.CONN_LISTEN:
                address = ipaddress.ip_address(connection.laddr.ip)
                assert address.is_loopback, f"{process.name()} listens at {address}:{connection.laddr.port}"
