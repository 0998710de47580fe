"""The same scripted engine behind both kinds of engine that a client may have.

*embedded*: an `EmbeddedEngine` with its I/O thread, socket, frames and host process; only that the host's
end of the socket is served here, from the script, while the process sleeps. *remote*: a `RemoteEngine` on
a server that speaks SGLang's HTTP, where the script's thoughts and calls come as the model's text.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
from collections.abc import AsyncIterator
from typing import Any, Literal

import msgspec
import pytest

from flashagents_autogen import FlashAgentsChatCompletionClient
from flashagents_runtime import Engine, EngineDiedError, RequestRejectedError, ScriptedEngine, wire
from flashagents_runtime.chat import ChatTokenizer
from flashagents_runtime.chat_tokenizer import ByteChatTokenizer
from flashagents_runtime.embedded import EmbeddedEngine, host_process
from flashagents_runtime.remote import RemoteEngine
from flashagents_runtime.scripted import ScriptItem

from .sglang_server import FakeSGLang

Kind = Literal["embedded", "remote"]


class ScriptedHost:
    """The host's end of the socket, in the application's I/O loop."""

    def __init__(self, engine: ScriptedEngine, sock: socket.socket, process: subprocess.Popen[bytes]) -> None:
        self._engine, self._sock, self._process = engine, sock, process
        self._tasks: set[asyncio.Task[None]] = set()
        self._writer: asyncio.StreamWriter | None = None
        self._spawn(self._serve())

    def _spawn(self, coroutine: Any) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _send(self, message: wire.FromHost) -> None:
        assert self._writer is not None
        self._writer.write(wire.encode(message))

    async def _serve(self) -> None:
        reader, self._writer = await asyncio.open_connection(sock=self._sock)
        frames = wire.FrameReader(wire.ToHost)
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                for message in frames.feed(data):
                    await self._on_message(message)
        for task in self._tasks - {asyncio.current_task()}:
            task.cancel()
        self._process.kill()
        self._writer.close()

    async def _on_message(self, message: wire.ToHost) -> None:
        if isinstance(message, wire.Setup):
            info = await self._engine.start()
            self._send(wire.Ready(msgspec.structs.replace(info, kind="embedded")))
        elif isinstance(message, wire.Generate):
            self._spawn(self._generate(message))
        elif isinstance(message, wire.Abort):
            await self._engine.abort(message.rid)
        elif message.method == "state":
            self._send(wire.Answer(message.id, msgspec.to_builtins(await self._engine.state())))
        else:
            self._send(wire.Answer(message.id, await self._engine.flush_cache()))

    async def _generate(self, message: wire.Generate) -> None:
        rid = message.request.rid
        try:
            async for delta in self._engine.generate(message.request):
                self._send(wire.Deltas([(rid, delta)]))
        except RequestRejectedError as e:
            self._send(wire.Failed(rid, str(e), True))
        except EngineDiedError:
            self._process.kill()


class Rig:
    """A client on an engine of one kind, with the script behind it.

    Attributes:
        scripted: what answers; its `requests` are what an embedded engine was asked.
        fake: the server, for the remote kind.
    """

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self._hosts: list[ScriptedHost] = []  # held: a loop does not hold its tasks
        self._monkeypatch = pytest.MonkeyPatch()
        self._cleanup = contextlib.AsyncExitStack()
        self.scripted = ScriptedEngine()
        self.fake = FakeSGLang(self.scripted)
        self.fake.parsers = {"tool_call_parser": "hermes", "reasoning_parser": "qwen3"}

    async def client(
        self, *script: ScriptItem, tokenizer: ChatTokenizer | None = None, **args: Any
    ) -> FlashAgentsChatCompletionClient:
        """A client whose engine says `script`; `args` are those of the client."""
        self.scripted = self.fake.engine = ScriptedEngine(script)
        engine = await (self._embedded() if self.kind == "embedded" else self._remote())
        client = FlashAgentsChatCompletionClient(
            engine=engine, tokenizer=tokenizer or ByteChatTokenizer(), **args
        )
        self._cleanup.push_async_callback(client.close)
        return client

    def serve_embedded(self) -> None:
        """From now on, hosts of embedded engines are served from the script."""
        scripted = self.scripted
        original = host_process.HostProcess._spawn

        def spawn(self_: Any, theirs: socket.socket) -> subprocess.Popen[bytes]:
            ours = theirs.dup()
            process = original(self_, theirs)
            self._hosts.append(ScriptedHost(scripted, ours, process))
            return process

        self._monkeypatch.setattr(host_process.HostProcess, "_spawn", spawn)
        self._monkeypatch.setattr(host_process, "host_command", lambda fd: ["sleep", "600"])
        self._monkeypatch.setattr(EmbeddedEngine, "_resolve_model", lambda engine: "scripted")

    async def _embedded(self) -> Engine:
        self._monkeypatch.undo()
        self.serve_embedded()
        engine = EmbeddedEngine("scripted")
        self._cleanup.push_async_callback(engine.close)
        await engine.start()
        return engine

    async def serve_remote(self) -> str:
        """Start a server; its address."""
        server = await self.fake.serve()
        self._cleanup.push_async_callback(server.close)
        return str(server.make_url("")).rstrip("/")

    async def _remote(self) -> Engine:
        engine = RemoteEngine(await self.serve_remote(), read_timeout=20)
        self._cleanup.push_async_callback(engine.close)
        await engine.start()
        return engine

    async def close(self) -> None:
        """End all engines and servers."""
        await self._cleanup.aclose()
        self._monkeypatch.undo()


@pytest.fixture(params=["embedded", "remote"])
async def rig(request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    """Both kinds of engine, one after the other."""
    built = Rig(request.param)
    yield built
    await built.close()
