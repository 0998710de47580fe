"""`flashagents serve` on the real default model, and the client on it.

Costs one start of an engine (about 40 s on two cores).
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
import trustme
from autogen_core import CancellationToken
from pydantic import BaseModel

from flashagents_autogen import FlashAgentsChatCompletionClient
from flashagents_runtime import EngineError, EngineStartError
from flashagents_runtime.remote import RemoteEngine
from helpers.clients import collect, system, user

KEY = "test-key"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The server's address, and its certificate's authority."""
    folder = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    certificate.private_key_and_cert_chain_pem.write_to_path(str(folder / "server.pem"))
    tls = ["--ssl-certfile", str(folder / "server.pem"), "--ssl-keyfile", str(folder / "server.pem")]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "flashagents_runtime", "serve", "--port", str(port), "--api-key", KEY]
    command += [*tls, "--ssl-ca-certs", str(folder / "ca.pem")]
    with subprocess.Popen(command, start_new_session=True) as process:
        address = f"https://127.0.0.1:{port}"
        try:
            asyncio.run(_until_up(address, process, folder / "ca.pem"))
            yield address, folder / "ca.pem"
        finally:
            os.killpg(process.pid, 15)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)


async def _until_up(address: str, process: subprocess.Popen[bytes], ca_file: Path) -> None:
    deadline = time.monotonic() + 400
    while True:
        engine = RemoteEngine(address, api_key=KEY, tls_ca_file=ca_file)
        try:
            await engine.start()
            return
        except EngineError:
            assert process.poll() is None, "the server ended"
            assert time.monotonic() < deadline, "the server does not come up"
            await asyncio.sleep(1)
        finally:
            await engine.close()


class Answer(BaseModel):
    mood: Literal["good", "bad"]
    stars: Literal[1, 2, 3]


async def test_the_client_on_a_real_server(served: tuple[str, Path]) -> None:
    """One test, because each would have to connect anew."""
    url, ca_file = served
    client = FlashAgentsChatCompletionClient(
        engine_url=url, api_key=KEY, tls_ca_file=ca_file, temperature=0, max_tokens=16
    )
    info = await client.start()
    assert info.kind == "remote" and "intra_turn" in info.features

    messages = [system("You know many facts. " * 10), user("Tell me one.")]
    first = await client.create(messages)
    chunks, again = await collect(client, messages)
    assert "".join(chunks) == again.content == first.content and len(chunks) > 5
    assert again.usage.cached_tokens == first.usage.prompt_tokens - 1  # type: ignore[attr-defined]
    assert client.count_tokens(messages) == first.usage.prompt_tokens

    structured = await client.create(messages, json_output=Answer, extra_create_args={"max_tokens": 60})
    Answer.model_validate_json(str(structured.content))
    tool = {"name": "look", "parameters": {"type": "object", "properties": {"far": {"enum": [1, 2]}}}}
    called = await client.create(
        messages, tools=[tool], tool_choice="required",  # type: ignore[list-item]
        extra_create_args={"max_tokens": 60, "parallel_tool_calls": False},
    )  # fmt: skip
    assert called.finish_reason == "function_calls"

    token = CancellationToken()
    endless = {"ignore_eos": True, "max_tokens": 2000}
    stream = client.create_stream([user("Go on.")], extra_create_args=endless, cancellation_token=token)
    await anext(stream)
    token.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(anext(stream), 10)
    async with asyncio.timeout(30):
        while (await client.engine.state()).running:
            await asyncio.sleep(0.1)
    assert await client.engine.flush_cache()
    await client.close()

    wrong = RemoteEngine(url, api_key="wrong", tls_ca_file=ca_file)
    with pytest.raises(EngineError, match="API key"):
        await wrong.start()
    await wrong.close()
    unknown = RemoteEngine(url, api_key=KEY)
    with pytest.raises(EngineStartError, match="is not trusted"):
        await unknown.start()
    await unknown.close()
