"""The limits around SGLang's own HTTP application, without starting an engine behind it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.engine

CODE = """
import asyncio, json, sys
from flashagents_runtime import cpu_shims
cpu_shims.install()
from flashagents_runtime import sglang_seams as seams
from flashagents_runtime.serve_limits import LimitLayer, Limits
app = seams.symbol("sglang.srt.entrypoints.http_server.app")
app.add_middleware(LimitLayer, limits=Limits(body_bytes=1000))

async def status(path, pieces):
    sent = []
    messages = [
        {"type": "http.request", "body": piece, "more_body": i < len(pieces) - 1}
        for i, piece in enumerate(pieces)
    ]
    async def receive():
        return messages.pop(0) if messages else {"type": "http.disconnect"}
    async def send(message):
        sent.append(message)
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "path": path,
        "raw_path": path.encode(), "query_string": b"", "headers": [(b"content-type", b"application/json")],
        "client": ("1.2.3.4", 1), "server": ("x", 1), "scheme": "http", "root_path": "",
    }
    await app(scope, receive, send)
    return sent[0]["status"]

async def main():
    print(json.dumps({
        "long": await status("/generate", [b"x" * 2000]),
        "in pieces": await status("/generate", [b"x" * 600, b"x" * 600]),
        "long, elsewhere": await status("/v1/completions", [b"x" * 2000]),
        "short": await status("/generate", [b"no json"]),
    }))

asyncio.run(main())
"""


def test_a_body_that_is_too_long_is_refused_by_sglangs_application() -> None:
    command = [sys.executable, "-W", "ignore", "-c", CODE]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=110)
    assert answer.returncode == 0, answer.stderr[-2000:]
    found = json.loads(answer.stdout.splitlines()[-1])
    short = found.pop("short")
    assert set(found.values()) == {413}
    assert short in (400, 422), "what is short enough reaches SGLang, which says that it is no JSON"
