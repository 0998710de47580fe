"""Launch one cell's kernels a few times, for a profiler or a checker around it.

    ncu --clock-control none -k regex:decode_split --metrics dram__bytes_read.sum,gpu__time_duration.sum \\
        python -m benchmarks.kernels.profile decode/llama3.1-8b/b8/c32768 0 16 64
"""

from __future__ import annotations

import sys

import torch

from .cases import Pool
from .run import registry
from .variants import DecodeInputs, ExtendInputs


def main() -> None:
    cell = registry()[sys.argv[1]]
    tokens = cell.batch * cell.context + cell.prefix + cell.new
    pool = Pool(cell.heads[1], 1 << (tokens - 1).bit_length())
    inputs = (DecodeInputs if cell.op == "decode" else ExtendInputs)(cell, pool)
    for rank in map(int, sys.argv[2:]):
        for _ in range(2):
            inputs.ours(rank)[0]()
            torch.cuda.synchronize()


if __name__ == "__main__":
    main()
