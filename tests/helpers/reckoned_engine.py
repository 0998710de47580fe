"""An engine in reckoned time: a stepped scheduler behind the `Engine` protocol, on a `VirtualLoop`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

from flashagents_runtime.types import (
    Delta,
    EngineInfo,
    EngineState,
    GenerateRequest,
    GenerateResult,
    ProgressCallback,
    Usage,
)
from helpers.reckoned_steps import Cost, ReckonedSteps
from helpers.scheduler_harness import Request, SchedulerHarness

NAP = 0.0005
"""Seconds between two looks of a scheduler that has nothing to run."""
FEATURES = ["prefill_only", "intra_turn", "soft_pins", "warmup_budget"]


@dataclass
class _Live:
    """A request on the engine, and how many of its tokens the client was told."""

    deltas: asyncio.Queue[Delta] = field(default_factory=asyncio.Queue)
    told: int = 0


class ReckonedEngine:
    """Requests come and deltas go by the running loop's time; a step lasts as `cost` says.

    What SGLang's processes beside the scheduler do lasts `wire` seconds a way and nothing else. Texts are
    empty: nothing is detokenised. The harness is its owner's. To be made on the loop that it runs on.

    Args:
        wire: seconds from the client to the scheduler, and back.
        features: what the server says of itself.
    """

    def __init__(
        self, s: SchedulerHarness, cost: Cost, *, wire: float = 0.0, features: list[str] = FEATURES
    ) -> None:
        self.info: EngineInfo | None = None
        self._s = s
        self._wire = wire
        self._features = features
        self._loop = asyncio.get_running_loop()  # the scheduler's thread reads its time
        self._steps = ReckonedSteps(s, cost, self._loop.time)
        self._live: dict[str, _Live] = {}
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def steps(self) -> ReckonedSteps:
        """What has run."""
        return self._steps

    async def start(self, progress: ProgressCallback | None = None) -> EngineInfo:
        """See `Engine`."""
        if self.info is None:
            self.info = EngineInfo(
                kind="embedded",
                model="reckoned",
                context_length=self._s.scheduler.model_config.context_len,
                max_total_tokens=self._s.scheduler.max_total_num_tokens,
                device="cuda",
                versions={},
                features=self._features,
            )
            self._task = self._loop.create_task(self._run())
        return self.info

    async def _run(self) -> None:
        with self._steps.reckoned():
            while True:
                if not self._live and self._s.idle:
                    self._wake.clear()
                    await self._wake.wait()
                await asyncio.sleep(self._steps.step() or NAP)
                for rid in list(self._live):
                    self._tell(rid)

    def _tell(self, rid: str) -> None:
        req = self._s.reqs.get(rid)
        if req is None:
            return
        live = self._live[rid]
        new = list(req.output_ids)[live.told :]
        live.told += len(new)
        result = _result_of(req) if req.finished() else None
        if result is not None:
            del self._live[rid], self._s.reqs[rid]
        if new or result is not None:
            delta = Delta("", new, result)
            self._loop.call_later(self._wire, live.deltas.put_nowait, delta)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        """See `Engine`; sampling is greedy and never stops at an end token."""
        await self.start()
        await asyncio.sleep(self._wire)
        live = self._live[request.rid] = _Live()
        new = request.sampling.max_new_tokens
        assert new is not None, "the harness wants a bound"
        self._s.submit(Request(request.rid, request.input_ids, new, session_id=request.session_id))
        self._wake.set()
        result = None
        try:
            while result is None:
                delta = await live.deltas.get()
                result = delta.result
                yield delta
        finally:
            if self._live.pop(request.rid, None) is not None:
                self._s.abort(request.rid)

    async def abort(self, rid: str) -> None:
        """See `Engine`."""
        self._s.abort(rid)

    async def close_session(self, session_id: str) -> None:
        """See `Engine`."""
        from sglang.srt.managers.io_struct import CloseSessionReqInput

        self._s.send(CloseSessionReqInput(session_id=session_id))

    async def state(self) -> EngineState:
        """See `Engine`."""
        scheduler = self._s.scheduler
        total, free = scheduler.max_total_num_tokens, scheduler.token_to_kv_pool_allocator.available_size()
        return EngineState(
            kv_total=total,
            kv_used=total - free,
            kv_cached=scheduler.tree_cache.evictable_size(),
            kv_free=free,
            running=len(scheduler.running_batch.reqs),
            waiting=len(scheduler.waiting_queue),
        )

    async def flush_cache(self) -> bool:
        """See `Engine`."""
        if self._live or not self._s.idle:
            return False
        self._s.flush()
        return True

    async def close(self) -> None:
        """See `Engine`; leaves the harness as it was."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None
        self._s.flush()
        self._s.reqs.clear()
        self._s.sent.clear()


def _result_of(req: Any) -> GenerateResult:
    aborted = req.finished_reason.to_json().get("type") == "abort"
    return GenerateResult(
        finish_reason="abort" if aborted else "length",
        usage=Usage(
            prompt_tokens=len(req.origin_input_ids),
            cached_tokens=req.cached_tokens,
            completion_tokens=len(req.output_ids),
        ),
    )


__all__ = ["FEATURES", "ReckonedEngine"]
