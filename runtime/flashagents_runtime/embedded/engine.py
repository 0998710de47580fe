"""`EmbeddedEngine`: the `Engine` protocol on a host process that the application owns."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import os
import tempfile
import threading
import warnings
import weakref
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

from ..adapter_check import check_adapter, check_adapters
from ..adapter_errors import unknown_adapter
from ..adapter_files import write_adapter
from ..engine_args import check_arguments
from ..errors import EngineClosedError, EngineError, UnsupportedFeatureError
from ..html_tables import engine_html
from ..limits import check_request
from ..looks import Look
from ..lora_sharing.arguments import adapter_names, doubtful_members, sharing_of
from ..model_cache import settled
from ..plugin_figures import numbers
from ..tally import Tally
from ..types import Delta, EngineInfo, EngineState, GenerateRequest, Progress, ProgressCallback
from . import io_thread
from .host_process import HostProcess
from .stream import Stream
from .window import Window


class EmbeddedEngine:
    """An SGLang engine in a host process of its own.

    Building it starts nothing; `start`, or the first request, does. It may be used from any event
    loop and thread of the process that built it. When the host dies, waiting calls raise
    EngineDiedError and the next call starts a new host. It dies with the application, however that ends.

    Args:
        model: a Hugging Face folder, a hub id, or None for the default small model.
        engine_args: arguments of `sglang.srt.server_args.ServerArgs`, by name. What is left out is
            SGLang's default on a GPU, and fitting values on a machine without one. Besides: `lora_sharing`
            and `lora_groups` (docs/lora-sharing.md).

    Attributes:
        tally: what it has been asked so far; `flashagents top` shows it.

    Raises:
        UnsupportedFeatureError: SGLang has no engine argument of that name (also a ValueError).
        TypeError: an argument takes a value of another type.

    Example:
        >>> async with EmbeddedEngine() as engine:
        ...     async for delta in engine.generate(GenerateRequest(input_ids=ids)):
        ...         print(delta.text, end="")
    """

    def __init__(self, model: str | Path | None = None, **engine_args: Any) -> None:
        check_arguments(engine_args)
        # Said now, not by the host process, which first imports SGLang.
        sharing = sharing_of(engine_args)
        if doubt := doubtful_members(sharing, adapter_names(engine_args.get("lora_paths"))):
            warnings.warn(doubt, stacklevel=2)
        self.model = None if model is None else settled(model)
        self.engine_args = engine_args
        self.tally = Tally()
        self._lock = threading.RLock()  # re-entrant: a finalizer may close us inside
        self._pid = os.getpid()
        self._closed = False
        self._info: EngineInfo | None = None
        self._model_folder: str | None = None
        self._host: HostProcess | None = None
        self._starting: concurrent.futures.Future[EngineInfo] | None = None
        self._listeners: list[ProgressCallback] = []
        _engines.add(self)

    def __repr__(self) -> str:
        state = "closed" if self._closed else "up" if self._alive() else "not started"
        return f"<EmbeddedEngine {self.model or 'default model'} ({state})>"

    def _repr_html_(self) -> str:
        return engine_html(self)

    @property
    def info(self) -> EngineInfo | None:
        """What the engine is; None before it was started."""
        return self._info

    def _alive(self) -> bool:
        return self._host is not None and self._info is not None and self._host.error is None

    def _check(self) -> None:
        if self._closed:
            raise EngineClosedError("this engine was closed; build a new one")
        if self._pid != os.getpid():
            raise EngineError(
                f"this engine belongs to process {self._pid}, and this is its forked child {os.getpid()}; "
                "build a new engine here"
            )

    # ---- start

    async def start(self, progress: ProgressCallback | None = None) -> EngineInfo:
        """See `Engine.start`. Also raises ModelError where the model cannot be had."""
        with self._lock:
            self._check()
            if self._alive():
                assert self._info is not None
                return self._info
            if progress is not None:
                self._listeners.append(progress)
            if self._starting is None:
                self._starting = io_thread.submit(self._start())
                self._starting.add_done_callback(self._started)
            starting = self._starting
        try:
            return await io_thread.wait(starting)
        finally:
            if progress is not None:
                with self._lock:
                    if progress in self._listeners:
                        self._listeners.remove(progress)

    async def _start(self) -> EngineInfo:
        model = await asyncio.get_running_loop().run_in_executor(None, self._resolve_model)
        host = HostProcess(model, self.engine_args, self._tell)
        with self._lock:
            if self._closed:
                raise EngineClosedError("the engine was closed while it was starting")
            self._host = host
        info = await host.start()
        self._info = info
        await host.open_window(Window(lambda: self._look(host, info)))
        self._tell(Progress("Ready", 1.0))
        return info

    async def _look(self, host: HostProcess, info: EngineInfo) -> Look:
        """In the I/O thread: what somebody sees who looks at this engine."""
        server = await host.call("internal_state")
        ours = server.get("flashagents")
        state = EngineState(**(ours["kv"] if ours is not None else await host.call("state")))
        return Look(info=info, state=state, plugin=numbers(server), counts=self.tally.counts(), pid=self._pid)

    def _resolve_model(self) -> str:
        from ..model_store import resolve_model

        model = str(
            resolve_model(
                self.model,
                progress=self._tell,
                weights=self.engine_args.get("load_format") != "dummy",
                tokenizer=not self.engine_args.get("skip_tokenizer_init"),
            )
        )
        check_adapters(self.engine_args.get("lora_paths"), model)
        self._model_folder = model
        return model

    def _started(self, future: concurrent.futures.Future[EngineInfo]) -> None:
        with self._lock:
            if self._starting is future:
                self._starting = None

    def _tell(self, progress: Progress) -> None:
        for listener in list(self._listeners):
            try:
                listener(progress)
            except BaseException:  # a display that fails, or calls sys.exit(), must not end the start
                with contextlib.suppress(ValueError):
                    self._listeners.remove(listener)

    # ---- requests

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        """See `Engine.generate`."""
        info = await self.start()
        check_request(request, info)
        host = self._host
        assert host is not None
        io = io_thread.io_loop()
        stream = Stream(asyncio.get_running_loop())
        io.call_soon_threadsafe(host.open, request, stream)
        waiting = True
        try:
            while waiting:
                try:
                    delta = await stream.get()
                except EngineError:
                    waiting = False
                    raise
                waiting = delta.result is None
                if delta.result is not None:
                    self.tally.answered(request, delta.result.usage)
                yield delta
        finally:
            stream.leave()
            if waiting:
                io.call_soon_threadsafe(host.leave, request.rid)

    async def abort(self, rid: str) -> None:
        """See `Engine.abort`."""
        self._check()
        if self._host is not None:
            io_thread.io_loop().call_soon_threadsafe(self._host.abort, rid)

    async def close_session(self, session_id: str) -> None:
        """See `Engine.close_session`."""
        self._check()
        if self._host is not None:
            io_thread.io_loop().call_soon_threadsafe(self._host.close_session, session_id)

    async def _call(self, method: str, **arguments: Any) -> Any:
        await self.start()
        assert self._host is not None
        return await io_thread.wait(io_thread.submit(self._host.call(method, arguments)))

    async def state(self) -> EngineState:
        """See `Engine.state`; starts the engine if need be."""
        return EngineState(**await self._call("state"))

    async def internal_state(self) -> dict[str, Any]:
        """What SGLang says of itself (`Engine.get_server_info`), for diagnosis: not a stable format."""
        out: dict[str, Any] = await self._call("internal_state")
        return out

    async def flush_cache(self) -> bool:
        """See `Engine.flush_cache`."""
        return bool(await self._call("flush_cache"))

    # ---- adapters

    async def load_lora(self, name: str, path: str | Path, *, pinned: bool = False) -> None:
        """Load a LoRA adapter while the engine runs; requests may name it from then on.

        Args:
            name: what requests call it. A member of a sharing group has its group by this name.
            path: a PEFT folder.
            pinned: keep it among the adapters of a batch (SGLang's `pinned`).

        Raises:
            ModelNotFoundError: there is no such folder.
            ModelIntegrityError: the adapter is broken or not of this model, see `adapter_check`.
            UnsupportedFeatureError: it does not fit the engine, or its sharing group.

        The engine goes on after each of them.
        """
        await self.start()
        folder = _absolute(path)
        await asyncio.to_thread(check_adapter, name, folder, self._model_folder)
        await self._change_lora("load_lora", lora_name=name, lora_path=folder, pinned=pinned)

    async def load_lora_tensors(
        self, name: str, tensors: Mapping[str, Any], config: Mapping[str, Any], *, pinned: bool = False
    ) -> None:
        """`load_lora` for an adapter that is on no disk, such as one that is just being trained.

        It goes to the engine through files in a private folder, which are gone when this returns. Where
        SGLang's `max_loaded_loras` pushes it out later, it has to be loaded again.

        Args:
            name: what requests call it. A member of a sharing group has its group by this name.
            tensors: torch tensors on any device, or numpy arrays, by PEFT's names, as
                `peft.get_peft_model_state_dict` gives them: `lora_A` is `[r, in]`, `lora_B` `[out, r]`.
            config: what PEFT's `adapter_config.json` says (`peft_config.to_dict()`).
            pinned: keep it among the adapters of a batch (SGLang's `pinned`).

        Raises:
            TypeError: something in it is neither tensor nor array, or `config` is no JSON.
            ModelIntegrityError: the adapter is broken or not of this model, see `adapter_check`.
            UnsupportedFeatureError: it does not fit the engine, or its sharing group.

        The engine goes on after each of them.
        """
        await self.start()
        with tempfile.TemporaryDirectory(prefix="flashagents-adapter-") as folder:
            await asyncio.to_thread(write_adapter, name, Path(folder), tensors, config)
            await asyncio.to_thread(check_adapter, name, folder, self._model_folder)
            await self._change_lora("load_lora", lora_name=name, lora_path=folder, pinned=pinned, sent=True)

    async def unload_lora(self, name: str) -> None:
        """Unload a LoRA adapter when its requests have ended, and forget what it has cached.

        Raises:
            UnknownAdapterError: there is no such adapter.
        """
        await self._change_lora("unload_lora", lora_name=name)

    async def _change_lora(self, method: str, **arguments: Any) -> None:
        error = await self._call(method, **arguments)
        if error is not None:
            raise unknown_adapter(str(error)) or UnsupportedFeatureError(str(error))

    # ---- the end

    async def close(self) -> None:
        """See `Engine.close`."""
        await io_thread.wait(self._close())

    def _close(self) -> concurrent.futures.Future[None]:
        with self._lock:
            self._closed = True
            host = self._host
        if host is None or self._pid != os.getpid():
            done: concurrent.futures.Future[None] = concurrent.futures.Future()
            done.set_result(None)
            return done
        return io_thread.submit(host.close())

    async def __aenter__(self) -> EmbeddedEngine:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


def _absolute(path: str | Path) -> str:
    """The host process has another working folder."""
    return os.path.abspath(os.path.expanduser(os.fspath(path)))


_engines: weakref.WeakSet[EmbeddedEngine] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """End every engine with the application; hosts that outlive this see the closed socket and end."""
    closing = [engine._close() for engine in list(_engines) if engine._pid == os.getpid()]
    concurrent.futures.wait(closing, timeout=15.0)


__all__ = ["EmbeddedEngine"]
