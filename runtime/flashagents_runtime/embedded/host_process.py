"""One life of a host process, seen from the application. Everything here runs in the I/O thread."""

from __future__ import annotations

import asyncio
import copy
import itertools
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .. import wire
from ..adapter_errors import rejection
from ..errors import EngineClosedError, EngineDiedError, EngineError, EngineStartError, RequestRejectedError
from ..redact import masked, secret_values
from ..types import Delta, EngineInfo, GenerateRequest, Progress
from .host_log import LogPipe, is_noise, last_exception, stage_of
from .run_dir import RunDir, make_run_dir
from .stream import Stream, deliver
from .window import Window

logger = logging.getLogger("flashagents_runtime.engine")

_GRACE_SECONDS = 10.0  # for a host that was asked to end
_LOG_GRACE_SECONDS = 1.0  # for the last words of a host that died


def host_command(fd: int) -> list[str]:
    """The host's command line. -P: the user's working folder is no place to import modules from."""
    return [sys.executable, "-P", "-m", "flashagents_runtime.host", str(fd)]


class HostProcess(asyncio.Protocol):
    """Starts a host, keeps the socket to it, and tells every waiting call when it ends.

    ::

        start() ──► starting ──Ready──► up ──┐
                       │                     ├── process ends ──► ended (waiting calls fail)
                       └──Refused────────────┘
    """

    def __init__(self, model: str, engine_args: dict[str, Any], progress: Callable[[Progress], None]) -> None:
        self._model = model
        self._engine_args = engine_args
        self._secrets = secret_values(engine_args)
        self._progress = progress
        self._log: deque[str] = deque(maxlen=40)
        self._reader = wire.FrameReader(wire.FromHost)
        self._streams: dict[str, Stream] = {}
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._call_ids = itertools.count(1)
        self._closing = False
        self._refusal: str | None = None
        self._error: EngineError | None = None
        self._transport: asyncio.Transport | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._watched = False  # a thread waits for its end
        self._run_dir: RunDir | None = None
        self._window: Window | None = None
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._ready: asyncio.Future[EngineInfo] = loop.create_future()
        self._ended: asyncio.Future[None] = loop.create_future()

    # ---- start

    async def start(self) -> EngineInfo:
        """Spawn the host and wait until its engine is up. Raises EngineStartError."""
        try:
            await self._launch()
        except (OSError, ValueError, RuntimeError) as e:  # no descriptor, process, thread or memory was free
            self._refusal = f"its host process could not be started: {e}"
            if self._watched:
                self.kill()  # `_finish` does the rest
            else:
                await self._finish(self._unwatched_end(), None)
        return await asyncio.shield(self._ready)

    async def _launch(self) -> None:
        ours, theirs = socket.socketpair()
        try:
            self._run_dir = make_run_dir()
            folder, token = str(self._run_dir.path), self._run_dir.token
            setup = wire.Setup(self._model, self._engine_args, os.getpid(), folder, token)
            wire.encode(setup)  # before there is a process that waits for it
            process = self._process = self._spawn(theirs)
            log_pipe = LogPipe(self._on_log_line)
            threading.Thread(
                target=self._watch, args=(process.pid, log_pipe), name="flashagents-host-watch", daemon=True
            ).start()
            self._watched = True
            await self._loop.connect_read_pipe(lambda: log_pipe, process.stdout)
            self._transport, _ = await self._loop.create_connection(lambda: self, sock=ours)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self.send(setup)
        self._progress(Progress("Starting the engine's process", 0.02))

    def _unwatched_end(self) -> int:
        """The exit status of a host that nobody watches yet, which has ended then; 0 where there is none."""
        if self._process is None:
            return 0
        self.kill()
        assert self._process.stdout is not None
        self._process.stdout.close()
        return self._process.wait()

    def _spawn(self, theirs: socket.socket) -> subprocess.Popen[bytes]:
        assert self._run_dir is not None
        env = dict(os.environ, TMPDIR=str(self._run_dir.path), PYTHONUNBUFFERED="1")
        # The host must find this very package, also when it is not installed but on sys.path.
        root = str(Path(__file__).parents[2])
        paths = [root, *filter(None, env.get("PYTHONPATH", "").split(os.pathsep))]
        env["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
        return subprocess.Popen(
            host_command(theirs.fileno()),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=[theirs.fileno()],
            env=env,
            start_new_session=True,  # Ctrl-C in the terminal is the application's, not the host's
        )

    def _on_log_line(self, line: str) -> None:
        line = masked(line, self._secrets)  # SGLang logs all its arguments
        if not is_noise(line):
            self._log.append(line)
        logger.debug("%s", line)
        stage = stage_of(line)
        if stage is not None and not self._ready.done():
            self._progress(stage)

    # ---- frames

    def send(self, message: wire.ToHost) -> None:
        """Send a frame; dropped where the host has ended, since every waiting call hears of that."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(wire.encode(message))

    def data_received(self, data: bytes) -> None:
        """asyncio.Protocol: bytes have come from the host."""
        try:
            messages = self._reader.feed(data)
        except Exception as e:
            logger.exception("the engine's host sent what cannot be read; ending it")
            self._log.append(f"unreadable frame from the host: {e}")
            self.kill()
            return
        for message in messages:
            self._on_message(message)

    def _on_message(self, message: wire.FromHost) -> None:
        if isinstance(message, wire.Deltas):
            self._on_deltas(message.items)
        elif isinstance(message, wire.Failed):
            stream = self._streams.pop(message.rid, None)
            if stream is not None:
                error = rejection if message.rejected else EngineError
                deliver([(stream, error(message.message))])
        elif isinstance(message, wire.Answer):
            future = self._calls.pop(message.id, None)
            if future is not None and not future.done():
                if message.error is None:
                    future.set_result(message.value)
                else:
                    future.set_exception(EngineError(message.error))
        elif isinstance(message, wire.Progressed):
            self._progress(message.progress)
        elif isinstance(message, wire.Ready):
            if not self._ready.done():
                self._ready.set_result(message.info)
        else:
            self._refusal = masked(message.message, self._secrets)

    def _on_deltas(self, items: list[tuple[str, Delta]]) -> None:
        streams = self._streams
        out: list[tuple[Stream, Delta | Exception]] = []
        for rid, delta in items:
            stream = streams.get(rid)
            if stream is None:
                continue  # its reader has left
            if delta.result is not None:
                del streams[rid]
            out.append((stream, delta))
        deliver(out)

    # ---- requests and calls

    def open(self, request: GenerateRequest, stream: Stream) -> None:
        """Send a request; its deltas, or one error, will go into `stream`."""
        if self._error is not None:
            deliver([(stream, copy.copy(self._error))])
        elif request.rid in self._streams:
            deliver([(stream, RequestRejectedError(f"request id {request.rid} is in use already"))])
        else:
            try:
                self.send(wire.Generate(request))
            except ValueError as e:
                deliver([(stream, RequestRejectedError(str(e)))])
            else:
                self._streams[request.rid] = stream

    def abort(self, rid: str) -> None:
        """Abort a request; its stream goes on to its last delta, with finish reason "abort"."""
        if rid in self._streams:
            self.send(wire.Abort(rid))

    def leave(self, rid: str) -> None:
        """Nobody reads this request any more: abort it, unless it has ended."""
        if self._streams.pop(rid, None) is not None:
            self.send(wire.Abort(rid))

    def close_session(self, session_id: str) -> None:
        """A prefill session is over."""
        self.send(wire.CloseSession(session_id))

    async def call(self, method: Any, arguments: dict[str, Any] | None = None) -> Any:
        """Call a method of the host; raises EngineDiedError where it ends before it answers."""
        if self._error is not None:
            raise copy.copy(self._error)
        call_id = next(self._call_ids)
        future: asyncio.Future[Any] = self._loop.create_future()
        self._calls[call_id] = future
        try:
            self.send(wire.Call(call_id, method, arguments or {}))
            return await future
        finally:
            self._calls.pop(call_id, None)

    async def open_window(self, window: Window) -> None:
        """Let others look at the engine for as long as it lives."""
        if self._run_dir is not None and self._error is None:
            self._window = window
            await window.open(self._run_dir.path)

    # ---- the end

    @property
    def error(self) -> EngineError | None:
        """Why the host is of no more use; None while it is."""
        return self._error

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio.Protocol: the host has closed the socket, so it has ended or will at once."""
        if not self._ended.done():
            self._loop.call_later(_GRACE_SECONDS, self.kill)

    def kill(self) -> None:
        """SIGKILL the host and all that it has started."""
        if self._process is not None and self._process.returncode is None:
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            except ProcessLookupError:
                return

    def _watch(self, pid: int, log_pipe: LogPipe) -> None:
        """In a thread of its own: wait for the host's end, without reaping it."""
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        self._loop.call_soon_threadsafe(self._on_exit, log_pipe)

    def _on_exit(self, log_pipe: LogPipe) -> None:
        assert self._process is not None
        self.kill()  # its children: before the leader is reaped, so that the group is surely ours
        code = self._process.wait()
        self._task = self._loop.create_task(self._finish(code, log_pipe))

    async def _finish(self, code: int, log_pipe: LogPipe | None) -> None:
        if log_pipe is not None:
            await log_pipe.wait_closed(_LOG_GRACE_SECONDS)
        if self._transport is not None:
            self._transport.abort()
        if self._window is not None:
            self._window.close()
        if self._run_dir is not None:
            self._run_dir.remove()  # before anyone hears of the end: nothing is left by then
        self._error = self._reason(code)
        logger.info("engine %s ended: %s", self._model, code)  # who waits for it is told by an exception
        streams, self._streams = self._streams, {}
        deliver([(stream, copy.copy(self._error)) for stream in streams.values()])
        for future in [*self._calls.values(), self._ready]:
            if not future.done():
                future.set_exception(copy.copy(self._error))
                future.exception()  # somebody may have stopped waiting for it
        self._ended.set_result(None)

    def _reason(self, code: int) -> EngineError:
        if self._closing:
            return EngineClosedError("the engine was closed while this call was waiting")
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
        log = tuple(self._log)
        if not self._ready.done():
            if self._refusal is not None:
                return EngineStartError(f"the engine for {self._model} did not start: {self._refusal}", log)
            cause = last_exception(log)
            because = f": {cause}" if cause is not None else f" ({how})"
            return EngineStartError(f"the engine for {self._model} did not start{because}", log)
        return EngineDiedError(
            f"the engine for {self._model} died ({how}); requests that were running are lost. "
            "The next call starts a new engine",
            log,
        )

    async def close(self) -> None:
        """Ask the host to end, wait, and kill it where it does not."""
        self._closing = True
        if self._process is None:
            return
        if self._transport is not None and self._ready.done() and self._ready.exception() is None:
            self._transport.close()  # the host reads the end of the stream and shuts its engine down
        else:
            self.kill()  # it is still starting and reads nothing
        try:
            async with asyncio.timeout(_GRACE_SECONDS):
                await asyncio.shield(self._ended)
        except TimeoutError:
            self.kill()
            await self._ended


__all__ = ["HostProcess"]
