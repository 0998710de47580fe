"""The engines of a group: stock SGLang with its LoRA, and one for each scheme, alike in all else."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.handoff.model import write_tokenizer
from benchmarks.lora_sharing.shapes import SHAPES
from benchmarks.model_config import write_config
from benchmarks.paper.engines import Spec
from benchmarks.random_adapters import TARGETS

GPU_ARGS: dict[str, Any] = {
    "sampling_backend": "pytorch",
    "grammar_backend": "none",
    "context_length": 135_168,
    "chunked_prefill_size": 8192,
    "max_running_requests": 32,
    "cuda_graph_bs_decode": [1, 2, 4, 8],
    # Several engines share a GPU, each with a pool of the group's size.
    "mem_fraction_static": 0.93,
}
CPU_ARGS: dict[str, Any] = {"context_length": 16384}

# Stock, but for the handshake that says what is cached: nothing else of the plug-in is on.
_STOCK = {"FLASHAGENTS_DISABLE": "intra_turn,soft_pins,warmup_budget,exact_penalties"}
_OWN_ATTENTION = ("base", "base_lr", "precomputed")


def write_model(folder: Path, shape: str) -> Path:
    """A Llama of this shape below `folder`: configuration, tokenizer, no weights."""
    path = write_config(folder / shape, "llama", SHAPES[shape])
    write_tokenizer(path)
    return path


def roles(count: int) -> list[str]:
    """Names of so many adapters."""
    return [f"role{i}" for i in range(count)]


def spec(scheme: str, members: int, *, rank: int, attention: str | None) -> Spec:
    """The engine of a scheme, "none" is stock, with so many adapters.

    Args:
        attention: the backend of stock and of `full`; the others have one of their own. None: SGLang's
            choice, on a CPU.
    """
    names = roles(members)
    args: dict[str, Any] = {
        "enable_lora": True,
        "max_lora_rank": rank,
        "lora_target_modules": list(TARGETS),
        "max_loras_per_batch": members + 1,
    }
    if attention is not None and scheme not in _OWN_ATTENTION:
        args["attention_backend"] = attention
    if scheme != "none":
        args |= {"lora_sharing": scheme, "lora_groups": {"team": names}}
    return Spec(args, env=_STOCK if scheme == "none" else {}, loras=names)


def arguments(pairs: Sequence[str]) -> dict[str, Any]:
    """Engine arguments from `NAME=JSON`."""
    return {name: json.loads(text) for name, _, text in (pair.partition("=") for pair in pairs)}
