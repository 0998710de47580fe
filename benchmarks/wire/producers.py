"""Two engines without a model that speak at a fixed rate: one over our frames, one over SGLang's HTTP.

    python producers.py frames FD      (as `python -m flashagents_runtime.host FD`)
    python producers.py http PORT

Every STEP seconds each running request gets one token, as from a scheduler that decodes them in one
batch. The HTTP side answers POST /generate as SGLang 0.5.18's server does with `stream: true` and
`incremental_streaming_output`: FastAPI on uvicorn, server-sent events, orjson.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator
from typing import Any

from flashagents_runtime import wire
from flashagents_runtime.types import Delta, EngineInfo, GenerateResult, Usage

STEP = 0.005  # seconds: 200 tokens/s for each stream
INFO = EngineInfo(
    kind="embedded",
    model="stub",
    context_length=1 << 20,
    max_total_tokens=1 << 20,
    device="none",
    versions={},
    features=[],
)


class Frames(asyncio.Protocol):
    def __init__(self) -> None:
        self.reader = wire.FrameReader(wire.ToHost)
        self.running: dict[str, list[int]] = {}

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        asyncio.get_running_loop().stop()

    def data_received(self, data: bytes) -> None:
        for message in self.reader.feed(data):
            if isinstance(message, wire.Setup):
                self.transport.write(wire.encode(wire.Ready(INFO)))
            elif isinstance(message, wire.Generate):
                self.running[message.request.rid] = [0, message.request.sampling.max_new_tokens or 1]

    def step(self) -> None:
        items = []
        for rid, count in list(self.running.items()):
            count[0] += 1
            result = None
            if count[0] == count[1]:
                del self.running[rid]
                result = GenerateResult(finish_reason="length", usage=Usage(completion_tokens=count[1]))
            items.append((rid, Delta(" word", [count[0]], result)))
        if items:
            self.transport.write(wire.encode(wire.Deltas(items)))


async def frames(fd: int) -> None:
    loop = asyncio.get_running_loop()
    server = Frames()
    await loop.create_connection(lambda: server, sock=socket.socket(fileno=fd))
    await ticks(server.step)


async def ticks(step: Any) -> None:
    """Call `step` every STEP seconds, without drifting."""
    loop = asyncio.get_running_loop()
    due = loop.time()
    while True:
        step()
        due += STEP
        await asyncio.sleep(due - loop.time())


def http(port: int) -> None:
    import orjson
    import uvicorn
    from fastapi import FastAPI
    from fastapi.responses import StreamingResponse

    app = FastAPI()
    tick = asyncio.Event()

    @app.get("/model_info")
    async def model_info() -> dict[str, Any]:
        return {"model_path": "stub", "tool_call_parser": None, "reasoning_parser": None}

    @app.get("/server_info")
    async def server_info() -> dict[str, Any]:
        return {
            "version": "0.5.18",
            "context_length": 1 << 20,
            "max_total_num_tokens": 1 << 20,
            "incremental_streaming_output": True,
        }

    @app.post("/generate")
    async def generate(body: dict):  # type: ignore[no-untyped-def, type-arg]  # FastAPI reads these
        n = body["sampling_params"]["max_new_tokens"]

        async def stream() -> AsyncIterator[bytes]:
            for i in range(1, n + 1):
                await tick.wait()
                meta = {
                    "id": body["rid"],
                    "finish_reason": {"type": "length", "length": n} if i == n else None,
                    "prompt_tokens": 3,
                    "weight_version": "default",
                    "total_retractions": 0,
                    "reasoning_tokens": 0,
                    "completion_tokens": i,
                    "cached_tokens": 0,
                }
                yield (
                    b"data: "
                    + orjson.dumps({"text": " word", "output_ids": [i], "meta_info": meta})
                    + b"\n\n"
                )
                await asyncio.sleep(0)
            yield b"data: [DONE]\n\n"

        return StreamingResponse(stream(), media_type="text/event-stream")

    async def main() -> None:
        def step() -> None:
            tick.set()
            asyncio.get_running_loop().call_soon(tick.clear)

        server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error"))
        ticking = asyncio.create_task(ticks(step))
        await server.serve()
        ticking.cancel()

    asyncio.run(main())


if __name__ == "__main__":
    if sys.argv[1] == "frames":
        asyncio.run(frames(int(sys.argv[2])))
    else:
        http(int(sys.argv[2]))
