"""Search launch configurations on the device; prints the best of each cell and writes every timing.

python -m benchmarks.kernels.tune warm I N      # compile share I of N into Triton's cache
python -m benchmarks.kernels.tune decode --seconds 100 --out tune.jsonl
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import sys
import time
from pathlib import Path
from typing import Any

from flashagents_kernels.configs import DecodeConfig, ExtendConfig

from .cases import SHAPES, Cell, Pool
from .timing import time_graph
from .variants import DecodeInputs, ExtendInputs

DECODE = [
    DecodeConfig(heads, block_n, stages)
    for heads, block_n, stages in [
        (8, 16, 5), (4, 16, 5), (4, 16, 7), (4, 32, 3), (4, 32, 5), (2, 32, 5), (2, 32, 7), (1, 64, 5),
    ]
]  # fmt: skip
WAVES = (1, 2, 3, 4, 6, 8)
DECODE_CELLS = [("llama3.1-8b", 8, 32768), ("llama3.1-8b", 1, 8192), ("llama3.1-8b", 1, 32768),
                ("llama3.1-8b", 8, 8192), ("llama3.1-8b", 32, 32768), ("llama3.1-8b", 128, 1024),
                ("qwen2.5-7b", 8, 32768), ("qwen2.5-7b", 1, 8192), ("qwen3-32b", 8, 32768)]  # fmt: skip
EXTEND = [
    ExtendConfig(*c, tma=True, gather=g)
    for c in [
        (128, 128, 8, 3),
        (128, 128, 8, 2),
        (128, 64, 8, 3),
        (128, 64, 8, 4),
        (64, 64, 4, 2),
        (64, 64, 4, 3),
    ]
    for g in (False, True)
]
EXTEND_CELLS = [(8192, 0), (8192, 8192), (2048, 8192), (2048, 0), (512, 0), (512, 8192), (128, 32768)]
KINDS = (0, 16, 64)


def jobs() -> list[tuple[Any, ...]]:
    decode = [("decode", s, c, r) for s in SHAPES for c in DECODE for r in KINDS]
    extend = [("extend", "llama3.1-8b", c, r) for c in EXTEND for r in KINDS]
    return extend + decode


def warm(share: int, shares: int) -> None:
    import torch

    pools: dict[int, Pool] = {}
    for op, shape, config, rank in jobs()[share::shares]:
        heads = SHAPES[shape][1]
        pool = pools.setdefault(heads, Pool(heads, 4096))
        try:
            if op == "decode":
                for pdl in (False, True) if shape != "qwen3-32b" else (False,):
                    chosen = dataclasses.replace(config, pdl=pdl)
                    DecodeInputs(Cell(op, shape, batch=2, context=128), pool).ours(rank, chosen)[0]()
            else:
                for prefix in (0, 256) if not config.gather else (256,):
                    ExtendInputs(Cell(op, shape, new=256, prefix=prefix), pool).ours(rank, config)[0]()
            torch.cuda.synchronize()
        except Exception as error:
            print("warm failed", op, config, rank, repr(error)[:200], flush=True)


def search(op: str, seconds: float, out: Path) -> None:
    start = time.monotonic()
    pools: dict[int, Pool] = {}
    cells = (
        [Cell("decode", s, batch=b, context=c) for s, b, c in DECODE_CELLS]
        if op == "decode"
        else [Cell("extend", "llama3.1-8b", new=n, prefix=p) for n, p in EXTEND_CELLS]
    )
    with out.open("a") as file:
        for cell in cells:
            heads = cell.heads[1]
            if heads not in pools:
                pools.clear()
                pools[heads] = Pool(heads, 1 << 20)
            inputs = (DecodeInputs if op == "decode" else ExtendInputs)(cell, pools[heads])
            base = None
            for rank in KINDS:
                table = []
                for config in candidates(op, cell):
                    if time.monotonic() - start > seconds:
                        print("time is up")
                        return
                    try:
                        us = sorted(time_graph(inputs.ours(rank, config), reps=3, budget_us=4000))[1]
                    except Exception as error:
                        print("failed", cell.key, config, repr(error)[:100])
                        continue
                    table.append((us, config))
                    row = {"key": cell.key, "r": rank, "us": us, "config": repr(config)}
                    file.write(json.dumps(row) + "\n")
                table.sort(key=lambda x: x[0])
                base = base or table[0][0]
                tops = " | ".join(f"{us:.1f} {short(c)}" for us, c in table[:4])
                print(f"{cell.key} r{rank} ratio {base / table[0][0]:.3f} | {tops}", flush=True)


def candidates(op: str, cell: Cell) -> list[Any]:
    if op == "decode":
        pairs = itertools.product(DECODE, WAVES)
        found = [DecodeConfig(c.heads, c.block_n, c.stages, w, cell.batch == 1) for c, w in pairs]
        return [c for c in found if c.heads <= cell.heads[1]]
    found = [c for c in EXTEND if cell.prefix or not c.gather]
    if cell.new <= 512 and cell.prefix:
        found = [
            ExtendConfig(c.block_m, c.block_n, c.warps, c.stages, c.tma, c.gather, s)
            for c in found if c.block_n == 64
            for s in (1, 4, 8)
        ]  # fmt: skip
    return found


def short(config: Any) -> str:
    values = (getattr(config, f) for f in config.__dataclass_fields__)
    return "(" + ",".join(str(int(v)) for v in values) + ")"


def main() -> int:
    if sys.argv[1] == "warm":
        warm(int(sys.argv[2]), int(sys.argv[3]))
        return 0
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("op", choices=["decode", "extend"])
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--out", type=Path, default=Path("tune.jsonl"))
    args = parser.parse_args()
    search(args.op, args.seconds, args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
