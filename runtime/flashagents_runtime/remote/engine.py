"""`RemoteEngine`: the `Engine` protocol over HTTP to a running SGLang server."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from .._version import __version__
from ..adapter_errors import rejection, unknown_adapter
from ..errors import (
    EngineClosedError,
    EngineDiedError,
    EngineError,
    EngineStartError,
    FlashAgentsError,
    RequestRejectedError,
)
from ..host.outputs import Rejected, request_fields, to_delta
from ..html_tables import engine_html
from ..limits import check_request
from ..types import Delta, EngineInfo, EngineState, GenerateRequest, Progress, ProgressCallback
from .answers import RemoteAnswer
from .http import Server
from .outputs import EventReader, Increments, check_output

_ABORT_SECONDS = 2.0
_BLOCKING_SECONDS = 10.0
_MAX_TEXT = 64 << 20  # characters of one answer


class RemoteEngine:
    """A running SGLang server, ours (`flashagents serve`) or an ordinary one.

    `start` connects and asks what the server can do; an ordinary server lacks our plug-in's features, and
    `info.features` says which there are. Streams are read as fast as their reader takes them: a slow
    one holds the server back, not our memory. Leaving a stream aborts the request in the server.

    Args:
        url: such as "http://127.0.0.1:30000".
        api_key: the server's `--api-key`.
        tls: how to check an https server's certificate, where the system's own way is not right.
        tls_ca_file: the same by a PEM file: the only authority that is trusted for this server, or the
            server's own self-signed certificate.
        connect_timeout: seconds until a connection must stand.
        read_timeout: longest silence while the server is answering, seconds.

    Raises:
        ValueError: no URL of a server, or a `tls_ca_file` that is none.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        tls: ssl.SSLContext | None = None,
        tls_ca_file: str | Path | None = None,
        connect_timeout: float = 10.0,
        read_timeout: float = 600.0,
    ) -> None:
        if tls_ca_file is not None:
            if tls is not None:
                raise ValueError("tls and tls_ca_file both say what to trust: give one of them")
            tls = _trusting(tls_ca_file)
        self._server = Server(url, api_key, tls, connect_timeout, read_timeout)
        self._info: EngineInfo | None = None
        self._died = False  # since `_info` was read
        self._incremental = False
        self._tool_parser: str | None = None
        self._reasoning_parser: str | None = None
        self._total_tokens = 0
        self._aborting: set[str] = set()
        self._asking: set[str] = set()  # requests that are being answered
        self._closed = False
        self._leaving: set[asyncio.Future[None]] = set()  # aborts on their way

    def __repr__(self) -> str:
        return f"<RemoteEngine {self._server.url}>"

    def _repr_html_(self) -> str:
        return engine_html(self)

    @property
    def info(self) -> EngineInfo | None:
        """What the server is; None before `start`."""
        return self._info

    async def start(self, progress: ProgressCallback | None = None) -> EngineInfo:
        """See `Engine.start`: connects; nothing is started on the server. Where it fails nothing stays open.

        After the server has died it is asked anew: what comes back at its address may be another one.
        """
        if self._info is not None and not self._died:
            return self._info
        try:
            info = await self._connect(progress)
        except BaseException:
            await self._server.leave_loop()
            raise
        self._died = False
        return info

    async def _connect(self, progress: ProgressCallback | None) -> EngineInfo:
        if progress is not None:
            progress(Progress(f"Connecting to {self._server.url}"))
        try:
            model = await self._server.json("GET", "/model_info")
            server = await self._server.json("GET", "/server_info")
        except EngineClosedError:
            raise
        except RequestRejectedError as e:
            raise EngineStartError(f"{e} (is it an SGLang server?)") from e
        except EngineDiedError as e:
            if self._died:
                raise
            raise EngineStartError(str(e)) from e
        except EngineError as e:
            raise EngineStartError(str(e)) from e
        if not isinstance(model, dict) or not isinstance(server, dict) or "model_path" not in model:
            raise EngineStartError(f"{self._server.url} is no SGLang server: it does not name its model")
        try:
            with _read_as_sglangs(self._server.url):
                info = _info(model, server)
        except EngineStartError:
            raise
        except EngineError as e:
            raise EngineStartError(str(e)) from e
        self._tool_parser = _name(model.get("tool_call_parser"))
        self._reasoning_parser = _name(model.get("reasoning_parser"))
        self._incremental = bool(server.get("incremental_streaming_output"))
        self._total_tokens = int(server.get("max_total_num_tokens") or 0)
        self._info = info
        if progress is not None:
            progress(Progress("Ready", 1.0))
        return info

    def start_blocking(self) -> EngineInfo:
        """`start` for synchronous code, also within a running event loop, which stands still meanwhile.

        AutoGen reads a client's `model_info` before its first call. Raises as `start`, and EngineStartError
        for a server that says nothing for 10 seconds.
        """

        async def ask() -> EngineInfo:
            try:
                async with asyncio.timeout(_BLOCKING_SECONDS):
                    return await self.start()
            except TimeoutError:
                seconds = f"{_BLOCKING_SECONDS:.0f} seconds"
                raise EngineStartError(f"the server {self._server.url} was silent for {seconds}") from None
            finally:
                await self._server.leave_loop()

        if self._info is not None and not self._died:
            return self._info
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(lambda: asyncio.run(ask())).result()

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        """See `Engine.generate`."""
        info = await self.start()
        check_request(request, info)
        answer = RemoteAnswer(self._server, request, self._tool_parser, self._reasoning_parser)
        increments = None if self._incremental else Increments()
        async with self._asked(request.rid), self._open(answer.request) as response:
            left = True
            tokens = characters = 0
            try:
                async for out in _events(response, self._server):
                    if out.get("error") is not None:
                        raise self._error(out["error"])
                    delta = _delta(out, increments, request, request.rid in self._aborting)
                    tokens, characters = tokens + len(delta.token_ids), characters + len(delta.text)
                    if tokens > info.context_length or characters > _MAX_TEXT:
                        raise EngineError(f"{self._server.url} sent a longer answer than its context holds")
                    delta = await answer.read(delta)
                    left = delta.result is None
                    yield delta
                    if not left:
                        return
                raise EngineDiedError(f"{self._server.url} ended the answer in the middle")
            except EngineError:
                left = False
                raise
            finally:
                self._aborting.discard(request.rid)
                if left:
                    await self._leave(request.rid)

    @contextlib.asynccontextmanager
    async def _asked(self, rid: str) -> AsyncGenerator[None, None]:
        """While a request is on its way or being answered: whether the server dies, and what `close` ends."""
        self._asking.add(rid)
        try:
            yield
        except EngineError as e:
            self._died = self._died or isinstance(e, EngineDiedError)
            if self._closed and not isinstance(e, EngineClosedError):
                raise EngineClosedError("the engine was closed while this call was waiting") from e
            raise
        finally:
            self._asking.discard(rid)

    @contextlib.asynccontextmanager
    async def _open(self, request: GenerateRequest) -> AsyncGenerator[aiohttp.ClientResponse, None]:
        """The server's answer to a request; aborts the request where nobody waits for the answer to begin."""
        entered = self._server.open("POST", "/generate", request_fields(request))
        opening = asyncio.ensure_future(entered.__aenter__())
        try:
            await asyncio.wait([opening])
        except asyncio.CancelledError:
            try:
                await self._leave(request.rid)
            finally:
                opening.cancel()
                opening.add_done_callback(_forget)
            raise
        response = opening.result()
        try:
            yield response
        finally:
            await entered.__aexit__(None, None, None)

    async def _leave(self, rid: str) -> None:
        """Abort a request whose reader goes. Before the connection closes: a server forgets a request whose
        client has gone, and then ignores its abort, but its scheduler goes on to generate. Also where the
        reader is cancelled once more meanwhile."""
        task = asyncio.ensure_future(self._abort_if_it_can_be(rid))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)
        await asyncio.shield(task)

    async def _abort_if_it_can_be(self, rid: str) -> None:
        with contextlib.suppress(EngineError, TimeoutError):
            async with asyncio.timeout(_ABORT_SECONDS):
                await self._post_abort(rid)

    def _error(self, error: Any) -> EngineError:
        """What the server puts into the stream where a request fails in the middle."""
        entry = error if isinstance(error, dict) else {"message": error}
        code = entry.get("code")
        said = entry.get("message") or error or "the server ended its answer with an error, and said no more"
        message = self._server.masked(str(said)[:2000])
        refused = isinstance(code, int) and 400 <= code < 500
        return unknown_adapter(message) or (RequestRejectedError if refused else EngineError)(message)

    async def abort(self, rid: str) -> None:
        """See `Engine.abort`."""
        self._aborting.add(rid)
        await self._post_abort(rid)

    async def _post_abort(self, rid: str) -> None:
        async with self._server.open("POST", "/abort_request", {"rid": rid}):
            pass

    async def close_session(self, session_id: str) -> None:
        """See `Engine.close_session`; only servers with our plug-in are told."""
        if "soft_pins" in (await self.start()).features:
            async with self._server.open("POST", "/close_session", {"session_id": session_id}):
                pass

    async def state(self) -> EngineState:
        """See `Engine.state`; without the plug-in, what is cached counts as free."""
        await self.start()
        server = await self._server.json("GET", "/server_info")
        with _read_as_sglangs(self._server.url):
            ours = _plugin(server)
            if ours is not None:
                return msgspec.convert(ours["kv"], EngineState)
        answer = await self._server.json("GET", "/v1/loads?include=core")
        with _read_as_sglangs(self._server.url):
            loads = answer.get("loads") or [{}]
            used = sum(int(load.get("num_used_tokens") or 0) for load in loads)
            return EngineState(
                kv_total=self._total_tokens,
                kv_used=used,
                kv_cached=0,
                kv_free=max(self._total_tokens - used, 0),
                running=sum(int(load.get("num_running_reqs") or 0) for load in loads),
                waiting=sum(int(load.get("num_waiting_reqs") or 0) for load in loads),
            )

    async def internal_state(self) -> dict[str, Any]:
        """What the server says of itself (`/server_info`), for diagnosis: not a stable format."""
        await self.start()
        server = await self._server.json("GET", "/server_info")
        return server if isinstance(server, dict) else {}

    async def flush_cache(self) -> bool:
        """See `Engine.flush_cache`."""
        try:
            async with self._server.open("POST", "/flush_cache"):
                return True
        except RequestRejectedError:
            return False

    async def close(self) -> None:
        """Abort what is being answered and close the connections; the server goes on. Closing twice is fine.

        Who is reading an answer, in whichever loop and thread, gets EngineClosedError.
        """
        self._closed = True
        await asyncio.gather(*(self._abort_if_it_can_be(rid) for rid in list(self._asking)))
        here = [task for task in self._leaving if task.get_loop() is asyncio.get_running_loop()]
        if here:
            await asyncio.wait(here)
        await self._server.close()


def _trusting(ca_file: str | Path) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=str(Path(ca_file).expanduser()))
    except (OSError, ssl.SSLError) as e:
        raise ValueError(f"tls_ca_file {str(ca_file)!r} cannot be read as PEM certificates: {e}") from e


async def _events(response: aiohttp.ClientResponse, server: Server) -> AsyncGenerator[dict[str, Any], None]:
    """The events of an answer; a server that sends none for long is silent, whatever bytes it sends."""
    reader = EventReader()
    url = server.url
    try:
        while True:
            events: list[dict[str, Any]] = []
            async with server.wait():
                while not events and not reader.done:
                    chunk = await response.content.readany()
                    if not chunk:
                        return
                    events = reader.feed(chunk)
            for event in events:
                yield event
            if reader.done:
                return
    except (aiohttp.ClientError, TimeoutError, ConnectionError) as e:
        raise EngineDiedError(f"the connection to {url} broke in the middle of an answer: {e!r}") from e
    except ValueError as e:
        raise EngineError(f"{url} sent what is no answer of SGLang: {e}") from e


def _forget(opening: asyncio.Future[aiohttp.ClientResponse]) -> None:
    """An answer that began, or failed, when nobody waited for it any more."""
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()


@contextlib.contextmanager
def _read_as_sglangs(url: str) -> Iterator[None]:
    """Around code that takes a server's word for its form: an EngineError where it has another."""
    try:
        yield
    except FlashAgentsError:
        raise
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, ArithmeticError) as e:
        raise EngineError(f"{url} answered otherwise than SGLang does: {e!r:.500}") from e


def _name(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _delta(
    out: dict[str, Any], increments: Increments | None, request: GenerateRequest, aborted: bool
) -> Delta:
    try:
        check_output(out)
    except ValueError as e:
        raise EngineError(str(e)) from None
    if increments is not None:
        out = increments.next(out)
    try:
        return to_delta(out, request.logprobs, aborted=aborted)
    except Rejected as e:
        raise (rejection if e.rejected else EngineError)(str(e)) from None
    except (KeyError, TypeError) as e:
        raise EngineError(f"the server's output is not as SGLang's should be: {e!r}") from e


def _plugin(server: dict[str, Any]) -> dict[str, Any] | None:
    """The entry of our plug-in in the server's state, None where it is not installed."""
    states = server.get("internal_states") or [{}]
    ours = states[0].get("flashagents")
    return ours if isinstance(ours, dict) else None


def _info(model: dict[str, Any], server: dict[str, Any]) -> EngineInfo:
    ours = _plugin(server)
    features = ["prefill_only"]
    if server.get("enable_lora"):
        features.append("lora")
    versions = {"flashagents": __version__, "sglang": str(server.get("version") or "unknown")}
    if ours is not None:
        features += [name for name, entry in ours["features"].items() if entry["active"]]
        versions["plugin"] = str(ours.get("version"))
    total = int(server.get("max_total_num_tokens") or 0)
    # SGLang keeps 6 tokens back from the context (`max_req_input_len` of its scheduler), and leaves
    # `context_length` empty where it is the model's own.
    longest_input = int(server.get("max_req_input_len") or 0)
    context = int(server.get("context_length") or (longest_input + 6 if longest_input else total))
    if not context:
        raise EngineStartError("the server does not say its context length: is it an SGLang server?")
    return EngineInfo(
        kind="remote",
        model=str(model["model_path"]),
        context_length=context,
        max_total_tokens=total or context,
        device=str(server.get("device") or "unknown"),
        versions=versions,
        features=features,
    )


__all__ = ["RemoteEngine"]
