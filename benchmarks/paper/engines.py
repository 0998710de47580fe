"""The engines of one run side by side: stock SGLang and ours, several on one GPU."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.random_adapters import RANK, TARGETS, write_adapter
from flashagents_runtime.embedded import EmbeddedEngine
from flashagents_runtime.types import Progress

GPU_ARGS: dict[str, Any] = {
    "sampling_backend": "pytorch",
    "grammar_backend": "none",
    "attention_backend": "fa3",
    "context_length": 32768,
    "max_running_requests": 32,
    "cuda_graph_bs_decode": [1, 2, 4, 8, 12, 16, 32],
    # So that several engines share a GPU, each with a pool of the same size.
    "mem_fraction_static": 0.93,
    "max_total_tokens": 200_000,
}
CPU_ARGS: dict[str, Any] = {"max_total_tokens": 32768, "context_length": 8192}


@dataclass(frozen=True)
class Spec:
    """One engine.

    Attributes:
        args: engine arguments besides those of all.
        env: environment variables of its host process.
        loras: names of the random adapters that are loaded into it, in the order of their numbers.
    """

    args: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    loras: Sequence[str] = ()


HOST_LOGGER = "flashagents_runtime.engine"  # has what a host process prints

# No plug-in at all: `--radix-cache-backend` is SGLang's own.
STOCK = {"radix_cache_backend": None}
ROLES = ("role0", "role1", "role2", "role3")
LORA: dict[str, Any] = {
    "enable_lora": True,
    "max_lora_rank": RANK,
    "lora_target_modules": list(TARGETS),
    "max_loras_per_batch": len(ROLES) + 1,
}
SPECS = {
    "stock-fcfs": Spec({**STOCK, "schedule_policy": "fcfs"}),
    "stock-lpm": Spec({**STOCK, "schedule_policy": "lpm"}),
    "flash": Spec(),
    "flash-without-intra-turn": Spec(env={"FLASHAGENTS_DISABLE": "intra_turn"}),
    "flash-sjf": Spec(env={"FLASHAGENTS_SJF": "1"}),
    "sjf-alone": Spec(
        env={"FLASHAGENTS_SJF": "1", "FLASHAGENTS_DISABLE": "intra_turn,soft_pins,warmup_budget"}
    ),
    # Role agents' LoRA adapters on one backbone, loaded when the engine is up (`adapters.py`).
    "stock-lora": Spec({**STOCK, **LORA, "schedule_policy": "lpm"}, loras=ROLES),
    "flash-lora": Spec(LORA, loras=ROLES),
    "flash-lora-shared": Spec(
        # It attends in a backend of its own.
        {**LORA, "lora_sharing": "base_lr", "lora_groups": {"team": list(ROLES)}, "attention_backend": None},
        loras=ROLES,
    ),
    "flash-eager-prefill": Spec({"cuda_graph_backend_prefill": "disabled"}),
}


def log_engines() -> None:
    """What SGLang prints goes to the file that `FLASHAGENTS_ENGINE_LOG` names, if any."""
    target, logger = os.environ.get("FLASHAGENTS_ENGINE_LOG"), logging.getLogger(HOST_LOGGER)
    if target and not logger.handlers:
        handler = logging.FileHandler(target, delay=True)
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        logger.addHandler(handler)
        logger.setLevel(logging.DEBUG)
        logger.propagate = False


@asynccontextmanager
async def running(
    names: Sequence[str], model: Path, *, cpu: bool, gpu: int = 0, more: Mapping[str, Any] | None = None
) -> AsyncGenerator[dict[str, EmbeddedEngine], None]:
    """Start these engines of `SPECS`, all at once on a GPU; ends them.

    Args:
        model: a folder without weights.
        cpu: with the arguments for machines without a GPU, one after another.
        gpu: the device's number.
        more: further engine arguments of all of them.
    """
    base = {**(CPU_ARGS if cpu else GPU_ARGS), **(more or {})}
    if gpu:
        base["base_gpu_id"] = gpu
    async with beside({name: SPECS[name] for name in names}, model, base, cpu=cpu) as engines:
        yield engines


@asynccontextmanager
async def beside(
    specs: Mapping[str, Spec], model: Path, base: Mapping[str, Any], *, cpu: bool
) -> AsyncGenerator[dict[str, EmbeddedEngine], None]:
    """Start these engines, all at once on a GPU, with random weights and `base`'s arguments; ends them."""
    base = {"load_format": "dummy", "random_seed": 0, **base}
    log_engines()
    engines: dict[str, EmbeddedEngine] = {}
    starts: list[asyncio.Task[Any]] = []
    began, loop = time.monotonic(), asyncio.get_running_loop()

    async def finish(name: str, start: asyncio.Task[Any]) -> None:
        await start
        for number, role in enumerate(specs[name].loras):
            await engines[name].load_lora(role, write_adapter(model, number))
        print(f"{name}: up after {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)

    async with AsyncExitStack() as stack:
        for name, spec in specs.items():
            args = {**base, **spec.args}
            if cpu and args.get("attention_backend", "") is None:
                del args["attention_backend"]  # there the default is the only one
            engine = engines[name] = EmbeddedEngine(model, **args)
            stack.push_async_callback(engine.close)
            spawned = asyncio.Event()

            def tell(_: Progress, seen: asyncio.Event = spawned) -> None:
                loop.call_soon_threadsafe(seen.set)

            kept = {key: os.environ.get(key) for key in spec.env}
            os.environ.update(spec.env)
            try:
                start = asyncio.ensure_future(engine.start(tell))
                # The host has its environment once it reports.
                waiting = asyncio.ensure_future(start if cpu else spawned.wait())
                await asyncio.wait({waiting, start}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for key, value in kept.items():
                    os.environ.pop(key) if value is None else os.environ.update({key: value})
            starts.append(start)
        await asyncio.gather(*(finish(name, start) for name, start in zip(specs, starts, strict=True)))
        yield engines


async def flush(engine: EmbeddedEngine) -> None:
    """Empty the cache; the engine may need a moment after its last answer."""
    for _ in range(500):
        if await engine.flush_cache():
            return
        await asyncio.sleep(0.01)
    raise RuntimeError("flush_cache was refused: the engine does not become idle")
