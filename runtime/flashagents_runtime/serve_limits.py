"""What one client of `flashagents serve` may ask for: an ASGI layer around SGLang's HTTP application.

SGLang reads a body of any size into memory, and serves any number of requests and sessions to anyone who
holds the key. The layer counts by key (by address, where there is none) and refuses in HTTP's own words.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import msgspec

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_SMALL_BODY = 1 << 16  # bytes of a session's request or answer that is looked into


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a server; 0 is no limit.

    Attributes:
        body_bytes: longest body of a request.
        requests_per_key: requests of one key that may be running at a time.
        sessions_per_key: SGLang sessions (`/open_session`) of one key that may be open at a time.
    """

    body_bytes: int = 64 << 20
    requests_per_key: int = 1024
    sessions_per_key: int = 64


class LimitLayer:
    """The layer: give it the application, and the server this.

    A session that SGLang has closed by its time-out counts until its client closes it as well.

    Args:
        app: an ASGI application.
        limits: see `Limits`.
    """

    def __init__(self, app: App, limits: Limits) -> None:
        self._app = app
        self._limits = limits
        self._running: Counter[str] = Counter()
        self._sessions: dict[str, set[object]] = {}  # ids, and one object for each that is opening

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        limits, key = self._limits, _key(scope)
        if limits.requests_per_key and self._running[key] >= limits.requests_per_key:
            await _refuse(send, 429, f"{limits.requests_per_key} requests of this key are running already")
            return
        path = scope["path"].rstrip("/")
        open_now = len(self._sessions.get(key, ()))
        if limits.sessions_per_key and path == "/open_session" and open_now >= limits.sessions_per_key:
            await _refuse(send, 429, f"{open_now} sessions of this key are open already: close some first")
            return
        length = (_header(scope, b"content-length") or "").strip()
        if limits.body_bytes and length.isdigit() and len(length.lstrip("0")) > 18:
            length = str(limits.body_bytes + 1)  # no number that int() should be given
        if limits.body_bytes and length.isdigit() and int(length) > limits.body_bytes:
            await _refuse(send, 413, f"the body is longer than {limits.body_bytes} bytes")
            return
        self._running[key] += 1
        opening = object() if path == "/open_session" else None
        if opening is not None:  # counts while it is being opened
            self._sessions.setdefault(key, set()).add(opening)
        try:
            await self._serve(path, key, scope, receive, send)
        finally:
            if opening is not None:
                self._forget(key, opening)
            self._running[key] -= 1
            if not self._running[key]:
                del self._running[key]

    async def _serve(self, path: str, key: str, scope: Scope, receive: Receive, send: Send) -> None:
        body = _Body(receive, self._limits.body_bytes)
        answer = _Answer(send, body)
        try:
            await self._app(scope, body.receive, answer.send)
        except _TooLong:
            pass
        except Exception:
            if not body.too_long:  # the application's own; ours may come back wrapped
                raise
        if body.too_long:
            if not answer.begun:
                await _refuse(send, 413, f"the body is longer than {self._limits.body_bytes} bytes")
            return
        if answer.status != 200:
            return
        if path == "/open_session":
            session = _json(answer.start)
            if isinstance(session, str):
                self._sessions.setdefault(key, set()).add(session)
        elif path == "/close_session":
            asked = _json(body.start)
            if isinstance(asked, dict):
                self._forget(key, str(asked.get("session_id")))

    def _forget(self, key: str, session: object) -> None:
        mine = self._sessions.get(key, set())
        mine.discard(session)
        if not mine:
            self._sessions.pop(key, None)


class _TooLong(Exception):
    """The body has passed its limit."""


class _Body:
    """The way in: counts, and keeps the beginning."""

    def __init__(self, receive: Receive, limit: int) -> None:
        self._receive = receive
        self._limit = limit
        self._size = 0
        self.start = b""
        self.too_long = False

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            data = message.get("body", b"")
            self._size += len(data)
            if self._limit and self._size > self._limit:
                self.too_long = True
                raise _TooLong
            self.start += data[: _SMALL_BODY - len(self.start)]
        return message


class _Answer:
    """The way out: keeps the status and the beginning; silent once the body has passed its limit."""

    def __init__(self, send: Send, body: _Body) -> None:
        self._send = send
        self._body = body
        self.begun = False
        self.status = 0
        self.start = b""

    async def send(self, message: Message) -> None:
        if self._body.too_long and not self.begun:
            return  # the application's own words for what was ours to refuse
        if message["type"] == "http.response.start":
            self.begun, self.status = True, message["status"]
        elif message["type"] == "http.response.body":
            self.start += message.get("body", b"")[: _SMALL_BODY - len(self.start)]
        await self._send(message)


def _header(scope: Scope, name: bytes) -> str | None:
    for key, value in scope["headers"]:
        if key.lower() == name:
            text: str = value.decode("latin-1")
            return text
    return None


def _key(scope: Scope) -> str:
    client = scope.get("client")
    return _header(scope, b"authorization") or f"address {client[0] if client else 'unknown'}"


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


async def _refuse(send: Send, status: int, message: str) -> None:
    body = json.dumps({"error": {"message": message, "code": status}}).encode()
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


__all__ = ["LimitLayer", "Limits"]
