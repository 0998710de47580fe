"""HTTP to one server: a session for each event loop, and errors by kind."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import weakref
from collections.abc import AsyncIterator
from typing import Any

import aiohttp

from ..errors import EngineClosedError, EngineDiedError, EngineError, RequestRejectedError

_TRIES = 3
_PAUSE_SECONDS = 0.2


class Server:
    """A server's address, with what every request to it needs.

    Args:
        url: such as "http://127.0.0.1:30000".
        api_key: sent as a bearer token; never shown.
        tls: for servers whose certificate the system does not know.
        connect_timeout: seconds until a connection must stand.
        read_timeout: longest silence of a server that is answering, seconds.
    """

    def __init__(
        self,
        url: str,
        api_key: str | None,
        tls: ssl.SSLContext | None,
        connect_timeout: float,
        read_timeout: float,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"{url!r} is no URL of a server: it starts with http:// or https://")
        self.url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._tls = tls
        self._timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=connect_timeout, sock_read=read_timeout
        )
        self._sessions: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, aiohttp.ClientSession]
        self._sessions = weakref.WeakKeyDictionary()
        self._closed = False

    def _session(self) -> aiohttp.ClientSession:
        if self._closed:
            raise EngineClosedError("this RemoteEngine was closed; build a new one")
        loop = asyncio.get_running_loop()
        session = self._sessions.get(loop)
        if session is None or session.closed:
            connector = aiohttp.TCPConnector(limit=0, ssl=self._tls if self._tls is not None else True)
            session = aiohttp.ClientSession(connector=connector, headers=self._headers, timeout=self._timeout)
            self._sessions[loop] = session
        return session

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
        for attempt in range(_TRIES):
            last = attempt == _TRIES - 1
            try:
                response = await self._session().request(method, self.url + path, json=body)
            except aiohttp.SocketTimeoutError as e:  # it has the request, and may be at work on it
                raise EngineDiedError(f"the server {self.url} is silent: {e}") from e
            except aiohttp.ClientSSLError as e:  # trying again would not help
                raise EngineDiedError(_tls_message(self.url, e)) from e
            except aiohttp.ClientConnectionError as e:
                if last:
                    raise EngineDiedError(f"the server {self.url} cannot be reached: {e}") from e
            except aiohttp.ClientError as e:
                raise EngineDiedError(f"the request to {self.url} failed: {e}") from e
            else:
                async with response:
                    if response.status == 200:
                        yield response
                        return
                    if response.status != 503 or last:
                        raise await _refusal(self.url + path, response)
            await asyncio.sleep(_PAUSE_SECONDS * 2**attempt)

    async def json(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """The JSON value of a response; raises as `open`."""
        async with self.open(method, path, body) as response:
            try:
                return await response.json(content_type=None)
            except (ValueError, aiohttp.ClientError) as e:
                raise EngineError(f"{self.url}{path} did not answer in JSON: is it an SGLang server?") from e

    async def close(self) -> None:
        """Close the sessions; those of other loops are closed there."""
        self._closed = True
        for loop, session in list(self._sessions.items()):
            if loop is asyncio.get_running_loop():
                await session.close()
            elif loop.is_running():
                asyncio.run_coroutine_threadsafe(session.close(), loop)
            elif session.connector is not None:  # its loop has ended: nobody can await its goodbye
                session.connector._close()


def _tls_message(url: str, error: aiohttp.ClientSSLError) -> str:
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return (
            f"the certificate of {url} is not trusted: {error.certificate_error}. For a server with an "
            "authority of its own, or a self-signed certificate, pass that certificate's file: "
            "tls_ca_file='...'"
        )
    return f"no TLS connection to {url}: {error} (does the server speak https, or http?)"


async def _refusal(url: str, response: aiohttp.ClientResponse) -> EngineError:
    text = (await response.text())[:2000]
    message = f"{url} answered {response.status}: {text}"
    if response.status in (401, 403):
        return EngineError(f"{message} (the API key is missing or wrong)")
    if 400 <= response.status < 500:
        return RequestRejectedError(message)
    return EngineError(message)


__all__ = ["Server"]
