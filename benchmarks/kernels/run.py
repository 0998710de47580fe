"""Run slices of the kernel benchmark; a slice goes on where an earlier run stopped.

    python -m benchmarks.kernels.run --list
    python -m benchmarks.kernels.run --slice decode/llama3.1-8b --seconds 120
    python -m benchmarks.kernels.run --slice extend --again --out results.jsonl

A slice is a prefix of cell keys (`decode/<shape>/b<batch>/c<context>`, `extend/<shape>/n<new>/p<prefix>`).
Cells whose rows are in `--out` already are skipped, unless `--again` is given.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from .cases import DIM, SHAPES, Cell, decode_cells, extend_cells

RESULTS = Path(__file__).parents[1] / "results" / "kernels.jsonl"


def registry() -> dict[str, Cell]:
    return {cell.key: cell for cell in decode_cells() + extend_cells()}


def done_keys(path: Path) -> set[str]:
    """Keys of the cells that `path` holds rows of our own kernels for."""
    if not path.exists():
        return set()
    by_case = {json.dumps(cell.case(), sort_keys=True): key for key, cell in registry().items()}
    found = set()
    for line in path.read_text().splitlines():
        row = json.loads(line)
        case = {k: v for k, v in row["case"].items() if k not in ("r", "roofline_us")}
        if row["variant"] == "ours":
            found.add(by_case.get(json.dumps(case, sort_keys=True), ""))
    return found


def commit() -> str:
    if "COMMIT" in os.environ:
        return os.environ["COMMIT"]
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"


def versions() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for name in ("torch", "triton", "sglang", "sglang-kernel"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--slice", action="append", default=[], help="prefix of cell keys; may be repeated")
    parser.add_argument("--seconds", type=float, default=300, help="stop starting cells after this long")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--warm", metavar="I/N", help="only compile what share I of N of the cells needs")
    parser.add_argument("--list", action="store_true", help="list the cells and whether they have rows")
    args = parser.parse_args(argv)
    cells = [c for s in args.slice or [""] for k, c in registry().items() if k.startswith(s)]
    have = done_keys(args.out)
    if args.list:
        for cell in cells:
            print("done" if cell.key in have else "    ", cell.key)
        return 0
    if args.warm:
        share, shares = map(int, args.warm.split("/"))
        warm(cells[share::shares])
        return 0
    todo = [c for c in cells if args.again or c.key not in have]
    return measure(todo, args.seconds, args.out, "python -m benchmarks.kernels.run " + " ".join(sys.argv[1:]))


def warm(cells: list[Cell]) -> None:
    """Call every variant once; the largest cells compile nothing that smaller ones do not."""
    import torch

    from . import external
    from .cases import Pool
    from .variants import variants

    lib, pools = external.load(), {}
    for cell in cells:
        if cell.batch * cell.context > 1 << 18:
            continue
        heads = cell.heads[1]
        pool = pools.get(heads) or Pool(heads, 1 << 18)
        pools[heads] = pool
        for _, _, make in variants(cell, pool, lib):
            for calls in make():
                calls[0]()
        torch.cuda.synchronize()


def measure(cells: list[Cell], seconds: float, out: Path, command: str) -> int:
    start = time.monotonic()
    import torch

    from . import external
    from .cases import Pool
    from .timing import ceilings, quantiles, time_graph
    from .variants import variants

    lib, ceiling = external.load(), ceilings()
    print({k: round(v) for k, v in ceiling.items()}, list(lib), flush=True)
    meta: dict[str, Any] = {
        "device": torch.cuda.get_device_name(), "commit": commit(), "versions": versions(),
        "command": command,
        "run": f"kernels-{time.strftime('%Y%m%dT%H%M%S')}",
        "ceiling": {k: round(v, 1) for k, v in ceiling.items()},
    }  # fmt: skip
    out.parent.mkdir(parents=True, exist_ok=True)
    pool, pool_key = None, None
    for cell in cells:
        if time.monotonic() - start > seconds:
            print("time is up before", cell.key)
            break
        need = cell.batch * cell.context + cell.prefix + cell.new
        key = (cell.heads[1], 1 << max(20, (need - 1).bit_length()))
        if key != pool_key:
            pool = None
            torch.cuda.empty_cache()
            if 4 * key[0] * DIM * key[1] * 1.1 > torch.cuda.mem_get_info()[0]:
                print("does not fit:", cell.key)
                continue
            pool, pool_key = Pool(*key), key
        assert pool is not None
        line = cell.key
        with out.open("a") as file:
            for name, rank, make in variants(cell, pool, lib):
                try:
                    stats = min((quantiles(time_graph(c)) for c in make()), key=lambda s: s["p50"])
                except Exception as error:
                    print("failed:", cell.key, name, rank, repr(error)[:300], flush=True)
                    if "illegal" in repr(error):
                        return 1  # the device context is gone
                    continue
                case = cell.case() | {"r": rank, "roofline_us": round(cell.roofline_us(rank, ceiling), 2)}
                row = {"experiment": "kernels", "variant": name, "case": case, "metric": "us"} | stats | meta
                file.write(json.dumps(row) + "\n")
                file.flush()
                line += f"  {name}{rank or ''} {stats['p50']:.1f}"
        print(line, flush=True)
    print(f"{time.monotonic() - start:.0f} s; shapes: {', '.join(SHAPES)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
