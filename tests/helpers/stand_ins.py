"""What stands in for engines where the documentation's code and commands run."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest

import flashagents_autogen
from flashagents_autogen import FlashAgentsChatCompletionClient
from flashagents_runtime import GenerateRequest, Reply, ScriptedEngine, embedded
from flashagents_runtime.engine_args import check_arguments
from flashagents_runtime.trace import events

Answer = Callable[[GenerateRequest], str | Reply]
SLIDES = {"slides": [{"title": f"T{i}", "point": f"P{i}"} for i in range(1, 13)]}


def says(request: GenerateRequest) -> str | Reply:
    """What all models of the documentation say, the same to the same prompt.

    As many tokens as were asked for where nothing else ends them, an outline where JSON is wanted, the name
    of a speaker where one is to be selected.
    """
    if request.sampling.ignore_eos and request.sampling.max_new_tokens is not None:
        n = request.sampling.max_new_tokens
        return Reply(text=["a"] * n, token_ids=[[97]] * n)
    if (schema := request.sampling.json_schema) is not None:
        most = re.search(r'"maxItems": ?(\d+)', schema)
        return json.dumps({"slides": SLIDES["slides"][: int(most[1]) if most else None]})
    told = bytes(min(i, 255) for i in request.input_ids[-900:])
    return "critic" if b"role" in told else f"Eiffel Tower {sum(request.input_ids) % 9973}."


class StandIn(ScriptedEngine):
    """In the place of `EmbeddedEngine`: takes its arguments, and answers without a model."""

    built: ClassVar[list[StandIn]] = []
    plugin: ClassVar[tuple[str, ...]] = ("intra_turn", "soft_pins", "warmup_budget")

    def __init__(self, model: str | Path | None = None, **engine_args: Any) -> None:
        check_arguments(engine_args)
        super().__init__([says] * 100_000, context_length=1 << 16, model=str(model or "scripted"))
        self.engine_args = engine_args
        self.adapters = set(engine_args.get("lora_paths", ()))
        self.built.append(self)

    async def start(self, progress: Any = None) -> Any:
        info = await super().start(progress)
        if (
            "radix_cache_backend" not in self.engine_args
        ):  # else it is SGLang's own cache, without our plug-in
            info.features.extend(name for name in self.plugin if name not in info.features)
        return info

    async def internal_state(self) -> dict[str, Any]:
        return {"flashagents": {"features": {}}}

    async def load_lora(self, name: str, path: str) -> None:
        self.adapters.add(name)

    async def unload_lora(self, name: str) -> None:
        self.adapters.remove(name)

    async def __aenter__(self) -> StandIn:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


class StandInClient(FlashAgentsChatCompletionClient):
    """A client whose engine is a stand-in, wherever it would have to be started or reached."""

    def __init__(self, model: str | Path | None = None, **kwargs: Any) -> None:
        if "engine" not in kwargs:
            args = kwargs.pop("engine_args", None) or {}
            for name in ("engine_url", "api_key"):
                kwargs.pop(name, None)
            kwargs["engine"] = StandIn(model, **args)
        super().__init__(**kwargs)


@contextmanager
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[StandIn]]:
    """The engines that are built meanwhile; afterwards nothing is left that was installed or opened."""
    with monkeypatch.context() as patch:
        patch.setattr(StandIn, "built", [])
        patch.setattr(flashagents_autogen, "FlashAgentsChatCompletionClient", StandInClient)
        patch.setattr(embedded, "EmbeddedEngine", StandIn)
        patch.setattr(events, "_sinks", ())
        try:
            yield StandIn.built
        finally:
            flashagents_autogen.uninstall()


__all__ = ["SLIDES", "StandIn", "StandInClient", "says", "stand_ins"]
