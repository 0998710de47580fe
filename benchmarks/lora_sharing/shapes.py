"""The models that are measured, by shape."""

from __future__ import annotations

from typing import Any

from benchmarks.model_config import LLAMA31_8B

SHAPES: dict[str, dict[str, Any]] = {
    "llama-3.1-8b": LLAMA31_8B,
    # for log-probs: the attention of an 8B model, few and narrow layers, random weights
    "random-4-layers": {
        "hidden_size": 1024,
        "intermediate_size": 2816,
        "num_attention_heads": 32,
        "num_hidden_layers": 4,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 8192,
    },
    "tiny": {  # to try things on a CPU
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 512,
    },
}
