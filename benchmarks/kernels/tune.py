"""Search launch configurations on the device; prints the best of each cell and writes every timing.

python -m benchmarks.kernels.tune warm I N [decode]   # compile share I of N into Triton's cache
python -m benchmarks.kernels.tune decode --seconds 100 --out tune.jsonl --cell qwen2.5-7b,8,8192
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

WAVES = (1, 2, 4)
PDL = (0, 1, 2)
DECODE_CELLS = [("llama3.1-8b", 32, 1024), ("llama3.1-8b", 32, 8192), ("llama3.1-8b", 128, 1024)]
EXTEND_CELLS = [(32, 65536), (128, 32768), (32, 8192), (128, 8192), (512, 8192), (512, 2048), (128, 2048)]
RANKS = (0, 16, 64)


def decode_configs(rank: int) -> list[DecodeConfig]:
    tiles = [(4, 16, 5), (4, 16, 7), (2, 16, 5)]
    return [DecodeConfig(*t, spread=0 < rank <= 32) for t in tiles]


def extend_configs(rank: int, gather: bool) -> list[ExtendConfig]:
    tiles = [(64, 64, 4, 2), (64, 64, 4, 3), (128, 64, 8, 3)] + ([] if rank else [(128, 128, 8, 3)])
    splits = (1, 2) if gather else (2, 4, 8)
    found = [ExtendConfig(*t, gather=gather, splits=s) for t in tiles for s in splits]
    if not gather:
        packed = [(64, 64, 4, 2), (64, 64, 4, 3), (128, 64, 8, 2), (128, 64, 8, 3), (128, 64, 4, 3)]
        found += [ExtendConfig(*t, splits=s, pack=True) for t in packed for s in (4, 8, 16)]
    return found


def jobs() -> list[tuple[Any, ...]]:
    """(op, shape, configuration, rank); a folded low-rank term leaves the kernels of rank 0."""
    pairs = [(0, True), (0, False), (16, False)]
    extend = [("extend", "llama3.1-8b", c, r) for r, g in pairs for c in extend_configs(r, g)]
    decode = [
        ("decode", s, dataclasses.replace(c, pdl=p), r)
        for s in SHAPES
        for r in RANKS
        for c in decode_configs(r)
        for p in PDL
    ]
    return decode + extend


def warm(share: int, shares: int, only: str | None = None) -> None:
    import torch

    pools: dict[int, Pool] = {}
    for op, shape, config, rank in [j for j in jobs() if only in (None, j[0])][share::shares]:
        heads = SHAPES[shape][1]
        pool = pools.setdefault(heads, Pool(heads, 4096))
        try:
            if op == "decode":
                DecodeInputs(Cell(op, shape, batch=2, context=128), pool).ours(rank, config)[0]()
            else:
                ExtendInputs(Cell(op, shape, new=256, prefix=256), pool).ours(rank, config)[0]()
            torch.cuda.synchronize()
        except Exception as error:
            print("warm failed", op, config, rank, repr(error)[:200], flush=True)


def search(op: str, seconds: float, out: Path, decode_cells: list[tuple[str, int, int]]) -> None:
    start = time.monotonic()
    pools: dict[int, Pool] = {}
    cells = (
        [Cell("decode", s, batch=b, context=c) for s, b, c in decode_cells]
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
            for rank in RANKS:
                table = []
                for config in candidates(op, cell, rank):
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
                if not table:
                    continue
                table.sort(key=lambda x: x[0])
                base = base or table[0][0]
                tops = " | ".join(f"{us:.1f} {short(c)}" for us, c in table[:4])
                print(f"{cell.key} r{rank} ratio {base / table[0][0]:.3f} | {tops}", flush=True)


def candidates(op: str, cell: Cell, rank: int) -> list[Any]:
    if op == "decode":
        triples = itertools.product(decode_configs(rank), WAVES, PDL)
        return [dataclasses.replace(c, waves=w, pdl=p) for c, w, p in triples]
    found = extend_configs(0, True) if cell.new >= 512 or cell.prefix <= 2048 else []
    return found + (extend_configs(rank, False) if cell.new < 512 and rank <= 16 else [])


def short(config: Any) -> str:
    values = (getattr(config, f) for f in config.__dataclass_fields__)
    return "(" + ",".join(str(int(v)) for v in values) + ")"


def main() -> int:
    if sys.argv[1] == "warm":
        warm(int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:5])
        return 0
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("op", choices=["decode", "extend"])
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--out", type=Path, default=Path("tune.jsonl"))
    parser.add_argument("--cell", action="append", help="SHAPE,BATCH,CONTEXT of decode; may be repeated")
    args = parser.parse_args()
    cells = [c.split(",") for c in args.cell or []]
    search(args.op, args.seconds, args.out, [(s, int(b), int(c)) for s, b, c in cells] or DECODE_CELLS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
