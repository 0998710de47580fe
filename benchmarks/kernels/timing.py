"""Time device work by replaying a captured graph, and measure the device's ceilings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch


def quantiles(times: list[float]) -> dict[str, Any]:
    times = sorted(times)
    pick = [times[min(len(times) - 1, round(p * (len(times) - 1)))] for p in (0.2, 0.5, 0.8)]
    return {"p20": pick[0], "p50": pick[1], "p80": pick[2], "n": len(times)}


def time_graph(calls: Sequence[Callable[[], Any]], reps: int = 5, budget_us: float = 10_000) -> list[float]:
    """Microseconds a call; `calls` walk different data, all captured in one graph."""
    calls[0]()
    torch.cuda.synchronize()
    a, b = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    a.record()
    calls[-1]()
    b.record()
    torch.cuda.synchronize()
    once = max(a.elapsed_time(b) * 1e3, 2.0)
    rounds = max(1, min(64, int(budget_us / once / len(calls))))
    chosen = list(calls) * rounds
    if once > 500:
        chosen = chosen[: max(2, int(budget_us / once))]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in chosen:
            call()
    graph.replay()
    times = []
    for _ in range(reps):
        a.record()
        graph.replay()
        b.record()
        torch.cuda.synchronize()
        times.append(a.elapsed_time(b) * 1e3 / len(chosen))
    return times


def _eager(call: Callable[[], Any]) -> float:
    call()
    times = []
    for _ in range(6):
        a, b = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        a.record()
        call()
        b.record()
        torch.cuda.synchronize()
        times.append(a.elapsed_time(b) * 1e3)
    return sorted(times)[2]


def _bandwidth() -> tuple[float, float]:
    a = torch.randn(1 << 30, device="cuda")
    b = torch.empty_like(a)
    size = a.numel() * 4
    copy = 2 * size / min(_eager(lambda: b.copy_(a)), _eager(lambda: torch.mul(a, 1.0, out=b)))
    return copy / 1e3, size / _eager(lambda: torch.sum(a)) / 1e3


def ceilings() -> dict[str, float]:
    """Copy and read bandwidth in GB/s (eager: a copy inside a graph reads low), bf16 matrix TFLOP/s."""
    copy, read = _bandwidth()
    x, y = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    matmul = 2 * 8192**3 / sorted(time_graph([lambda: x @ y], budget_us=12_000))[3] / 1e6
    return {"copy_gbs": copy, "read_gbs": read, "matmul_tflops": matmul}
