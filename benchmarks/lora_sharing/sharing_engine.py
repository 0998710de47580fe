"""An SGLang engine with role adapters under one of the sharing schemes; models and adapters are random."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import model_config
from benchmarks.lora_sharing.shapes import SHAPES
from flashagents_runtime import cpu_shims, plugin
from flashagents_runtime.host.build import meet_in_a_file
from flashagents_runtime.lora_sharing.arguments import take_arguments

# Spawned children import this module before SGLang, to find the functions that they run.
cpu_shims.install()


def write_config(folder: Path, shape: str, *, dtype: str = "bfloat16") -> Path:
    """A Hugging Face folder with nothing but the configuration of a Llama of this shape."""
    return model_config.write_config(folder / shape, "llama", SHAPES[shape], dtype=dtype)


def write_random_model(folder: Path, shape: str) -> Path:
    """The same with random bf16 weights, reproducible, of a scale at which answers are not degenerate."""
    import torch
    from safetensors.torch import save_file

    path = write_config(folder, shape)
    s = SHAPES[shape]
    hidden, inner, head = s["hidden_size"], s["intermediate_size"], s["head_dim"]
    q, kv = s["num_attention_heads"] * head, s["num_key_value_heads"] * head
    g = torch.Generator().manual_seed(0)

    def weight(rows: int, columns: int, gain: float = 1.0) -> Any:
        return (torch.randn(rows, columns, generator=g) * gain / columns**0.5).to(torch.bfloat16)

    ones = torch.ones(hidden, dtype=torch.bfloat16)
    tensors = {
        "model.embed_tokens.weight": (torch.randn(s["vocab_size"], hidden, generator=g)).to(torch.bfloat16),
        "model.norm.weight": ones,
        "lm_head.weight": weight(s["vocab_size"], hidden, 3.0),
    }
    for i in range(s["num_hidden_layers"]):
        p = f"model.layers.{i}."
        for name, rows in (("q", q), ("k", kv), ("v", kv)):
            tensors[f"{p}self_attn.{name}_proj.weight"] = weight(rows, hidden, 1.5)
        tensors[f"{p}self_attn.o_proj.weight"] = weight(hidden, q, 4.0)
        tensors[f"{p}mlp.gate_proj.weight"] = weight(inner, hidden)
        tensors[f"{p}mlp.up_proj.weight"] = weight(inner, hidden)
        tensors[f"{p}mlp.down_proj.weight"] = weight(hidden, inner)
        tensors[f"{p}input_layernorm.weight"] = ones
        tensors[f"{p}post_attention_layernorm.weight"] = ones
    save_file(
        {k: v.clone() for k, v in tensors.items()}, path / "model.safetensors", metadata={"format": "pt"}
    )
    return path


class SharingEngine:
    """An engine whose adapters share as `scheme` says; "none" is stock SGLang.

    Args:
        scheme: `lora_sharing`.
        roles: names of the adapters.
        folders: their PEFT folders.
        groups: `lora_groups`; None is one group of all.
        server_args: SGLang's, on top of what the scheme needs.
    """

    def __init__(
        self,
        scheme: str,
        roles: Sequence[str],
        folders: Sequence[Path],
        *,
        cpu: bool,
        groups: Mapping[str, Sequence[str]] | None = None,
        **server_args: Any,
    ) -> None:
        from sglang.srt.entrypoints.engine import Engine

        from flashagents_runtime.host.children import run_detokenizer_process, run_scheduler_process

        args: dict[str, Any] = {
            "skip_tokenizer_init": True,
            "sampling_backend": "pytorch",
            "grammar_backend": "none",
            "random_seed": 0,
            "log_level": "error",
            "enable_lora": True,
            "max_loras_per_batch": len(roles) + 1,
            **server_args,
        }
        if cpu:
            args |= {
                "device": "cpu",
                "dtype": "float32",
                "disable_cuda_graph": True,
                "lora_backend": "torch_native",
            }
            args |= {"attention_backend": "torch_native"}
        args["lora_paths"] = {name: str(path) for name, path in zip(roles, folders, strict=True)}
        # Stock, but for the handshake: nothing else of the plug-in is on.
        args["radix_cache_backend"] = plugin.CACHE_BACKEND
        os.environ["FLASHAGENTS_DISABLE"] = "intra_turn" if scheme == "none" else ""
        if scheme != "none":
            args |= {"lora_sharing": scheme, "lora_groups": groups or {"team": list(roles)}}
            if scheme != "full" and not cpu:
                args.pop("attention_backend", None)
        args = take_arguments(args, cuda=not cpu)
        # A file for each engine: several that start at once would look for free ports at the same time.
        os.environ.pop("SGLANG_DISTRIBUTED_INIT_METHOD_OVERRIDE", None)
        meet_in_a_file(args, f"{tempfile.mkdtemp()}/ranks")
        plugin.register()

        class OurEngine(Engine):  # type: ignore[misc]
            run_scheduler_process_func = staticmethod(run_scheduler_process)
            run_detokenizer_process_func = staticmethod(run_detokenizer_process)

        began = time.perf_counter()
        self.engine = OurEngine(**args)
        self.start_seconds = time.perf_counter() - began
        self.scheme = scheme

    @property
    def info(self) -> dict[str, Any]:
        found: dict[str, Any] = self.engine.get_server_info()
        return found

    @property
    def figures(self) -> dict[str, Any]:
        """The plug-in's figures of the sharing; empty for stock."""
        state = self.info["internal_states"][0].get("flashagents", {})
        found: dict[str, Any] = state.get("features", {}).get("lora_sharing", {})
        return found

    def generate(self, ids: Any, new: int, lora: Any, **kwargs: Any) -> Any:
        """Greedy; one prompt or a list of them, with an adapter each (None: the model itself)."""
        sampling = {"temperature": 0.0, "max_new_tokens": new, "ignore_eos": True}
        return self.engine.generate(input_ids=ids, sampling_params=sampling, lora_path=lora, **kwargs)

    def flush(self) -> None:
        """Empty the cache; the engine may need a moment after its last answer."""
        for _ in range(500):
            if self.engine.flush_cache().success:
                return
            time.sleep(0.01)
        raise RuntimeError("flush_cache was refused")

    def close(self) -> None:
        self.engine.shutdown()
        os.environ.pop("FLASHAGENTS_LORA_SHARING", None)
