"""A scripted engine whose prefill-only requests end when the test says so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field

from flashagents_runtime import Delta, GenerateRequest, ScriptedEngine


def is_chunk(request: GenerateRequest) -> bool:
    """A prefill-only request."""
    return request.sampling.max_new_tokens == 0


@dataclass
class GatedEngine(ScriptedEngine):
    """`ScriptedEngine` with gates.

    Attributes:
        open: prefill-only requests do not wait.
        waiting: prefill-only requests that have come and are not done, in order.
        chunks: all prefill-only requests that have come.
        left: ids of those that were aborted while they waited.
        error: raised by prefill-only requests instead of a result.
    """

    open: bool = False
    waiting: dict[str, GenerateRequest] = field(default_factory=dict)
    chunks: list[GenerateRequest] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    error: Exception | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._gates: dict[str, asyncio.Event] = {}

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        """See `Engine.generate`."""
        if is_chunk(request):
            self.chunks.append(request)
            await self._pass(request)
            if self.error is not None:
                raise self.error
        async with aclosing(super().generate(request)) as stream:
            async for delta in stream:
                yield delta

    async def _pass(self, request: GenerateRequest) -> None:
        gate = self._gates[request.rid] = asyncio.Event()
        self.waiting[request.rid] = request
        try:
            if not self.open:
                await gate.wait()
        except asyncio.CancelledError:
            self.left.append(request.rid)
            raise
        finally:
            del self.waiting[request.rid], self._gates[request.rid]

    async def release(self) -> None:
        """Let the prefill-only requests that wait now come to their end."""
        await breathe()
        for gate in list(self._gates.values()):
            gate.set()
        await breathe()


async def breathe() -> None:
    """Let everything that can run, run."""
    for _ in range(20):
        await asyncio.sleep(0)
