"""What the order of the pages costs decode: the same call over shuffled and over contiguous slots.

python -m benchmarks.kernels.pages
"""

from __future__ import annotations

from .cases import Cell, Pool
from .timing import time_graph
from .variants import DecodeInputs


def main() -> None:
    for shape in ("llama3.1-8b", "qwen2.5-7b"):
        cell = Cell("decode", shape, batch=8, context=32768)
        for page in (1, 16, 1 << 19):
            inputs = DecodeInputs(cell, Pool(cell.heads[1], 1 << 19, page))
            times = {r: sorted(time_graph(inputs.ours(r), reps=5))[2] for r in (0, 8, 16, 64)}
            line = "  ".join(f"r{r} {t:.1f} ({times[0] / t:.3f})" for r, t in times.items())
            print(f"{cell.key} page {page}: {line}", flush=True)


if __name__ == "__main__":
    main()
