"""An engine without a model, for tests: it says what it was told to say, when it was told to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ._version import __version__
from .errors import ContextLengthError, EngineClosedError, EngineDiedError, RequestRejectedError
from .html_tables import engine_html
from .types import (
    Delta,
    EngineInfo,
    EngineState,
    FinishReason,
    GenerateRequest,
    GenerateResult,
    Progress,
    ProgressCallback,
    TokenLogprob,
    ToolCall,
    Usage,
)


@dataclass(frozen=True, kw_only=True)
class Reply:
    """One scripted answer.

    Attributes:
        text: the answer, or its deltas one by one.
        finish_reason: how it ends; None works it out from `max_new_tokens`.
        delay: seconds before the first delta.
        interval: seconds between deltas.
        error: raised after the last delta instead of a result.
        token_ids: the tokens of each delta; None stands for the UTF-8 bytes of its text.
        logprob: log-probability reported for every token, where the request asks for them.
        thought: reasoning before the answer; its tokens count.
        tool_calls: calls that the answer makes.
        broken_call: see `GenerateResult.broken_call`.
    """

    text: str | Sequence[str] = ""
    finish_reason: FinishReason | None = None
    delay: float = 0.0
    interval: float = 0.0
    error: Exception | None = None
    token_ids: Sequence[Sequence[int]] | None = None
    logprob: float = -0.5
    thought: str = ""
    tool_calls: Sequence[ToolCall] = ()
    broken_call: str | None = None

    def deltas(self) -> Iterator[tuple[str, list[int]]]:
        """The answer's deltas as (text, token ids)."""
        pieces = list(self.text)  # a plain text goes character by character
        for i, piece in enumerate(pieces):
            ids = list(piece.encode()) if self.token_ids is None else list(self.token_ids[i])
            yield piece, ids


ScriptItem = str | Reply | Callable[[GenerateRequest], str | Reply]


@dataclass
class ScriptedEngine:
    """Speaks the `Engine` protocol; answers from a script, in order of arrival.

    A script item is a text (streamed character by character), a `Reply`, or a function of the
    request that returns one of these. Prompts are remembered, so that `cached_tokens` is what an
    endless radix cache would say, each namespace (salt, key, adapter) for itself. Shipped for users'
    own tests: no model, no process, no GPU.

    Attributes:
        script: what to say; a request beyond its end is refused with RequestRejectedError.
        requests: every request received, in order.
        aborted: ids of the requests that were aborted or left early.
        closed_sessions: ids that `close_session` was called with.

    Example:
        >>> engine = ScriptedEngine(["Hello!", "Bye."])
    """

    script: Iterable[ScriptItem] = ()
    context_length: int = 8192
    max_total_tokens: int = 1 << 20
    model: str = "scripted"
    start_error: Exception | None = None
    requests: list[GenerateRequest] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    closed_sessions: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._script = iter(self.script)
        self._seen: dict[tuple[object, ...], list[list[int]]] = {}  # by namespace, as in a radix cache
        self._running: dict[str, tuple[asyncio.AbstractEventLoop, asyncio.Event]] = {}
        self._used: dict[str, int] = {}
        self._info: EngineInfo | None = None
        self._dead: Exception | None = None

    def _repr_html_(self) -> str:
        return engine_html(self)

    @property
    def info(self) -> EngineInfo | None:
        """What the engine is; None before `start`."""
        return self._info

    async def start(self, progress: ProgressCallback | None = None) -> EngineInfo:
        """See `Engine.start`; raises `start_error` where one was scripted."""
        self._check()
        if self.start_error is not None:
            raise self.start_error
        if self._info is None:
            if progress is not None:
                progress(Progress("Scripted engine ready", 1.0))
            self._info = EngineInfo(
                kind="scripted",
                model=self.model,
                context_length=self.context_length,
                max_total_tokens=self.max_total_tokens,
                device="none",
                versions={"flashagents": __version__},
                features=["lora", "prefill_only"],
            )
        return self._info

    def _check(self) -> None:
        if self._dead is not None:
            raise self._dead

    def _cached(self, request: GenerateRequest) -> int:
        ids = request.input_ids

        def common(other: list[int]) -> int:
            return next((i for i, (a, b) in enumerate(zip(ids, other, strict=False)) if a != b), len(other))

        seen = self._seen.get(_namespace(request), [])
        longest = max((min(common(o), len(ids)) for o in seen), default=0)
        return min(longest, max(len(ids) - 1, 0))  # the last token is always computed, as in SGLang

    def _next_reply(self, request: GenerateRequest) -> Reply:
        try:
            item = next(self._script)
        except StopIteration:
            raise RequestRejectedError(
                f"the script of this ScriptedEngine has ended (request {len(self.requests)}); "
                "give it one item for each request"
            ) from None
        if callable(item):
            item = item(request)
        return Reply(text=item) if isinstance(item, str) else item

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        """See `Engine.generate`."""
        await self.start()
        if not request.input_ids:
            raise RequestRejectedError("the prompt is empty: input_ids needs at least one token")
        if len(request.input_ids) >= self.context_length:
            raise ContextLengthError(
                f"the prompt has {len(request.input_ids)} tokens, but the context holds {self.context_length}"
            )
        self.requests.append(request)
        prefill_only = request.sampling.max_new_tokens == 0
        reply = Reply() if prefill_only else self._next_reply(request)
        stop = asyncio.Event()
        self._running[request.rid] = (asyncio.get_running_loop(), stop)
        self._used[request.rid] = len(request.input_ids)
        cached = self._cached(request)
        answer: list[int] = []
        finished = False
        try:
            if reply.thought and not await self._wait(reply.delay, stop):
                answer += reply.thought.encode()
                yield Delta("", list(answer), thought=reply.thought)
            for text, ids, reason in self._plan(request, reply):
                wait = reply.interval if answer else reply.delay
                if await self._wait(wait, stop):
                    reason, text, ids = "abort", "", []
                answer += ids
                self._used[request.rid] = len(request.input_ids) + len(answer)
                if reason is not None and reason != "abort" and reply.error is not None:
                    finished = True
                    raise reply.error
                result = None
                if reason is not None:
                    usage = Usage(
                        prompt_tokens=len(request.input_ids),
                        cached_tokens=cached,
                        completion_tokens=len(answer),
                    )
                    result = GenerateResult(
                        finish_reason=reason,
                        usage=usage,
                        tool_calls=list(reply.tool_calls),
                        broken_call=reply.broken_call,
                    )
                    finished = True
                logprobs = (
                    [TokenLogprob(chr(i % 256), i, reply.logprob) for i in ids] if request.logprobs else None
                )
                yield Delta(text, ids, result, logprobs)
                if result is not None:
                    return
        finally:
            self._running.pop(request.rid, None)
            self._used.pop(request.rid, None)
            self._seen.setdefault(_namespace(request), []).append([*request.input_ids, *answer])
            if not finished:
                self.aborted.append(request.rid)

    def _plan(
        self, request: GenerateRequest, reply: Reply
    ) -> Iterator[tuple[str, list[int], FinishReason | None]]:
        """The deltas to send, each with the finish reason where it is the last."""
        limit = request.sampling.max_new_tokens
        room = self.context_length - len(request.input_ids)
        limit = room if limit is None else min(limit, room)
        deltas = list(reply.deltas())
        sent = 0
        for i, (text, ids) in enumerate(deltas):
            last = i == len(deltas) - 1
            sent += len(ids)
            if sent >= limit:
                cut = sent > limit or not last
                yield (
                    text,
                    ids[: len(ids) - max(sent - limit, 0)],
                    "length" if cut else (reply.finish_reason or "stop"),
                )
                return
            yield text, ids, (reply.finish_reason or "stop") if last else None
        if not deltas:
            yield "", [], "length" if limit == 0 else (reply.finish_reason or "stop")

    async def _wait(self, seconds: float, stop: asyncio.Event) -> bool:
        """Sleep; True when the request was aborted meanwhile. Raises when the engine died or closed."""
        if seconds > 0:
            try:
                async with asyncio.timeout(seconds):
                    await stop.wait()
            except TimeoutError:
                pass
        else:
            await asyncio.sleep(0)
        self._check()
        return stop.is_set()

    async def abort(self, rid: str) -> None:
        """See `Engine.abort`."""
        self._wake([rid])
        if rid in self._running:
            self.aborted.append(rid)

    async def close_session(self, session_id: str) -> None:
        """See `Engine.close_session`."""
        self._check()
        self.closed_sessions.append(session_id)

    def _wake(self, rids: Iterable[str]) -> None:
        for rid in rids:
            if rid in self._running:
                loop, event = self._running[rid]
                loop.call_soon_threadsafe(event.set)

    def die(self, message: str = "the scripted engine died", log_tail: Sequence[str] = ()) -> None:
        """Behave as an engine whose process was killed: every waiting call raises EngineDiedError."""
        self._dead = EngineDiedError(message, log_tail)
        self._wake(list(self._running))

    async def state(self) -> EngineState:
        """See `Engine.state`."""
        self._check()
        used = sum(self._used.values())
        return EngineState(
            kv_total=self.max_total_tokens,
            kv_used=used,
            kv_cached=0,
            kv_free=self.max_total_tokens - used,
            running=len(self._running),
            waiting=0,
        )

    async def flush_cache(self) -> bool:
        """See `Engine.flush_cache`."""
        self._check()
        if self._running:
            return False
        self._seen.clear()
        return True

    async def close(self) -> None:
        """See `Engine.close`."""
        if not isinstance(self._dead, EngineClosedError):
            self._dead = EngineClosedError("this ScriptedEngine was closed; build a new one")
            self._wake(list(self._running))


def _namespace(request: GenerateRequest) -> tuple[object, ...]:
    """Requests share prefixes only within one of these, as in SGLang."""
    return (request.lora, request.extra_key or None, request.cache_salt or None, request.routed_dp_rank)


__all__ = ["Reply", "ScriptedEngine"]
