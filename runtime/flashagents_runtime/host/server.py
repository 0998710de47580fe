"""Serves an engine over the socket: frames in, frames out."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

from .. import sglang_seams as seams
from .. import wire
from .._version import __version__
from ..redact import without_secrets
from ..types import Delta, EngineInfo, GenerateRequest
from .answers import Parsers
from .outputs import Rejected, to_delta, to_sglang_request

logger = logging.getLogger(__name__)

_ABORT_AGAIN_SECONDS = 0.05
_FLUSHES, _FLUSH_PAUSE = 25, 0.02  # seconds between two tries


class Server(asyncio.Protocol):
    """One connection, one engine. Runs in the engine's loop, in the host's main thread."""

    def __init__(self, engine: Any, reader: wire.FrameReader, model: str) -> None:
        self._engine = engine
        self._manager = engine.tokenizer_manager
        self._parsers = Parsers(
            engine.server_args.tool_call_parser, engine.server_args.reasoning_parser, self._manager.tokenizer
        )
        self._reader = reader
        self._model = model
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._outbox: list[tuple[str, Delta]] = []
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._background: set[asyncio.Task[None]] = set()
        self._aborting: set[str] = set()
        self._close_session_req = seams.symbol("sglang.srt.managers.io_struct.CloseSessionReqInput")
        self.closed: asyncio.Future[None] = self._loop.create_future()

    # ---- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio.Protocol."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of asyncio's

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio.Protocol: the application has left."""
        if not self.closed.done():
            self.closed.set_result(None)

    def data_received(self, data: bytes) -> None:
        """asyncio.Protocol."""
        for message in self._reader.feed(data):
            self.on_message(message)

    def on_message(self, message: wire.ToHost) -> None:
        """Act on one message."""
        if isinstance(message, wire.Generate):
            request = message.request
            task = self._loop.create_task(self._generate(request))
            self._tasks[request.rid] = task
            task.add_done_callback(lambda _: self._tasks.pop(request.rid, None))
        elif isinstance(message, wire.Abort):
            if message.rid in self._tasks:
                self._spawn(self._abort(message.rid, self._tasks[message.rid]))
        elif isinstance(message, wire.CloseSession):
            self._spawn(self._manager.close_session(self._close_session_req(session_id=message.session_id)))
        elif isinstance(message, wire.Call):
            self._spawn(self._answer(message))

    def _spawn(self, coro: Any) -> None:
        task = self._loop.create_task(coro)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def send(self, message: wire.FromHost) -> None:
        """Send one frame."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(wire.encode(message))

    # ---- requests

    async def _generate(self, request: GenerateRequest) -> None:
        rid = request.rid
        try:
            plan = self._parsers.plan(request)
            outputs = self._manager.generate_request(to_sglang_request(request, plan), None)
            async for out in outputs:
                delta = to_delta(out, request.logprobs, aborted=rid in self._aborting)
                self._post(rid, delta if plan is None else plan.read(delta))
        except Rejected as e:
            self._fail(rid, str(e), rejected=e.rejected)
        except ValueError as e:
            self._fail(rid, str(e), rejected=True)
        except Exception as e:
            logger.exception("request %s failed", rid)
            self._fail(rid, f"{type(e).__name__}: {e}", rejected=False)

    def _post(self, rid: str, delta: Delta) -> None:
        """Queue a delta; all that one step of the scheduler brings leaves in one frame."""
        if not self._outbox:
            self._loop.call_soon(self._flush)
        self._outbox.append((rid, delta))

    def _flush(self) -> None:
        items, self._outbox = self._outbox, []
        if items:
            self.send(wire.Deltas(items))

    def _fail(self, rid: str, message: str, *, rejected: bool) -> None:
        self._flush()  # what it has said so far comes first
        self.send(wire.Failed(rid, message, rejected))

    async def _abort(self, rid: str, task: asyncio.Task[None]) -> None:
        """Abort until it has ended: an abort that overtakes its request on the way is lost."""
        self._aborting.add(rid)
        try:
            while not task.done():
                self._manager.abort_request(rid)
                await asyncio.wait({task}, timeout=_ABORT_AGAIN_SECONDS)
        finally:
            self._aborting.discard(rid)

    # ---- calls

    async def _answer(self, call: wire.Call) -> None:
        methods: dict[str, Callable[..., Awaitable[Any]]] = {
            "state": self._state,
            "flush_cache": self._flush_cache,
            "internal_state": self.internal_state,
            "load_lora": self._load_lora,
            "unload_lora": self._unload_lora,
        }
        try:
            value = await methods[call.method](**call.arguments)
        except Exception as e:
            logger.exception("call %s failed", call.method)
            self.send(wire.Answer(call.id, error=f"{call.method}: {type(e).__name__}: {e}"))
        else:
            self.send(wire.Answer(call.id, value))

    async def internal_state(self) -> dict[str, Any]:
        """What rank 0's scheduler says of itself, in plain types."""
        states = await self._manager.get_internal_state()
        to_builtins = seams.symbol("sglang.srt.utils.msgspec_utils.msgspec_to_builtins")
        out: dict[str, Any] = to_builtins(states[0])
        return without_secrets(out)  # SGLang's arguments are in it

    async def _state(self) -> dict[str, int]:
        ours = (await self.internal_state()).get("flashagents")
        if ours is not None:
            figures: dict[str, int] = ours["kv"]
            return figures
        # Stock radix cache: SGLang's own figures, which do not tell cached from free.
        load = (await self._manager.get_loads())[0]
        total = self._total_tokens()
        return {
            "kv_total": total,
            "kv_used": load.num_used_tokens,
            "kv_cached": 0,
            "kv_free": total - load.num_used_tokens,
            "running": load.num_running_reqs,
            "waiting": load.num_waiting_reqs,
        }

    def _total_tokens(self) -> int:
        return int(self._engine._scheduler_init_result.scheduler_infos[0]["max_total_num_tokens"])

    async def _flush_cache(self) -> bool:
        # SGLang refuses while anything runs, and a request that has ended is in its batch for a step more.
        for _ in range(_FLUSHES):
            if (await self._manager.flush_cache()).success:
                return True
            state = await self._state()
            if state["running"] or state["waiting"]:
                return False
            await asyncio.sleep(_FLUSH_PAUSE)
        return False

    async def _load_lora(self, sent: bool = False, **fields: Any) -> str | None:
        """None, or why the adapter was not loaded; `sent`: its folder will not be there a second time."""
        if sent or self._engine.server_args.load_format == "dummy":
            return await self._load_lora_tensors(**fields)
        request = seams.symbol("sglang.srt.managers.io_struct.LoadLoRAAdapterReqInput")(**fields)
        result = await self._manager.load_lora_adapter(request, None)
        return None if result.success else str(result.error_message)

    async def _load_lora_tensors(self, lora_name: str, lora_path: str, pinned: bool) -> str | None:
        """Read here: SGLang's loader is the model's, none for random weights, and may read a folder again."""
        from safetensors.torch import load_file

        folder = Path(lora_path)
        try:
            tensors = await asyncio.to_thread(load_file, folder / "adapter_model.safetensors")
            config = json.loads((folder / "adapter_config.json").read_text())
        except (OSError, ValueError) as e:
            return f"the adapter is read from adapter_model.safetensors here: {e}"
        request = seams.symbol("sglang.srt.managers.io_struct.LoadLoRAAdapterFromTensorsReqInput")(
            lora_name=lora_name,
            config_dict=config,
            serialized_named_tensors=self._engine._serialize_tensors_per_rank(tensors, None),
            pinned=pinned,
        )
        result = await self._manager.load_lora_adapter_from_tensors(request, None)
        return None if result.success else str(result.error_message)

    async def _unload_lora(self, **fields: Any) -> str | None:
        """None, or why the adapter was not unloaded."""
        request = seams.symbol("sglang.srt.managers.io_struct.UnloadLoRAAdapterReqInput")(**fields)
        result = await self._manager.unload_lora_adapter(request, None)
        return None if result.success else str(result.error_message)

    async def info(self) -> EngineInfo:
        """What the engine is; asks the scheduler, so it proves that the engine answers."""
        import torch

        ours = (await self.internal_state()).get("flashagents")
        args = self._engine.server_args
        features = ["prefill_only"]
        if args.enable_lora:
            features.append("lora")
        if ours is not None:
            features += [name for name, entry in ours["features"].items() if entry["active"]]
            sharing = ours["features"].get("lora_sharing")
            features += [f"lora_sharing={sharing['scheme']}"] if sharing is not None else []
        return EngineInfo(
            kind="embedded",
            model=self._model,
            context_length=int(self._manager.model_config.context_len),
            max_total_tokens=self._total_tokens(),
            device=str(args.device),
            versions={
                "flashagents": __version__,
                "sglang": seams.SGLANG_VERSION,
                "torch": str(torch.__version__),
            },
            features=features,
        )


async def serve(
    engine: Any, sock: socket.socket, reader: wire.FrameReader, early: list[Any], model: str
) -> None:
    """Serve until the application closes the connection."""
    server = Server(engine, reader, model)
    await asyncio.get_running_loop().create_connection(lambda: server, sock=sock)
    server.send(wire.Ready(await server.info()))
    for message in early:
        server.on_message(message)
    await server.closed


__all__ = ["Server", "serve"]
