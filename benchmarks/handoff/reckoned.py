"""The cells of `run.py` in reckoned time: what is decided, the same on every machine, without a GPU.

    python benchmarks/handoff/reckoned.py                                # CPU, a tiny model
    python benchmarks/handoff/reckoned.py --upstream 512 --prefix 2000 --concurrency 2 8

The client, its sessions and a stepped scheduler with the plug-in are the real ones; a pass lasts as long as
it was measured to on an H200, and all clocks are that one (`tests/helpers/reckoned_engine.py`). README.md
says what these figures are for, and what they do not know.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import random
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

_ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_ROOT), str(_ROOT / "runtime"), str(_ROOT / "tests")]

from benchmarks.handoff.cells import CONCURRENCY, PREFIX, UPSTREAM, Cell
from benchmarks.handoff.conversation import Agents, Sample
from benchmarks.handoff.model import write_model
from benchmarks.handoff.sweep import chunk_times
from benchmarks.rows import RESULTS, append, common, row
from flashagents_runtime.chat_tokenizer import HFChatTokenizer
from helpers import virtual_time
from helpers.reckoned_engine import ReckonedEngine
from helpers.reckoned_steps import H200
from helpers.scheduler_harness import SchedulerHarness

WIRE = 0.002
"""Seconds a way between client and scheduler: SGLang's own processes, about as measured on an H200."""
VARIANTS = ("off", "ours", "floor")
Starts = Literal["together", "spread"]


@dataclass
class Played:
    """One variant of a cell: its conversations, and the warm-up passes for which decodes waited."""

    samples: list[Sample]
    passes: int
    seconds: float


async def _play(
    s: SchedulerHarness, chat: HFChatTokenizer, cell: Cell, starts: Starts, variant: str, seed: int
) -> Played:
    clock = asyncio.get_running_loop().time
    engine = ReckonedEngine(s, H200, wire=WIRE)
    await engine.start()
    agents = Agents(engine, chat, seed, clock=clock)
    for size in (64, 128, 256, 512, 1024, 2048, 4096):  # the curves of client and plug-in
        ids = agents.script(1, size + 16).ids[: size + 8]
        await chunk_times(engine, agents.prefiller, ids, size, "one pass")
    scripts = [agents.script(cell.upstream, cell.prefix) for _ in range(cell.concurrency)]
    if variant == "floor":
        await asyncio.gather(*(agents.warm_all_but_the_last(script) for script in scripts))
    figures = s.scheduler.tree_cache.gate.figures
    passes, seconds = figures.beside_decodes, figures.seconds_beside_decodes
    rng = random.Random(seed)
    lasts = H200.seconds(0, cell.concurrency) * cell.upstream
    delays = [0.0 if starts == "together" else rng.random() * lasts for _ in scripts]
    one: Callable[[Any], Any] = getattr(agents, variant)

    async def later(delay: float, script: Any) -> Sample:
        await asyncio.sleep(delay)
        found: Sample = await one(script)
        return found

    samples = await asyncio.gather(*map(later, delays, scripts))
    await agents.close()
    await engine.close()
    return Played(samples, figures.beside_decodes - passes, figures.seconds_beside_decodes - seconds)


def play(
    s: SchedulerHarness,
    chat: HFChatTokenizer,
    cell: Cell,
    starts: Starts = "together",
    seed: int = 1,
    variants: Sequence[str] = VARIANTS,
) -> dict[str, Played]:
    """The variants of a cell, with the same texts, from a cache that has none of them."""
    return {v: virtual_time.run(_play(s, chat, cell, starts, v, seed)) for v in variants}


def figures(variant: str, played: Played) -> dict[str, list[float]]:
    """By metric, one value a conversation; times in milliseconds."""
    samples = played.samples
    found = {"handoff_ms": [1e3 * (x.first - x.arrivals[-1]) for x in samples]}
    if variant == "floor":
        return found
    found["first_to_first_ms"] = [1e3 * (x.first - x.arrivals[0]) for x in samples]
    found["upstream_itl_mean_ms"] = [1e3 * statistics.mean(x.gaps) for x in samples]
    found["upstream_itl_max_ms"] = [1e3 * max(x.gaps) for x in samples]
    found["cached_tokens"] = [float(x.result.usage.cached_tokens) for x in samples if x.result]
    if variant == "ours":
        found["chunks"] = [float(x.figures.chunks) for x in samples if x.figures]
        found["passes_beside_decodes"] = [float(played.passes)]
        found["pass_ms_beside_decodes"] = [1e3 * played.seconds]
    return found


def ratios(played: dict[str, Played]) -> dict[str, float]:
    """What the marks are about, of the means over a cell's conversations."""

    def mean(variant: str, metric: str) -> float:
        return statistics.mean(figures(variant, played[variant])[metric])

    return {
        "handoff/floor": mean("ours", "handoff_ms") / mean("floor", "handoff_ms"),
        "handoff/off": mean("ours", "handoff_ms") / mean("off", "handoff_ms"),
        "first_to_first off/ours": mean("off", "first_to_first_ms") / mean("ours", "first_to_first_ms"),
        "upstream_itl ours/off": mean("ours", "upstream_itl_mean_ms") / mean("off", "upstream_itl_mean_ms"),
    }


def harness(folder: Path) -> tuple[SchedulerHarness, HFChatTokenizer]:
    """A scheduler over a tiny model without weights, and its tokenizer."""
    path = write_model(folder, "tiny")
    s = SchedulerHarness(
        path,
        load_format="dummy",
        max_total_tokens=200_000,
        context_length=32768,
        chunked_prefill_size=8192,  # as on an H200
    )
    s.scheduler.tp_worker.model_runner.model.model.end_layer = 0  # what it says is of no matter
    return s, HFChatTokenizer(path)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--upstream", type=int, nargs="+", default=list(UPSTREAM), help="tokens of A")
    parser.add_argument("--prefix", type=int, nargs="+", default=list(PREFIX[1:]), help="of B before them")
    parser.add_argument("--concurrency", type=int, nargs="+", default=list(CONCURRENCY))
    parser.add_argument("--starts", nargs="+", choices=["together", "spread"], default=["together", "spread"])
    parser.add_argument("--share", default="0.05", help="by how much warm-ups may slow A")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS / "handoff_reckoned.jsonl")
    args = parser.parse_args()
    os.environ["FLASHAGENTS_WARMUP_SHARE"] = args.share
    os.environ["SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY"] = "0"  # of every step, for tests of caches
    shared = common("sglang", device="reckoned")
    with tempfile.TemporaryDirectory() as folder:
        s, chat = harness(Path(folder))
        gc.freeze()  # SGLang collects with each flush, and its own objects stay
        with s:
            for upstream in args.upstream:
                for prefix in args.prefix:
                    for concurrency in args.concurrency:
                        for starts in args.starts if concurrency > 1 else ["together"]:
                            cell = Cell(upstream, prefix, concurrency)
                            played = play(s, chat, cell, starts, args.seed)
                            case = {**cell.case(1), "starts": starts, "share": args.share}
                            rows = [
                                row("handoff_reckoned", variant, case, metric, values, shared)
                                for variant in played
                                for metric, values in figures(variant, played[variant]).items()
                            ]
                            append(args.out, rows, show=False)
                            show(cell, starts, played)


def show(cell: Cell, starts: Starts, played: dict[str, Played]) -> None:
    """One line."""
    named = f"A {cell.upstream} prefix {cell.prefix} x {cell.concurrency} {starts}"
    means = {v: {m: statistics.mean(x) for m, x in figures(v, p).items()} for v, p in played.items()}
    ms = " ".join(f"{v} {means[v]['handoff_ms']:.0f}" for v in means)
    ours = means["ours"]
    more = f"cached {ours['cached_tokens']:.0f} chunks {ours['chunks']:.1f}"
    more += f" max {ours['upstream_itl_max_ms']:.0f} ms"
    beside = f"passes {ours['passes_beside_decodes']:.0f} in {ours['pass_ms_beside_decodes']:.0f} ms"
    ratio = " ".join(f"{name} {value:.3f}" for name, value in ratios(played).items())
    print(f"{named}: hand-off {ms} ms; {ratio}; {more}; {beside}", flush=True)


if __name__ == "__main__":
    main()
