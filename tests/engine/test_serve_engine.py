"""`flashagents serve` on the real default model, and the client on it.

Costs two starts of an engine (about 40 s each on two cores): a server that is killed is started again.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import psutil
import pytest
import trustme
from autogen_agentchat.agents import AssistantAgent
from autogen_core import CancellationToken
from pydantic import BaseModel

from flashagents_autogen import (
    FlashAgentsChatCompletionClient,
    FlashGroupChatRuntime,
    FlashRoundRobinGroupChat,
    GroupChatPolicy,
)
from flashagents_runtime import (
    EngineDiedError,
    EngineError,
    EngineStartError,
    GenerateRequest,
    SamplingParams,
)
from flashagents_runtime.handoff import Prefiller
from flashagents_runtime.remote import RemoteEngine
from helpers.cancel_points import descriptors, quiet
from helpers.clients import collect, system, user
from helpers.idle import settle

KEY = "test-key"


class Served:
    """A server at one address, which may be killed and started again."""

    def __init__(self, folder: Path) -> None:
        authority = trustme.CA()
        certificate = authority.issue_cert("127.0.0.1")
        self.ca_file = folder / "ca.pem"
        authority.cert_pem.write_to_path(str(self.ca_file))
        pair = folder / "server.pem"
        certificate.private_key_and_cert_chain_pem.write_to_path(str(pair))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"https://127.0.0.1:{port}"
        self._command = [sys.executable, "-m", "flashagents_runtime", "serve", "--port", str(port)]
        self._command += ["--api-key", KEY, "--ssl-certfile", str(pair), "--ssl-keyfile", str(pair)]
        self._command += ["--ssl-ca-certs", str(self.ca_file)]
        self._process: subprocess.Popen[bytes] | None = None

    async def up(self) -> None:
        """Start it where it does not run, and wait until it answers."""
        if self._process is not None and self._process.poll() is None:
            return
        self._process = await asyncio.to_thread(subprocess.Popen, self._command, start_new_session=True)
        async with asyncio.timeout(400):
            while True:
                engine = self.engine()
                try:
                    await engine.start()
                    return
                except EngineError:
                    assert self._process.poll() is None, "the server ended"
                    await asyncio.sleep(1)
                finally:
                    await engine.close()

    def engine(self) -> RemoteEngine:
        return RemoteEngine(self.url, api_key=KEY, tls_ca_file=self.ca_file)

    def processes(self) -> dict[str, psutil.Process]:
        """The server itself, and SGLang's under it."""
        assert self._process is not None
        server = psutil.Process(self._process.pid)
        named = {"server": server}
        for child in server.children(recursive=True):
            for part in ("scheduler", "detokenizer"):
                if part in " ".join(child.cmdline()):
                    named[part] = child
        return named

    async def ended(self, processes: list[psutil.Process]) -> None:
        """Wait until these, the server among them, are no more."""
        assert self._process is not None
        await asyncio.to_thread(self._process.wait, 120)
        _, alive = await asyncio.to_thread(psutil.wait_procs, processes, 120)
        assert not alive

    def stop(self) -> None:
        if self._process is None or self._process.poll() is not None:
            return
        os.killpg(self._process.pid, signal.SIGTERM)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The one server of this module; use `served`, which starts it where it is not up."""
    server = Served(tmp_path_factory.mktemp("tls"))
    yield server
    server.stop()


@pytest.fixture
async def served(server: Served) -> Served:
    await server.up()
    return server


class Answer(BaseModel):
    mood: Literal["good", "bad"]
    stars: Literal[1, 2, 3]


async def test_the_client_on_a_real_server(served: Served) -> None:
    """One test, because each would have to connect anew."""
    url, ca_file = served.url, served.ca_file
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
    await settle(client.engine)
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


async def test_a_server_that_is_killed_under_everything_and_comes_back(served: Served) -> None:
    """First its scheduler, which the server ends with, then all of it: whatever runs is told at once, and
    the engine, its clients and its sessions go on with the server that is started in its place."""
    engine = served.engine()
    client = FlashAgentsChatCompletionClient(engine=engine, temperature=0, max_tokens=2000, ignore_eos=True)
    try:
        await killed_under_everything(served, engine, client)
    finally:  # or what is left open is found in a later test
        await client.close()
        await engine.close()


async def killed_under_everything(
    served: Served, engine: RemoteEngine, client: FlashAgentsChatCompletionClient
) -> None:
    short = {"max_tokens": 4}
    question = [user("Which river flows through Paris?")]
    said = (await client.create(question, extra_create_args=short)).content
    tasks, files = asyncio.all_tasks(), descriptors()
    for victims in (["scheduler"], ["server", "scheduler", "detokenizer"]):
        processes = served.processes()
        assert set(processes) == {"server", "scheduler", "detokenizer"}
        prefiller = Prefiller(engine, chunk_size=64)
        session = prefiller.open()
        heard = asyncio.Event()

        async def read(heard: asyncio.Event = heard) -> None:
            async for _ in client.create_stream(question):
                heard.set()

        async with FlashGroupChatRuntime(GroupChatPolicy(chunk_size=12, share=1.0)) as runtime:
            agents: list[Any] = [
                AssistantAgent(name, client, system_message=f"You are {name}.", model_client_stream=True)
                for name in ("planner", "critic")
            ]
            team = FlashRoundRobinGroupChat(agents, max_turns=2)
            runtime.attach(team)
            spoken = asyncio.Event()

            async def play(team: Any = team, spoken: asyncio.Event = spoken) -> None:
                async for item in team.run_stream(task="Plan a week in Rome."):
                    if getattr(item, "source", "") == "planner":
                        spoken.set()

            calls = (read(), play(), client.create(question), long_prompt(engine))
            work = [asyncio.ensure_future(call) for call in calls]
            async with asyncio.timeout(120):
                await asyncio.gather(heard.wait(), spoken.wait())
            session.extend(list(range(2000, 3000)))
            session.flush()
            for victim in victims:
                processes[victim].send_signal(signal.SIGKILL)
            async with asyncio.timeout(120):  # a hang would be for ever: `read_timeout` is 600 s
                errors = await asyncio.gather(*work, return_exceptions=True)
                await session.settle()
            for error in errors:
                assert isinstance(error, (EngineDiedError, RuntimeError)), errors  # AutoGen's, of a team
                assert "EngineDiedError" in f"{type(error)} {error}" and served.url in str(error), errors
            await prefiller.close()
            assert session.state == "closed" and not prefiller._sessions and not prefiller.budget.decoding
            assert len(runtime.expectations) == 0
        await served.ended(list(processes.values()))
        with pytest.raises(EngineDiedError, match="cannot be reached"):
            await client.create(question)
        await quiet(tasks)
        assert descriptors() <= files
        assert not engine._leaving and not engine._aborting
        if victims == ["scheduler"]:
            await served.up()
            assert (await client.create(question, extra_create_args=short)).content == said
            await settle(engine)


async def long_prompt(engine: RemoteEngine) -> None:
    """A request that is still in its prompt, or waits, when the others speak."""
    request = GenerateRequest(input_ids=list(range(10, 1500)), sampling=SamplingParams(ignore_eos=True))
    async for _ in engine.generate(request):
        pass
