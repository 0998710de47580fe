"""The protocol that every engine speaks: embedded, remote or scripted."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol, runtime_checkable

from .types import Delta, EngineInfo, EngineState, GenerateRequest, ProgressCallback


@runtime_checkable
class Engine(Protocol):
    """Token ids in, a stream of deltas out.

    Any method may be called from any event loop and any thread; several loops may use one engine.
    """

    @property
    def info(self) -> EngineInfo | None:
        """What the engine is; None before `start` has ended."""
        ...

    async def start(self, progress: ProgressCallback | None = None) -> EngineInfo:
        """Bring the engine up; returns at once when it is up already.

        Concurrent calls wait for the same start. `progress` may be called from another thread.

        Raises:
            EngineStartError: the engine did not come up; a later call tries again.
            EngineClosedError: the engine was closed.
        """
        ...

    def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        """Serve one request; starts the engine if need be.

        The last delta, and no other, has `result` set. Closing the generator early, or cancelling
        the task that iterates it, aborts the request in the engine and frees its KV.

        Raises:
            RequestRejectedError: the engine refused the request.
            EngineDiedError: the engine died; the request is lost.
            EngineClosedError: the engine was closed.
        """
        ...

    async def abort(self, rid: str) -> None:
        """Abort a request; its stream ends with finish reason "abort". Unknown ids are ignored."""
        ...

    async def close_session(self, session_id: str) -> None:
        """A prefill session is over without a real request: its KV is kept no longer than any other.

        Unknown ids, and engines whose servers pin nothing, ignore it.
        """
        ...

    async def state(self) -> EngineState:
        """How full the engine is now."""
        ...

    async def flush_cache(self) -> bool:
        """Empty the radix cache; False where requests are running and it was left as it is."""
        ...

    async def close(self) -> None:
        """End the engine and wait until nothing of it is left. Running requests raise EngineClosedError.

        Closing twice is fine.
        """
        ...


__all__ = ["Engine"]
