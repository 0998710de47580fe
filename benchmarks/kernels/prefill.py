"""Large prefill passes with r = 8: our fused kernels, and joined rows for FlashAttention 3.

    python -m benchmarks.kernels.prefill

Microseconds of the device for one layer, by replays of a CUDA graph over data larger than the L2 cache:
`fa3` is stock SGLang's call without LoRA (pages of one token), `ours` the fused `extend`, `joined` is `join`
and FA3 over its rows, `join` its first half. `difference` is the largest between the outputs of `ours` and
`joined`, of values whose root mean square is `size`. Rows go to `benchmarks/results/kernels_prefill.jsonl`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.rows import RESULTS, append, common, row

SHAPES = ("llama3.1-8b", "qwen2.5-7b")
SIZES = [(new, prefix) for new in (512, 2048, 8192) for prefix in (0, 8192, 32768)]
RANK = 8


def joined(x: Any, pool: Any, cell: Any, attend: Callable[..., Any] | None) -> list[Callable[[], Any]]:
    """`join`, and `attend` over what it wrote."""
    import torch

    from flashagents_kernels.flash_lora_attention import join

    lora, rows = pool.lora(RANK, 1), x.rows[RANK]
    new, prefix = cell.new, cell.prefix
    room = [torch.empty(prefix + new, *x.k.shape[1:], dtype=x.k.dtype, device="cuda") for _ in range(2)]
    ends = torch.tensor([0, prefix + new], dtype=torch.int32, device="cuda")

    def call(table: Any) -> Any:
        pages = (pool.k, pool.v, x.indptr, table[:prefix]) if prefix else ()
        join(x.k, x.v, x.starts, *pages, max_new=new, lora=lora, lora_new=rows, out=(room[0], room[1]))
        if attend is None:
            return None
        return attend(
            x.q, *room, cu_seqlens_q=x.starts, cu_seqlens_k=ends, max_seqlen_q=new,
            max_seqlen_k=prefix + new, softmax_scale=x.q.shape[-1] ** -0.5, causal=True, out=x.out,
        )  # fmt: skip

    return [lambda t=t: call(t) for t in x.segments]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=RESULTS / "kernels_prefill.jsonl")
    args = parser.parse_args()
    import torch

    from . import external
    from .cases import Cell, Pool
    from .timing import time_graph
    from .variants import ExtendInputs

    if not torch.cuda.is_available():
        parser.exit(1, "this needs a CUDA device\n")
    from sgl_kernel.flash_attn import flash_attn_varlen_func

    shared = common("torch", "triton", "sglang-kernel", device=torch.cuda.get_device_name())
    shared["command"] = "python -m benchmarks.kernels.prefill"
    lib = external.load()
    for shape in SHAPES:
        pool: Any = None
        for new, prefix in SIZES:
            cell = Cell("extend", shape, new=new, prefix=prefix)
            pool = pool or Pool(cell.heads[1], 1 << 18)
            x = ExtendInputs(cell, pool)
            case = cell.case() | {"r": RANK}
            calls = {
                "fa3": external.fa3_extend(lib, cell, pool, x.q, x.segments),
                "ours": x.ours(RANK),
                "joined": joined(x, pool, cell, flash_attn_varlen_func),
                "join": joined(x, pool, cell, None),
            }
            outs = []
            for name in ("ours", "joined"):
                x.out.fill_(float("nan"))
                calls[name][0]()
                outs.append(x.out.float())
            apart = (outs[0] - outs[1]).abs().max().item()
            size = outs[0].pow(2).mean().sqrt().item()
            rows = [row("kernels_prefill", n, case, "us", time_graph(c), shared) for n, c in calls.items()]
            for metric, value in (("difference", apart), ("size", size)):
                rows.append(row("kernels_prefill", "joined", case, metric, [value], shared))
            append(args.out, rows)


if __name__ == "__main__":
    main()
