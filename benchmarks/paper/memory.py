"""What a shape needs of each GPU, on paper:  python benchmarks/paper/memory.py qwen3-235b-a22b --tp 4"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_ROOT)]

from benchmarks.handoff.model import SHAPES

BYTES = 2  # bf16


def parameters(shape: dict[str, Any]) -> int:
    """Of all layers and both embeddings; norms and biases are left out (below a thousandth)."""
    hidden, heads, kv = shape["hidden_size"], shape["num_attention_heads"], shape["num_key_value_heads"]
    head = shape.get("head_dim", hidden // heads)
    attention = 2 * hidden * heads * head + 2 * hidden * kv * head
    experts = shape.get("num_experts", 0)
    inner = experts * shape["moe_intermediate_size"] if experts else shape["intermediate_size"]
    layer = attention + 3 * hidden * inner + hidden * experts
    return int(shape["num_hidden_layers"] * layer + 2 * hidden * shape["vocab_size"])


def kv_bytes(shape: dict[str, Any], tp: int) -> int:
    """K and V of one token on each GPU; with more GPUs than KV heads, heads are held more than once."""
    head = shape.get("head_dim", shape["hidden_size"] // shape["num_attention_heads"])
    heads = -(-shape["num_key_value_heads"] // tp)
    return int(2 * shape["num_hidden_layers"] * heads * head * BYTES)


def tokens(shape: dict[str, Any], tp: int, *, gib: float, reserve: float = 10.0) -> int:
    """Tokens that fit into the KV pool of a GPU of `gib`, of which `reserve` is for everything else."""
    left = (gib - reserve) * 2**30 - parameters(shape) * BYTES / tp
    return max(int(left // kv_bytes(shape, tp)), 0)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--gib", type=float, default=139.0, help="of each GPU (default: an H200's)")
    args = parser.parse_args()
    shape = SHAPES[args.shape]
    weights = parameters(shape) * BYTES / args.tp / 2**30
    print(f"{parameters(shape) / 1e9:.1f} billion parameters, {weights:.1f} GiB on each of {args.tp} GPUs")
    fit = tokens(shape, args.tp, gib=args.gib)
    print(f"KV: {kv_bytes(shape, args.tp) / 1024:.1f} KiB a token on each; {fit:,} tokens fit")


if __name__ == "__main__":
    main()
