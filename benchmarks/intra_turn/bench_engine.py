"""An SGLang engine whose scheduler can be switched between the variants, so that they run side by side."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))
import model_config
from model_config import QWEN25_7B

from flashagents_runtime import cpu_shims, plugin

# Spawned children import this module before SGLang, to find the functions that they run.
cpu_shims.install()

SHAPES: dict[str, dict[str, Any]] = {
    "qwen2.5-7b": QWEN25_7B,
    # for log-probs: random weights of a scale at which greedy answers are not degenerate
    "random-6-layers": {
        "hidden_size": 1024,
        "intermediate_size": 2816,
        "num_attention_heads": 8,
        "num_hidden_layers": 6,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "vocab_size": 32000,
    },
    "tiny": {  # to try the benchmark on a CPU
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "vocab_size": 512,
    },
}


def write_config(folder: Path, shape: str, *, dtype: str = "bfloat16") -> Path:
    """A Hugging Face folder with nothing but the configuration of a Qwen2 of this shape."""
    return model_config.write_config(folder / shape, "qwen2", SHAPES[shape], dtype=dtype)


def write_random_model(folder: Path, shape: str) -> Path:
    """The same with random weights, reproducible."""
    import torch
    from safetensors.torch import save_file

    path = write_config(folder, shape)
    s = SHAPES[shape]
    hidden, inner = s["hidden_size"], s["intermediate_size"]
    head = s.get("head_dim", hidden // s["num_attention_heads"])
    q, kv = s["num_attention_heads"] * head, s["num_key_value_heads"] * head
    g = torch.Generator().manual_seed(0)

    def weight(*size: int, std: float = 0.05) -> Any:
        return (torch.randn(*size, generator=g) * std).to(torch.bfloat16)

    tensors = {
        "model.embed_tokens.weight": weight(s["vocab_size"], hidden),
        "model.norm.weight": torch.ones(hidden, dtype=torch.bfloat16),
        "lm_head.weight": weight(s["vocab_size"], hidden, std=0.15),
    }
    for i in range(s["num_hidden_layers"]):
        p = f"model.layers.{i}."
        for name, rows in (("q", q), ("k", kv), ("v", kv)):
            tensors[f"{p}self_attn.{name}_proj.weight"] = weight(rows, hidden)
            tensors[f"{p}self_attn.{name}_proj.bias"] = weight(rows)
        tensors[f"{p}self_attn.o_proj.weight"] = weight(hidden, q)
        tensors[f"{p}mlp.gate_proj.weight"] = weight(inner, hidden)
        tensors[f"{p}mlp.up_proj.weight"] = weight(inner, hidden)
        tensors[f"{p}mlp.down_proj.weight"] = weight(hidden, inner)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{p}{name}.weight"] = torch.ones(hidden, dtype=torch.bfloat16)
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    return path


def bench_scheduler(*args: Any, **kwargs: Any) -> None:
    """`run_scheduler_process`, with the controls that the benchmark calls through `collective_rpc`."""
    import sglang.srt.managers.scheduler as scheduler_module

    plugin.register()
    scheduler = scheduler_module.Scheduler
    passes: list[tuple[float, int, int]] = []
    next_batch = scheduler.get_next_batch_to_run

    def timed(self: Any, *a: Any, **k: Any) -> Any:
        waiting, start = len(self.waiting_queue), time.perf_counter()
        plan = next_batch(self, *a, **k)
        batch = plan.batch_to_run
        if batch is not None and batch.forward_mode.is_extend():
            passes.append((1e3 * (time.perf_counter() - start), waiting, len(batch.reqs)))
        return plan

    inserts: list[float] = []

    def time_inserts(cache: type[Any]) -> None:
        def timed_insert(original: Any) -> Any:
            def call(self: Any, *a: Any, **k: Any) -> Any:
                start = time.perf_counter()
                try:
                    return original(self, *a, **k)
                finally:
                    inserts.append(1e6 * (time.perf_counter() - start))

            return call

        if "timed" not in vars(cache):
            cache.timed = True  # type: ignore[attr-defined]
            for name in ("cache_finished_req", "cache_unfinished_req"):
                setattr(cache, name, timed_insert(getattr(cache, name)))

    def bench_set(self: Any, publish: bool, policy: str) -> None:
        time_inserts(type(self.tree_cache))
        self.tree_cache.intra_turn.enabled = publish
        self.policy.policy = self.policy._validate_and_adjust_policy(policy, self.tree_cache)
        passes.clear()
        inserts.clear()

    def bench_passes(self: Any, path: str) -> None:
        Path(path).write_text(json.dumps({"passes": passes, "inserts": inserts}))

    scheduler.get_next_batch_to_run = timed
    scheduler.bench_set = bench_set
    scheduler.bench_passes = bench_passes
    scheduler_module.run_scheduler_process(*args, **kwargs)


def bench_detokenizer(*args: Any, **kwargs: Any) -> None:
    """SGLang's own, found in this module."""
    from sglang.srt.managers.detokenizer_manager import run_detokenizer_process

    run_detokenizer_process(*args, **kwargs)


VARIANTS = {"ours": (True, "fcfs"), "stock_fcfs": (False, "fcfs"), "stock_lpm": (False, "lpm")}


class Bench:
    """An engine and its controls. `cpu` uses the tiny shape's needs."""

    def __init__(self, *, cpu: bool, **server_args: Any) -> None:
        from sglang.srt.entrypoints.engine import Engine

        plugin.register()

        class BenchEngine(Engine):  # type: ignore[misc]
            run_scheduler_process_func = staticmethod(bench_scheduler)
            run_detokenizer_process_func = staticmethod(bench_detokenizer)

        args = {
            "skip_tokenizer_init": True,
            "sampling_backend": "pytorch",
            "grammar_backend": "none",
            "radix_cache_backend": "flashagents",
            "random_seed": 0,
            "log_level": "error",
            **server_args,
        }
        if cpu:
            args |= {"device": "cpu", "dtype": "float32", "disable_cuda_graph": True}
        self.engine = BenchEngine(**args)
        info = self.engine.get_server_info()
        state = info["internal_states"][0]["flashagents"]
        feature = state["features"]["intra_turn"]
        if not feature["active"]:
            raise SystemExit(f"the intra-turn cache is off: {feature['reason']}")
        self.hooks = state["hooks"]

    def variant(self, name: str) -> None:
        """Switch the scheduler; `floor` runs as stock does."""
        publish, policy = VARIANTS.get(name, (False, "fcfs"))
        self.engine.collective_rpc("bench_set", publish=publish, policy=policy)

    def flush(self) -> None:
        """Empty the cache; the engine may need a moment after its last answer."""
        for _ in range(200):
            if self.engine.flush_cache().success:
                return
            time.sleep(0.01)
        raise RuntimeError("flush_cache was refused")

    def close(self) -> None:
        self.engine.shutdown()
