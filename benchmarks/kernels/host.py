"""What a call costs the host, where the device waits for it: small passes, layer by layer.

    python -m benchmarks.kernels.host

`extend` of few new tokens over a long prefix with and without an ExtendPlan: microseconds of the calling
thread a layer. `project_lr` of a few tokens: microseconds of the device, by replays of a CUDA graph, with
the kernel for few tokens and with the one for many. Llama-3.1-8B's heads, r = 8, bf16. Rows go to
`benchmarks/results/kernels_host.jsonl`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.rows import RESULTS, append, common, row

LAYERS = 32
HIDDEN = 4096
RANK = 8


def layers_of(new: int, prefix: int) -> list[dict[str, Any]]:
    """Arguments of `extend`, one layer after another: tensors of their own, page tables in common."""
    import torch

    from .cases import DIM, Pool, filled

    q_heads, kv_heads = 32, 8
    pool = Pool(kv_heads, 1 << 18)
    lora = pool.lora(RANK, 1)
    table = torch.randperm(pool.k.shape[0], device="cuda", dtype=torch.int32)[:prefix]
    common = {
        "qo_indptr": torch.tensor([0, new], device="cuda", dtype=torch.int32),
        "kv_indptr": torch.tensor([0, prefix], device="cuda", dtype=torch.int32),
        "kv_indices": table,
        "k_cache": pool.k,
        "v_cache": pool.v,
        "max_new": new,
        "lora": lora,
    }
    out = []
    for _ in range(LAYERS):
        fused = filled(new, (q_heads + 2 * kv_heads) * DIM)
        q, k, v = fused.split([q_heads * DIM, kv_heads * DIM, kv_heads * DIM], -1)
        own = {"q": q.view(new, q_heads, DIM), "k_new": k.view(new, kv_heads, DIM)}
        own |= {"v_new": v.view(new, kv_heads, DIM), "lora_new": filled(new, RANK)}
        out.append(common | own | {"out": filled(new, q_heads, DIM)})
    return out


def passes(layers: list[dict[str, Any]], planned: bool, count: int = 20) -> list[float]:
    """Microseconds a layer that the host is busy with a pass."""
    import torch

    from flashagents_kernels.flash_lora_attention import ExtendPlan, extend

    times = []
    for _ in range(count + 3):
        plan = ExtendPlan() if planned else None
        torch.cuda.synchronize()
        began = time.perf_counter()
        for layer in layers:
            extend(**layer, plan=plan)
        times.append(1e6 * (time.perf_counter() - began) / len(layers))
        torch.cuda.synchronize()
    return times[3:]


def projections(tokens: int, few: bool) -> list[float]:
    """Microseconds of the device for one layer's `project_lr`."""
    import torch

    from flashagents_kernels import project
    from flashagents_kernels.flash_lora_attention import project_lr

    from .cases import filled
    from .timing import time_graph

    x = [filled(tokens, HIDDEN) for _ in range(LAYERS)]
    down = [filled(RANK, HIDDEN) for _ in range(LAYERS)]
    rows, slots = filled(1 << 18, RANK), torch.arange(tokens, device="cuda")
    limit, project._FEW = project._FEW, (project._FEW if few else 0)
    calls: list[Callable[[], Any]] = [
        lambda a=a, b=b: project_lr(a, b, rows, slots) for a, b in zip(x, down, strict=True)
    ]
    try:
        return time_graph(calls)
    finally:
        project._FEW = limit


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=RESULTS / "kernels_host.jsonl")
    args = parser.parse_args()
    import torch

    if not torch.cuda.is_available():
        parser.exit(1, "this needs a CUDA device\n")
    shared = common("torch", "triton", device=torch.cuda.get_device_name())
    shared["command"] = "python -m benchmarks.kernels.host"
    rows = []
    for new, prefix in ((32, 2048), (32, 32768), (512, 8192)):
        layers = layers_of(new, prefix)
        for planned in (False, True):
            case = {"op": "extend", "shape": "llama3.1-8b", "new": new, "prefix": prefix, "r": RANK}
            variant = "with a plan" if planned else "without"
            rows.append(
                row("kernels_host", variant, case, "host_us_a_layer", passes(layers, planned), shared)
            )
    for tokens in (1, 8, 64):
        for few in (False, True):
            case = {"op": "project_lr", "tokens": tokens, "hidden": HIDDEN, "r": RANK}
            variant = "for few" if few else "for many"
            rows.append(row("kernels_host", variant, case, "us", projections(tokens, few), shared))
    append(args.out, rows)


if __name__ == "__main__":
    main()
