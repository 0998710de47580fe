"""The loads of `run.py` in reckoned time: the same figures on every machine, each time.

    python benchmarks/pressure/reckoned.py                   # CPU, a tiny model; about 5 minutes
    python benchmarks/pressure/reckoned.py --workflows 10 --forecasts wrong --shares 0.05

A real scheduler is stepped over a tiny model; a pass lasts as long as `PACES` says, and all clocks are that
one (`tests/helpers/reckoned.py`). So what stands here is what scheduling and eviction cost, apart from the
noise of a shared machine, and from what the plug-in's own Python costs: README.md says what each figure is.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_ROOT), str(_ROOT / "runtime"), str(_ROOT / "tests")]

from benchmarks.rows import RESULTS, append, common, row
from helpers.reckoned import KINDS, Load, Reckoning, Run
from helpers.reckoned_steps import Pace
from helpers.scheduler_harness import SchedulerHarness, tiny_model

PACES = {
    # Qwen2.5-7B on an H200, and the default model on two CPU cores (docs/performance.md).
    "gpu": Pace(step=0.008, token=4e-5),
    "cpu": Pace(step=0.025, token=8e-4),
}
POOL = 4096


def figures(found: Reckoning) -> dict[str, float]:
    """What is told of a run; times in milliseconds."""
    return {
        "latency_p50_ms": 1e3 * found.latency(0.5),
        "latency_p99_ms": 1e3 * found.latency(0.99),
        "ttft_p50_ms": 1e3 * found.first(0.5),
        "ttft_p99_ms": 1e3 * found.first(0.99),
        "passes_p99": found.passes(0.99),
        "tokens_before_first_p99": found.tokens(0.99),
        "cached_percent": 100 * found.cached / found.prompt,
        "warmed_tokens": float(found.warmed),
    }


def pooled(runs: list[Reckoning]) -> Reckoning:
    """All requests of several runs: of 60, the 99th percentile is the slowest one, and says little."""
    whole = Reckoning()
    for n, run in enumerate(runs):
        whole.served += run.served
        whole.prompt, whole.cached = whole.prompt + run.prompt, whole.cached + run.cached
        whole.warmed += run.warmed
        whole.outputs.update({f"{n}/{rid}": tokens for rid, tokens in run.outputs.items()})
    return whole


def play(model: Path, args: argparse.Namespace, pace: Pace, ours: bool) -> dict[Any, Reckoning]:
    """All cells on one scheduler; by (workflows, kind)."""
    settings = {"max_total_tokens": args.pool, "chunked_prefill_size": 2048}
    more = {} if ours else {"radix_cache_backend": None}
    found = {}
    with SchedulerHarness(model, **settings, **more) as s:
        s.flush()
        for count in args.workflows:
            for kind in args.forecasts if ours else ["none"]:
                runs = []
                for seed in range(args.seed, args.seed + args.seeds):
                    load = Load(count, max(args.requests // count, 2), seed=seed)
                    runs.append(Run(s, pace).play(load, kind))
                found[count, kind] = pooled(runs)
    return found


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--workflows", type=int, nargs="+", default=[10, 50, 200])
    parser.add_argument("--forecasts", nargs="+", choices=["none", *KINDS], default=["none", *KINDS])
    parser.add_argument("--paces", nargs="+", choices=list(PACES), default=list(PACES))
    parser.add_argument("--shares", nargs="+", default=["0.05", "inf"], help="of warm-ups beside decodes")
    parser.add_argument("--requests", type=int, default=200, help="of one run, at least two a workflow")
    parser.add_argument("--pool", type=int, default=POOL, help="tokens of KV memory")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=1, help="runs to take together, from that seed on")
    parser.add_argument("--out", type=Path, default=RESULTS / "pressure_reckoned.jsonl")
    args = parser.parse_args()
    shared = common("sglang", device="reckoned")
    with tempfile.TemporaryDirectory() as folder:
        model = tiny_model(Path(folder))
        for name in args.paces:
            alone = play(model, args, PACES[name], ours=False)
            for share in args.shares:
                os.environ["FLASHAGENTS_WARMUP_SHARE"] = share
                for (count, kind), found in play(model, args, PACES[name], ours=True).items():
                    stock = alone[count, "none"]
                    assert found.outputs == stock.outputs, "an answer has changed"
                    case = {"workflows": count, "forecasts": kind, "pace": name, "share": share}
                    case["pool"] = args.pool
                    rows = [
                        row("pressure_reckoned", variant, case, metric, [value], shared)
                        for variant, run in (("ours", found), ("stock", stock))
                        for metric, value in figures(run).items()
                    ]
                    ours, theirs = figures(found), figures(stock)
                    rows += [
                        row("pressure_reckoned", "ours/stock", case, m, [ours[m] / theirs[m]], shared)
                        for m in ours
                        if theirs[m] and m.rpartition("_")[2] in ("ms", "p99")
                    ]
                    append(args.out, rows, show=False)
                    ratios = {r["metric"]: r["p50"] for r in rows if r["variant"] == "ours/stock"}
                    print(case, ratios, f"warmed {found.warmed}", flush=True)


if __name__ == "__main__":
    main()
