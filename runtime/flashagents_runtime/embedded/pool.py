"""One engine for all who ask with the same arguments, closed when the last of them has left.

AutoGen dumps and loads a client with every agent: N agents of one team must share one engine.
"""

from __future__ import annotations

import json
import os
import threading
import weakref
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

from ..errors import EngineClosedError
from ..html_tables import engine_html
from ..tally import Tally
from ..types import Delta, EngineInfo, EngineState, GenerateRequest, ProgressCallback
from .engine import EmbeddedEngine

_lock = threading.RLock()  # re-entrant: a lease may be garbage-collected inside
_pool: dict[str, _Entry] = {}


class _Entry:
    def __init__(self, engine: EmbeddedEngine) -> None:
        self.engine = engine
        self.references = 0
        self.pid = os.getpid()


def pool_key(model: str | Path | None, engine_args: Mapping[str, Any]) -> str:
    """The normalised form of an engine's arguments: equal for arguments that mean the same.

    Hyphens in names count as underscores, None as left out, and a folder by any path is that folder.
    Raises TypeError for a value that is not JSON: it could not be sent to the host process.
    """
    name = None if model is None else str(model)
    if name is not None and os.path.isdir(os.path.expanduser(name)):
        name = os.path.realpath(os.path.expanduser(name))
    try:
        return json.dumps([name, normalise_engine_args(engine_args)], sort_keys=True)
    except TypeError as e:
        raise TypeError(f"engine arguments must be plain JSON values: {e}") from e


def normalise_engine_args(engine_args: Mapping[str, Any]) -> dict[str, Any]:
    """Engine arguments by SGLang's names, without those that are None."""
    out: dict[str, Any] = {}
    for key, value in engine_args.items():
        name = key.lstrip("-").replace("-", "_")
        if name in out:
            raise TypeError(f"engine argument {name!r} is given twice")
        if name in ("model", "model_path"):
            raise TypeError(f"give the model as `model`, not as engine argument {name!r}")
        if value is not None:
            out[name] = os.fspath(value) if isinstance(value, os.PathLike) else value
    return out


def acquire_engine(
    model: str | Path | None = None, engine_args: Mapping[str, Any] | None = None
) -> EngineLease:
    """A share of the engine with these arguments; starts nothing yet.

    Args:
        model: a Hugging Face folder, a hub id, or None for the default small model.
        engine_args: as for `EmbeddedEngine`.

    Raises:
        TypeError: an argument is no plain JSON value, or is given twice.
        UnsupportedFeatureError: SGLang has no argument of that name (also a ValueError).
    """
    args = normalise_engine_args(engine_args or {})
    key = pool_key(model, args)
    with _lock:
        entry = _pool.get(key)
        if entry is not None and entry.pid == os.getpid():
            entry.references += 1
            if _pool.get(key) is entry:  # a finalizer may have run meanwhile
                return EngineLease(key, entry)
        entry = _Entry(EmbeddedEngine(model, **args))
        entry.references = 1
        _pool[key] = entry
    return EngineLease(key, entry)


def _release(key: str, entry: _Entry) -> bool:
    """Give a share back; True when it was the last one."""
    with _lock:
        entry.references -= 1
        if entry.references > 0:
            return False
        if _pool.get(key) is entry:
            del _pool[key]
        return True


def _drop(key: str, entry: _Entry) -> None:
    if _release(key, entry) and entry.pid == os.getpid():
        entry.engine._close()


def pooled_engines() -> list[EmbeddedEngine]:
    """The engines that are in use in this process."""
    with _lock:
        return [entry.engine for entry in _pool.values() if entry.pid == os.getpid()]


class EngineLease:
    """A share of a pooled engine; speaks the `Engine` protocol.

    `close` gives the share back, and closes the engine where it was the last. A lease that is
    garbage-collected gives its share back as well.
    """

    def __init__(self, key: str, entry: _Entry) -> None:
        self._key = key
        self._entry = entry
        self._finalizer = weakref.finalize(self, _drop, key, entry)
        self._finalizer.atexit = False  # all engines are closed at exit anyway

    @property
    def engine(self) -> EmbeddedEngine:
        """The shared engine itself. Raises EngineClosedError when this share was given back."""
        if not self._finalizer.alive:
            raise EngineClosedError("this client's share of the engine was given back; build a new client")
        return self._entry.engine

    @property
    def info(self) -> EngineInfo | None:
        """See `Engine.info`."""
        return self._entry.engine.info

    @property
    def tally(self) -> Tally:
        """See `EmbeddedEngine`: of all who share the engine."""
        return self._entry.engine.tally

    def _repr_html_(self) -> str:
        return engine_html(self)

    async def start(self, progress: ProgressCallback | None = None) -> EngineInfo:
        """See `Engine.start`."""
        return await self.engine.start(progress)

    def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        """See `Engine.generate`."""
        return self.engine.generate(request)

    async def abort(self, rid: str) -> None:
        """See `Engine.abort`."""
        await self.engine.abort(rid)

    async def state(self) -> EngineState:
        """See `Engine.state`."""
        return await self.engine.state()

    async def close_session(self, session_id: str) -> None:
        """See `Engine.close_session`."""
        await self.engine.close_session(session_id)

    async def internal_state(self) -> dict[str, Any]:
        """See `EmbeddedEngine.internal_state`."""
        return await self.engine.internal_state()

    async def flush_cache(self) -> bool:
        """See `Engine.flush_cache`."""
        return await self.engine.flush_cache()

    async def close(self) -> None:
        """Give this share back; waits for the engine's end where it was the last. Twice is fine."""
        if self._finalizer.detach() is not None and _release(self._key, self._entry):
            await self._entry.engine.close()


__all__ = ["EngineLease", "acquire_engine", "normalise_engine_args", "pool_key", "pooled_engines"]
