"""Model clients of the variants: ours on an engine, AutoGen's OpenAI client on a stock server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
from autogen_core.models import ChatCompletionClient, ModelFamily, ModelInfo

from flashagents_autogen import FlashAgentsChatCompletionClient
from flashagents_runtime.embedded import EmbeddedEngine

#: Makes a client whose answers are exactly so many tokens.
ClientFactory = Callable[[int], ChatCompletionClient]
_INFO = ModelInfo(
    vision=False,
    function_calling=False,
    json_output=False,
    family=ModelFamily.UNKNOWN,
    structured_output=False,
)


def ours(engine: EmbeddedEngine, model: Path) -> ClientFactory:
    """`FlashAgentsChatCompletionClient` on an engine that is its owner's."""

    def make(tokens: int) -> ChatCompletionClient:
        return FlashAgentsChatCompletionClient(
            str(model), engine=engine, max_tokens=tokens, temperature=1.0, ignore_eos=True
        )

    return make


def openai(base_url: str, key: str) -> ClientFactory:
    """AutoGen's own `OpenAIChatCompletionClient`; ImportError where `autogen-ext[openai]` is missing."""
    from autogen_ext.models.openai import OpenAIChatCompletionClient

    def make(tokens: int) -> ChatCompletionClient:
        return OpenAIChatCompletionClient(
            model="default",
            base_url=base_url,
            api_key=key,
            model_info=_INFO,
            max_tokens=tokens,
            temperature=1.0,
            include_name_in_message=False,
            extra_body={"ignore_eos": True},
        )

    return make


@asynccontextmanager
async def stock_server(model: Path, args: Mapping[str, Any]) -> AsyncGenerator[tuple[str, str], None]:
    """SGLang's own server without our plug-in, on the loopback: its `/v1` address and its key."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    key = secrets.token_hex(16)
    argv = [f"--model-path={model}", f"--port={port}", f"--api-key={key}"]
    for name, value in args.items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(value, list):
            argv += [flag, *map(str, value)]
        elif value is not False:
            argv.append(flag if value is True else f"{flag}={value}")
    with tempfile.TemporaryFile("w+") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(Path(__file__).with_name("stock_server.py")),
            *argv,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
        )
        try:
            await _answers(process, f"http://127.0.0.1:{port}/v1/models", key, log)
            yield f"http://127.0.0.1:{port}/v1", key
        finally:
            if process.returncode is None:
                children = psutil.Process(process.pid).children(recursive=True)
                process.terminate()
                await process.wait()
                for child in children:  # whom SGLang's own clean-up has left
                    with contextlib.suppress(psutil.NoSuchProcess):
                        child.kill()


async def _answers(process: asyncio.subprocess.Process, url: str, key: str, log: Any) -> None:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"})
    for _ in range(600):
        if process.returncode is not None:
            log.seek(0)
            raise RuntimeError(f"the stock server has ended:\n{log.read()[-4000:]}")
        try:
            with await asyncio.to_thread(urllib.request.urlopen, request, timeout=2) as answer:
                json.load(answer)
                return
        except (urllib.error.URLError, OSError):
            await asyncio.sleep(0.5)
    raise TimeoutError("the stock server does not answer after 300 s")


def flush_server(base_url: str, key: str) -> None:
    """Empty a server's cache."""
    url, headers = base_url.removesuffix("/v1") + "/flush_cache", {"Authorization": f"Bearer {key}"}
    request = urllib.request.Request(url, method="POST", headers=headers)
    for _ in range(100):
        try:
            with urllib.request.urlopen(request, timeout=10):
                return
        except urllib.error.HTTPError:  # not idle yet
            time.sleep(0.02)
    raise RuntimeError("the server's cache cannot be emptied")
