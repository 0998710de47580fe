"""HTTP to one server: a session for each event loop, and errors by kind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import weakref
from collections.abc import AsyncIterator, Iterator
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from ..adapter_errors import rejection
from ..errors import EngineClosedError, EngineDiedError, EngineError
from ..redact import masked

_TRIES = 3
_PAUSE_SECONDS = 0.2
_MAX_BODY = 64 << 20  # bytes of one answer in JSON; SGLang's are some kilobytes
_MAX_REFUSAL = 8192  # bytes; what a server says beyond that of an error is not read


class Server:
    """A server's address, with what every request to it needs.

    It follows no redirect and keeps no cookie: prompts and key go to this address alone.

    Args:
        url: such as "http://127.0.0.1:30000"; without user, password or query, which would be shown.
            SGLang's own paths are used, so the "/v1" of OpenAI's clients at its end is left off.
        api_key: sent as a bearer token; never shown.
        tls: for servers whose certificate the system does not know.
        connect_timeout: seconds until a connection must stand.
        read_timeout: longest silence of a server that is answering, seconds.

    Attributes:
        patience: as `read_timeout`; also the longest time for the head of an answer, and for a JSON value.
    """

    def __init__(
        self,
        url: str,
        api_key: str | None,
        tls: ssl.SSLContext | None,
        connect_timeout: float,
        read_timeout: float,
    ) -> None:
        self.url = _checked_url(url)
        self.patience = read_timeout
        self._secrets = [api_key] if api_key else []
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._tls = tls
        self._timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=connect_timeout, sock_read=read_timeout
        )
        self._sessions: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, aiohttp.ClientSession]
        self._sessions = weakref.WeakKeyDictionary()
        self._requests: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, int]
        self._requests = weakref.WeakKeyDictionary()  # of each loop, those that have not come to their end
        self._waits: set[_Wait] = set()
        self._closed = False

    def _check_open(self) -> None:
        if self._closed:
            raise EngineClosedError("this RemoteEngine was closed; build a new one")

    def wait(self) -> _Wait:
        """Around one wait for the server: no longer than `patience`, and not beyond `close`.

        Raises TimeoutError, or EngineClosedError.
        """
        return _Wait(self)

    def _session(self) -> aiohttp.ClientSession:
        self._check_open()
        loop = asyncio.get_running_loop()
        session = self._sessions.get(loop)
        if session is None or session.closed:
            connector = aiohttp.TCPConnector(limit=0, ssl=self._tls if self._tls is not None else True)
            session = aiohttp.ClientSession(
                connector=connector,
                headers=self._headers,
                timeout=self._timeout,
                cookie_jar=aiohttp.DummyCookieJar(),
            )
            self._sessions[loop] = session
        return session

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        self._requests[loop] = self._requests.get(loop, 0) + 1
        try:
            yield
        finally:
            self._requests[loop] -= 1

    @contextlib.asynccontextmanager
    async def open(
        self, method: str, path: str, body: dict[str, Any] | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """A response whose status is 200.

        Tried again where the server could not be reached or was overloaded: nothing was generated then.

        Raises:
            RequestRejectedError: the server refused the request (4xx).
            EngineError: it refuses the key, or failed (5xx).
            EngineDiedError: it cannot be reached, or its certificate is not to be trusted.
        """
        with self._counted():
            for attempt in range(_TRIES):
                last = attempt == _TRIES - 1
                try:
                    # Not only each read: one byte at a time would put it off for ever.
                    async with self.wait():
                        response = await self._session().request(
                            method, self.url + path, json=body, allow_redirects=False
                        )
                except aiohttp.SocketTimeoutError as e:  # it has the request, and may be at work on it
                    raise EngineDiedError(f"the server {self.url} is silent: {e}") from e
                except aiohttp.ClientSSLError as e:  # trying again would not help
                    raise EngineDiedError(_tls_message(self.url, e)) from e
                except aiohttp.ClientConnectionError as e:
                    if last:
                        raise EngineDiedError(f"the server {self.url} cannot be reached: {e}") from e
                except aiohttp.ClientError as e:
                    raise EngineDiedError(f"the request to {self.url} failed: {e}") from e
                except TimeoutError as e:
                    raise EngineDiedError(
                        f"the server {self.url} has not begun its answer in {self.patience:g} s"
                    ) from e
                else:
                    async with response:
                        if response.status == 200:
                            yield response
                            return
                        if response.status != 503 or last:
                            raise await self._refusal(path, response)
                await asyncio.sleep(_PAUSE_SECONDS * 2**attempt)

    async def json(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """The JSON value of a response; raises as `open`."""
        async with self.open(method, path, body) as response:
            content = await self._read(path, response, _MAX_BODY + 1)
            if len(content) > _MAX_BODY:
                raise EngineError(f"{self.url}{path} answered with more than {_MAX_BODY >> 20} MiB")
            try:
                return json.loads(content)
            except (ValueError, RecursionError) as e:
                raise EngineError(f"{self.url}{path} did not answer in JSON: is it an SGLang server?") from e

    def masked(self, text: str) -> str:
        """What the server said, without our key: it may have repeated it."""
        return masked(text, self._secrets)

    async def _read(self, path: str, response: aiohttp.ClientResponse, limit: int) -> bytes:
        """The body's first `limit` bytes."""
        content = bytearray()
        try:
            async with self.wait():
                while len(content) < limit and (block := await response.content.read(1 << 16)):
                    content += block
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as e:
            raise EngineDiedError(f"the answer of {self.url}{path} broke off: {e!r}") from e
        return bytes(content[:limit])

    async def _refusal(self, path: str, response: aiohttp.ClientResponse) -> EngineError:
        content = await self._read(path, response, _MAX_REFUSAL)
        text = self.masked(content.decode(errors="replace"))[:2000]
        message = f"{self.url}{path} answered {response.status}: {text}"
        if response.status in (401, 403):
            return EngineError(f"{message} (the API key is missing or wrong)")
        if 300 <= response.status < 400:
            return EngineError(f"{message} (redirects are not followed: give the server's own address)")
        if 400 <= response.status < 500:
            return rejection(message)
        return EngineError(message)

    async def leave_loop(self) -> None:
        """Close the running loop's session, unless a request needs it; the next request opens another."""
        loop = asyncio.get_running_loop()
        session = self._sessions.get(loop)
        if session is not None and not self._requests.get(loop):
            del self._sessions[loop]
            await session.close()

    async def close(self) -> None:
        """Close the sessions; those of other loops are closed there."""
        self._closed = True
        for loop, session in list(self._sessions.items()):
            if loop is asyncio.get_running_loop():
                await session.close()
            elif session.connector is None:
                continue
            elif loop.is_running():  # maybe for no longer than its reader takes to hear of this
                with contextlib.suppress(RuntimeError):
                    loop.call_soon_threadsafe(session.connector._close)
            else:  # its loop has ended: nobody can await its goodbye
                session.connector._close()
        for wait in list(self._waits):
            wait.end()


class _Wait:
    """One wait of one task. aiohttp does not tell who reads from a session that is being closed."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._limit = asyncio.timeout(server.patience)

    async def __aenter__(self) -> None:
        self._server._check_open()
        await self._limit.__aenter__()
        self._server._waits.add(self)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server._waits.discard(self)
        try:
            await self._limit.__aexit__(kind, error, trace)
        except TimeoutError:
            self._server._check_open()
            raise

    def end(self) -> None:
        """End it now, from any thread."""
        with contextlib.suppress(RuntimeError):  # its loop is closed
            self._loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        if self in self._server._waits:
            self._limit.reschedule(self._loop.time())


def _checked_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018  # raises where it is no number
    except ValueError as e:
        raise ValueError(f"this is no URL of a server: {e}") from None
    # Without the URL itself: what should not be in it is a secret most times.
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise ValueError(
            "the URL of a server holds no user, password or query: give the key as api_key, and what comes "
            "before ?, # and after @ as the URL"
        )
    host = parts.hostname or ""
    if parts.scheme not in ("http", "https") or not host or any(c.isspace() for c in url):
        raise ValueError(f"{url!r} is no URL of a server: it starts with http:// or https://")
    return url.rstrip("/").removesuffix("/v1").rstrip("/")  # "/v1" is where OpenAI's clients look


def _tls_message(url: str, error: aiohttp.ClientSSLError) -> str:
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return (
            f"the certificate of {url} is not trusted: {error.certificate_error}. For a server with an "
            "authority of its own, or a self-signed certificate, pass that certificate's file: "
            "tls_ca_file='...'"
        )
    return f"no TLS connection to {url}: {error} (does the server speak https, or http?)"


__all__ = ["Server"]
