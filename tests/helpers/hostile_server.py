"""An HTTP server that answers with whatever bytes a test gives it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

Bytes = Iterable[bytes]

MODEL = {"model_path": "m"}
SERVER = {"context_length": 1000, "max_total_num_tokens": 1000, "incremental_streaming_output": True}


def answer(body: bytes | str | Any, status: str = "200 OK", headers: str = "") -> list[bytes]:
    """A whole HTTP answer; anything but text and bytes is written as JSON."""
    if not isinstance(body, (bytes, str)):
        body = json.dumps(body)
    data = body.encode(errors="surrogatepass") if isinstance(body, str) else body
    head = f"HTTP/1.1 {status}\r\n{headers}Content-Length: {len(data)}\r\nConnection: close\r\n\r\n"
    return [head.encode(), data]


def stream(*events: Any, end: bytes = b"data: [DONE]\n\n", head: str = "") -> list[bytes]:
    """A streamed answer: events as JSON, bytes as they are; the connection closes at the end."""
    parts = [e if isinstance(e, bytes) else b"data: " + json.dumps(e).encode() + b"\n\n" for e in events]
    start = f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n{head}Connection: close\r\n\r\n"
    return [start.encode(), *parts, end]


class HostileServer:
    """Answers by path; what is not given is answered as SGLang would.

    Attributes:
        answers: path -> the bytes to send, or a function that makes them (an endless one, for example).
        sent: bytes that clients have taken.
        pause: seconds between any two pieces of an answer.
    """

    def __init__(self, answers: dict[str, Bytes | Callable[[], Bytes]]) -> None:
        self.answers: dict[str, Any] = {
            "/model_info": answer(MODEL),
            "/server_info": answer(SERVER),
            "/abort_request": answer(b""),
            **answers,
        }
        self.sent = 0
        self.pause = 0.0
        self._answering: set[asyncio.Task[None]] = set()
        self._over = False

    @contextlib.asynccontextmanager
    async def serve(self) -> AsyncIterator[str]:
        """The server's URL, while it runs."""
        server = await asyncio.start_server(self._handle, "127.0.0.1", 0)
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            self._over = True
            server.close()
            await server.wait_closed()
            if self.pause and self._answering:
                await asyncio.wait(self._answering)

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            path = head.split(b" ")[1].decode().partition("?")[0]
            for line in head.lower().split(b"\r\n"):
                if line.startswith(b"content-length:"):
                    await reader.readexactly(int(line.partition(b":")[2]))
            found = self.answers.get(path, answer(b"", "404 Not Found"))
            for data in found() if callable(found) else found:
                writer.write(data)
                await writer.drain()
                self.sent += len(data)
                if self.pause:
                    await asyncio.sleep(self.pause)
                    if self._over:
                        break
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
