"""`flashagents serve` within bounds: bodies, running requests and sessions of a key; where it listens."""

from __future__ import annotations

import ast
import asyncio
import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import pytest

from flashagents_runtime.host.build import default_args
from flashagents_runtime.host.ranks import meet_in_a_file
from flashagents_runtime.serve import check_exposure, server_argv
from flashagents_runtime.serve_limits import LimitLayer, Limits


class Application:
    """An ASGI application like SGLang's: reads the body, opens and closes sessions, waits where told."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.bodies: list[bytes] = []
        self.sessions = 0
        self.wrap = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        try:
            while (message := await receive())["type"] == "http.request":
                body += message.get("body", b"")
                if not message.get("more_body"):
                    break
        except Exception:
            if not self.wrap:
                raise
            await self._answer(send, 400, {"detail": "There was an error parsing the body"})
            return
        self.bodies.append(body)
        await self.gate.wait()
        if scope["path"] == "/fail":
            raise RuntimeError("the application's own")
        self.sessions += 1
        await self._answer(send, 200, f"session-{self.sessions}" if scope["path"] == "/open_session" else {})

    async def _answer(self, send: Any, status: int, content: Any) -> None:
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": json.dumps(content).encode()})


async def ask(
    layer: LimitLayer,
    path: str = "/generate",
    body: bytes | list[bytes] = b"{}",
    key: str | None = "Bearer a",
    client: str = "1.2.3.4",
    length: str | None = None,
) -> tuple[int, Any]:
    """Status and JSON of a request."""
    pieces = [body] if isinstance(body, bytes) else list(body)
    messages = [
        {"type": "http.request", "body": piece, "more_body": i < len(pieces) - 1}
        for i, piece in enumerate(pieces)
    ]
    headers = [] if key is None else [(b"authorization", key.encode())]
    if length is not None:
        headers.append((b"content-length", length.encode()))
    sent: list[Any] = []

    async def receive() -> Any:
        return messages.pop(0) if messages else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "path": path, "headers": headers, "client": (client, 1)}
    await layer(scope, receive, send)
    assert [m["type"] for m in sent] == ["http.response.start", "http.response.body"]
    return sent[0]["status"], json.loads(sent[1]["body"])


@pytest.mark.parametrize("wrap", [False, True], ids=["passes-errors-on", "answers-errors-itself"])
async def test_a_body_that_is_too_long_is_refused(wrap: bool) -> None:
    app = Application()
    app.wrap = wrap
    layer = LimitLayer(app, Limits(body_bytes=100))
    assert (await ask(layer, body=b"x" * 100))[0] == 200
    assert (await ask(layer, body=[b"x" * 60, b"x" * 41]))[0] == 413
    assert (await ask(layer, body=[b"x" * 50] * 1000))[0] == 413
    for length in ("101", "1" * 30, "9" * 5000):
        status, answer = await ask(layer, body=b"", length=length)
        assert (status, answer["error"]["code"]) == (413, 413)
    for length in ("", "abc", "-5", "0x99", "100"):  # what is no number says nothing; the body is counted
        assert (await ask(layer, body=b"x" * 10, length=length))[0] == 200
        assert (await ask(layer, body=b"x" * 101, length="5"))[0] == 413
    assert max(map(len, app.bodies)) <= 100, "it has read more than it may"


async def test_running_requests_are_counted_by_key_and_by_address_without_one() -> None:
    app = Application()
    app.gate.clear()
    layer = LimitLayer(app, Limits(requests_per_key=2))
    running = [asyncio.create_task(ask(layer)) for _ in range(2)]
    running += [asyncio.create_task(ask(layer, key=None, client=c)) for c in ("x", "x", "y", "y")]
    await asyncio.sleep(0)
    assert (await ask(layer))[0] == 429
    assert (await ask(layer, key=None, client="x"))[0] == 429
    other = asyncio.create_task(ask(layer, key="Bearer b"))
    app.gate.set()
    assert [status for status, _ in await asyncio.gather(*running, other)] == [200] * 7
    assert (await ask(layer))[0] == 200
    assert not layer._running, "it keeps an entry for every key that ever asked"


async def test_a_request_that_fails_or_is_cancelled_is_counted_no_more() -> None:
    app = Application()
    layer = LimitLayer(app, Limits(requests_per_key=1))
    with pytest.raises(RuntimeError, match="own"):
        await ask(layer, "/fail")
    app.gate.clear()
    task = asyncio.create_task(ask(layer))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    app.gate.set()
    assert (await ask(layer))[0] == 200


async def test_open_sessions_are_counted_by_key() -> None:
    app = Application()
    layer = LimitLayer(app, Limits(sessions_per_key=2))
    _, first = await ask(layer, "/open_session")
    assert (await ask(layer, "/open_session"))[0] == 200
    assert (await ask(layer, "/open_session"))[0] == 429
    assert (await ask(layer, "/open_session", key="Bearer b"))[0] == 200
    close = json.dumps({"session_id": first}).encode()
    await ask(layer, "/close_session", close, key="Bearer b")  # not b's: changes nothing for a
    assert (await ask(layer, "/open_session"))[0] == 429
    await ask(layer, "/close_session", b"no json")
    await ask(layer, "/close_session", close)
    assert (await ask(layer, "/open_session"))[0] == 200
    assert (await ask(layer))[0] == 200  # ordinary requests do not count as sessions


async def test_a_burst_of_sessions_is_counted_while_they_open() -> None:
    app = Application()
    app.gate.clear()
    layer = LimitLayer(app, Limits(sessions_per_key=3))
    burst = [asyncio.create_task(ask(layer, "/open_session")) for _ in range(10)]
    await asyncio.sleep(0)
    app.gate.set()
    statuses = [status for status, _ in await asyncio.gather(*burst)]
    assert sorted(statuses) == [200] * 3 + [429] * 7


async def test_without_limits_everything_passes_and_so_does_what_is_no_request() -> None:
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["type"])

    await LimitLayer(app, Limits())({"type": "lifespan"}, None, None)  # type: ignore[arg-type]
    assert seen == ["lifespan"]
    layer = LimitLayer(Application(), Limits(body_bytes=0, requests_per_key=0, sessions_per_key=0))
    for _ in range(5):
        assert (await ask(layer, "/open_session", b"x" * 10_000))[0] == 200


# ---- where it listens, and its key


def test_it_listens_on_the_loopback_unless_told() -> None:
    for cuda in (False, True):
        assert not any(arg.startswith("--host") for arg in server_argv("/m", default_args(cuda), []))
    assert _default("host") == "127.0.0.1"


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.0.5.1"])
def test_the_loopback_needs_no_key(host: str) -> None:
    assert check_exposure(host, None) is None


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.5", "example.org"])
def test_an_open_server_without_a_key_is_warned_of(host: str) -> None:
    assert "--api-key" in str(check_exposure(host, None))
    assert check_exposure(host, "key") is None


def sglang_source(path: str) -> ast.Module:
    """A source file of the installed SGLang, which is not imported."""
    spec = importlib.util.find_spec("sglang")
    assert spec is not None and spec.submodule_search_locations
    return ast.parse((Path(spec.submodule_search_locations[0]) / path).read_text(encoding="utf-8"))


def _default(name: str) -> Any:
    for node in ast.walk(sglang_source("srt/server_args.py")):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == name:
            assert node.value is not None
            return ast.literal_eval(node.value)
    raise AssertionError(f"SGLang has no argument {name}")


@pytest.mark.parametrize(
    ("args", "alone"),
    [
        ({}, True),
        ({"tp_size": 1, "dp_size": 1, "nnodes": 1, "pp_size": None}, True),
        ({"tp_size": 2}, False),
        ({"dp_size": 2}, False),
        ({"nnodes": 2}, False),
        ({"dist_init_addr": "10.0.0.1:5000"}, False),
    ],
)
def test_an_engine_of_one_rank_opens_no_store_to_the_network(
    args: dict[str, Any], alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    variable = "SGLANG_DISTRIBUTED_INIT_METHOD_OVERRIDE"
    for name in (variable, "GLOO_SOCKET_IFNAME"):
        monkeypatch.setenv(name, "x")  # so that it is put back
        monkeypatch.delenv(name)
    assert meet_in_a_file(args, "/run/x") is alone
    assert os.environ.get(variable) == ("file:///run/x" if alone else None)
    assert os.environ.get("GLOO_SOCKET_IFNAME") == ("lo" if alone else None)


def test_no_key_and_no_foreign_code_unless_asked() -> None:
    assert _default("trust_remote_code") is False
    assert _default("api_key") is None
    for cuda in (False, True):
        assert not {"trust_remote_code", "api_key", "host"} & set(default_args(cuda))


def test_sglang_compares_keys_in_constant_time() -> None:
    """The key is checked by SGLang's middleware: every comparison in it is `secrets.compare_digest`."""
    decide = next(
        node
        for node in ast.walk(sglang_source("srt/utils/auth.py"))
        if isinstance(node, ast.FunctionDef) and node.name == "decide_request_auth"
    )
    digests = [
        node for node in ast.walk(decide) if isinstance(node, ast.Attribute) and node.attr == "compare_digest"
    ]
    assert digests
    compared = {
        name.id
        for node in ast.walk(decide)
        if isinstance(node, ast.Compare)
        for name in ast.walk(node)
        if isinstance(name, ast.Name)
    }
    assert not compared & {"api_key", "admin_api_key", "expected_token"}
