"""Ctrl-C in the demo, and the stop button of a notebook (SIGINT to its kernel) while an agent speaks."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import nbformat
import psutil
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from helpers import stub_host
from helpers.examples import EXAMPLES
from helpers.notebooks import jupyter_folders, tiny_model

pytestmark = pytest.mark.long

# Stub hosts that say a token every 20 ms, instead of real ones.
SETUP = f"""
import asyncio, os, sys
from autogen_agentchat.agents import AssistantAgent
from autogen_core.models import UserMessage
from flashagents_autogen import FlashAgentsChatCompletionClient
from flashagents_runtime.embedded import EmbeddedEngine, host_process
host_process.host_command = lambda fd: [sys.executable, {stub_host.__file__!r}, str(fd)]
EmbeddedEngine._resolve_model = lambda self: "slow"
client = FlashAgentsChatCompletionClient({{folder!r}}, max_tokens=400)
agent = AssistantAgent("guide", model_client=client, model_client_stream=True)
question = [UserMessage(content="Name three sights.", source="user")]
"""
CELLS = {
    "create": "print('begun', flush=True); await client.create(question)",
    "stream": "async for piece in client.create_stream(question): print(piece, flush=True)",
    "agent": "async for item in agent.run_stream(task='Go.'): print(item, flush=True)",
}
LOOK = """
host = client.engine.engine._host
for _ in range(500):
    if not host._streams: break
    await asyncio.sleep(0.01)
ours = [task for task in asyncio.all_tasks() if "flashagents" in repr(task) or "autogen" in repr(task)]
print(host._process.pid, len(host._streams), len(host._calls), len(ours))
"""
AGAIN = "print((await client.create(question, extra_create_args={'max_tokens': 2})).content)"


@pytest.mark.timeout(120)
async def test_the_stop_button_stops_the_request_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jupyter_folders(tmp_path, monkeypatch)
    notebook = nbformat.v4.new_notebook()
    runner = NotebookClient(notebook, timeout=60, kernel_name="python3")

    async def run(source: str) -> tuple[nbformat.NotebookNode, asyncio.Task[nbformat.NotebookNode]]:
        cell = nbformat.v4.new_code_cell(source)
        notebook.cells.append(cell)
        return cell, asyncio.ensure_future(runner.async_execute_cell(cell, len(notebook.cells) - 1))

    async def text(source: str) -> str:
        cell, done = await run(source)
        await done
        return "".join(out.text for out in cell.outputs if out.get("name") == "stdout")

    async with runner.async_setup_kernel():
        await text(SETUP.replace("{folder!r}", repr(str(tiny_model(tmp_path)))))
        assert (await text(AGAIN)).strip() == "t0 t1"
        pid, *_ = (await text(LOOK)).split()
        for name in ("create", "stream", "agent"):
            cell, done = await run(CELLS[name])
            async with asyncio.timeout(30):
                while not cell.outputs:
                    await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)  # `create` has sent its request
            await runner.km.interrupt_kernel()
            with pytest.raises(CellExecutionError, match=r"KeyboardInterrupt|CancelledError"):
                await done
            assert (await text(LOOK)).split() == [pid, "0", "0", "0"], name
            assert (await text(AGAIN)).strip() == "t0 t1", name
        await text("await client.close()")
        assert not psutil.pid_exists(int(pid)) or psutil.Process(int(pid)).status() == "zombie"


# The demo twice: with a host that never gets ready, then with one that says a token every 20 ms.
DEMO = f"""
import runpy, signal, sys
from flashagents_runtime.embedded import EmbeddedEngine, host_process
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background ignores it
host_process.host_command = lambda fd: [sys.executable, {stub_host.__file__!r}, str(fd)]
host_process._GRACE_SECONDS = 0.2  # the first of them does not listen
demo = runpy.run_path({str(EXAMPLES / "travel_planner" / "main.py")!r})
for mode in ("never-ready", "slow"):
    EmbeddedEngine._resolve_model = lambda self: mode
    print("status", demo["main"](["--model", {{folder!r}}, "--max-tokens", "400"]), flush=True)
"""


def test_ctrl_c_in_the_demo(tmp_path: Path) -> None:
    """While the engine starts, and while the first agent speaks."""
    code = DEMO.replace("{folder!r}", repr(str(tiny_model(tmp_path))))
    with tempfile.TemporaryDirectory(prefix="fa-test") as temporary:  # short: sockets lie in it
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1", "TMPDIR": temporary},
        )
        assert process.stdout is not None and process.stderr is not None
        shown = ""

        def read_until(text: str) -> None:
            nonlocal shown
            while text not in shown:
                read = process.stdout.read(1) if process.stdout is not None else ""
                assert read, shown
                shown += read

        def host_folders() -> list[str]:
            return [name for name in os.listdir(temporary) if name.startswith("flashagents-")]

        for begun in ("", "t3 "):
            while not host_folders():
                assert process.poll() is None
            read_until(begun)
            hosts = psutil.Process(process.pid).children(recursive=True)
            process.send_signal(signal.SIGINT)
            shown = ""
            read_until("status 130")
            _, alive = psutil.wait_procs(hosts, timeout=20)
            assert not alive and not host_folders(), "a host outlived the demo"
        _, errors = process.communicate(timeout=30)
        assert process.returncode == 0
        assert errors.count("interrupted") == 2 and "Traceback" not in errors
