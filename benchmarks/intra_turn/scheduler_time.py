"""CPU time of SGLang's scheduler for a step with many requests waiting: ours beside stock, without a GPU.

    python benchmarks/intra_turn/scheduler_time.py                     # writes rows
    python benchmarks/intra_turn/scheduler_time.py --rounds 3 --out /tmp/rows.jsonl

Two processes, one with the plug-in and one with stock caches and no hook, run the same prompts in turn:
SGLang's own event loop over a tiny model, stepped (`tests/helpers/scheduler_harness.py`). What counts is the
CPU time of the loop's thread from one step's begin to the next one's, without the forward pass: receiving,
admission, publishing or inserting, results. It is the thread's own, so other processes disturb it little, but
each process has its own luck with memory: so there are several pairs of them. Ratios only.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_ROOT), str(_ROOT / "runtime"), str(_ROOT / "tests")]

VARIANTS = ("ours", "stock")
#: Prefill steps that begin with fewer requests waiting, and decode steps of fewer, do not count.
LEAST = 96
CASES: tuple[dict[str, int], ...] = (
    {"prompts": 192, "tokens": 500, "shared": 0, "new": 1},
    {"prompts": 192, "tokens": 500, "shared": 400, "new": 1},
    {"prompts": 128, "tokens": 40, "shared": 0, "new": 40},
)
Step = tuple[int, float, int, bool]
"""Requests that waited at its begin, seconds, requests in it, is it a prefill pass."""


def worker(variant: str) -> None:
    """Serve runs on stdin and stdout: a line with a case of `CASES` and a seed in, one with its steps out."""
    from helpers.scheduler_harness import Request, SchedulerHarness, tiny_model

    class Timed(SchedulerHarness):
        """Times each step."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self.timed: list[Step] = []
            self._began: float | None = None
            self._waited = 0
            self._forward = 0.0
            super().__init__(*args, **kwargs)
            run_batch = self.scheduler.run_batch

            def run(*a: Any, **k: Any) -> Any:
                start = time.thread_time()
                try:
                    return run_batch(*a, **k)
                finally:
                    self._forward += time.thread_time() - start

            self.scheduler.run_batch = run

        def _next_requests(self) -> list[Any]:
            if self._began is not None:
                seconds = time.thread_time() - self._began - self._forward
                step = self.steps[-1]
                self.timed.append((self._waited, seconds, len(step.rids), bool(step.extend_lens)))
            messages = super()._next_requests()
            self._waited = len(self.scheduler.waiting_queue) + len(messages)
            self._forward, self._began = 0.0, time.thread_time()
            return messages

    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # SGLang prints
    backend = {} if variant == "ours" else {"radix_cache_backend": None}
    with (
        tempfile.TemporaryDirectory() as folder,
        Timed(
            tiny_model(Path(folder)),
            overlap=True,
            max_total_tokens=100_000,
            max_running_requests=192,
            chunked_prefill_size=8192,
            context_length=8192,
            **backend,
        ) as s,
    ):
        print("ready", file=out, flush=True)
        for line in sys.stdin:
            case = json.loads(line)
            rng = random.Random(case["seed"])

            def tokens(n: int, rng: random.Random = rng) -> list[int]:
                return [4 + rng.randrange(500) for _ in range(n)]

            head, own = tokens(case["shared"]), case["tokens"] - case["shared"]
            s.flush()
            s.reqs.clear()
            s.timed.clear()
            s.submit(
                *(
                    Request(f"r{case['seed']}-{n:03}", head + tokens(own), max_new_tokens=case["new"])
                    for n in range(case["prompts"])
                )
            )
            s.run()
            print(json.dumps(s.timed), file=out, flush=True)


class Worker:
    """A process of one variant."""

    def __init__(self, variant: str) -> None:
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "0",
        }
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--worker", variant],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip
        self._line()

    def run(self, case: dict[str, int], seed: int) -> list[Step]:
        """One batch of prompts; those of its steps that count."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({**case, "seed": seed}) + "\n")
        self._process.stdin.flush()
        steps: list[Step] = json.loads(self._line())
        if case["new"] > 1:
            return [step for step in steps if not step[3] and step[2] >= LEAST]
        return [step for step in steps if step[3] and step[0] >= LEAST]

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"a worker has ended with status {self._process.wait()}")
        return line

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)


def main() -> None:
    """The command line."""
    from benchmarks.rows import RESULTS, append, common, row

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--pairs", type=int, default=6, help="of processes")
    parser.add_argument("--rounds", type=int, default=3, help="of each pair")
    parser.add_argument("--out", type=Path, default=RESULTS / "intra_turn_scheduler.jsonl")
    parser.add_argument("--worker", choices=VARIANTS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        worker(args.worker)
        return
    step_ms: list[dict[str, list[float]]] = [{variant: [] for variant in VARIANTS} for _ in CASES]
    request_us: list[dict[str, list[float]]] = [{variant: [] for variant in VARIANTS} for _ in CASES]
    ratios: list[list[float]] = [[] for _ in CASES]
    for pair in range(args.pairs):
        workers = {variant: Worker(variant) for variant in VARIANTS}
        for n, case in enumerate(CASES):
            here: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
            for round_ in range(args.rounds + 1):
                for variant in VARIANTS if (round_ + pair) % 2 else VARIANTS[::-1]:
                    steps = workers[variant].run(case, 100 * pair + round_)
                    if round_:  # else it warms up
                        step_ms[n][variant] += [1e3 * step[1] for step in steps]
                        here[variant] += [1e6 * step[1] / step[2] for step in steps]
            for variant in VARIANTS:
                request_us[n][variant] += here[variant]
            ratios[n].append(statistics.median(here["ours"]) / statistics.median(here["stock"]))
        for one in workers.values():
            one.close()
        print(f"pair {pair + 1}: ours / stock", *(f"{r[-1]:.3f}" for r in ratios), flush=True)
    facts = common("sglang", "torch", device="cpu")
    rows = []
    for n, case in enumerate(CASES):
        for variant in VARIANTS:
            for metric, values in (("step_cpu_ms", step_ms[n]), ("request_cpu_us", request_us[n])):
                rows.append(row("intra_turn_scheduler", variant, case, metric, values[variant], facts))
        rows.append(row("intra_turn_scheduler", "ours", case, "ours_over_stock", ratios[n], facts))
    append(args.out, rows)


if __name__ == "__main__":
    main()
