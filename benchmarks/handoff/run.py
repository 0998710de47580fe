"""The hand-off on the clock: A speaks, B follows; overlap on, off and the floor side by side in one engine.

    python benchmarks/handoff/run.py                                   # CPU: everything 16 times smaller
    python benchmarks/handoff/run.py --shape qwen2.5-7b --attention fa3 --budget-seconds 420   # one GPU
    python benchmarks/handoff/run.py ... --upstream rate:50            # A on no engine, at 50 tokens/s
    python benchmarks/handoff/run.py ... --slice fa3,shared,300 --slice triton,shared,100   # two engines

Weights are random (`load_format=dummy`); nothing is fetched. A cell's rows are appended when it is done. Run
the same command again for the cells that are missing; `--again` measures those that are there anew.
README.md beside this says what each figure is.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_ROOT), str(_ROOT / "runtime")]

from benchmarks.arguments import engine_argument
from benchmarks.handoff.cells import CHUNKS, Cell, cells
from benchmarks.handoff.conversation import Agents, Sample, Script, tokens
from benchmarks.handoff.model import write_model
from benchmarks.handoff.sweep import chunk_times
from benchmarks.rows import RESULTS, append, common, row
from benchmarks.turns import add_argument, wait
from flashagents_runtime import GenerateRequest
from flashagents_runtime.chat_tokenizer import HFChatTokenizer
from flashagents_runtime.embedded import EmbeddedEngine
from flashagents_runtime.handoff.chunk_sizer import PrefillCurve
from flashagents_runtime.types import Progress

GPU_ARGS: dict[str, Any] = {
    "sampling_backend": "pytorch",
    "grammar_backend": "none",
    # The pool is bounded, so that engines fit beside each other: eight conversations of 10,000 tokens twice.
    "mem_fraction_static": 0.93,
    "max_total_tokens": 200_000,
    "context_length": 32768,
    "max_running_requests": 32,
    "cuda_graph_bs_decode": [1, 2, 4, 8, 12, 16],
}
CPU_ARGS: dict[str, Any] = {"max_total_tokens": 32768, "context_length": 4096}


@dataclass(frozen=True)
class Slice:
    """What is measured on one engine, in a row.

    Attributes:
        attention: SGLang's attention backend of the engine.
        upstream: "shared", A on B's engine; "rate:N", A on none, N tokens a second.
        seconds: no cell starts that would end later.
    """

    attention: str
    upstream: str
    seconds: float

    @property
    def rate(self) -> float | None:
        return None if self.upstream == "shared" else float(self.upstream.removeprefix("rate:"))

    @classmethod
    def parse(cls, text: str) -> Slice:
        """Of `ATTENTION,UPSTREAM,SECONDS`."""
        try:
            attention, upstream, seconds = text.split(",")
            found = cls(attention, upstream, float(seconds))
            if not (upstream == "shared" or upstream.startswith("rate:")) or not (found.rate or 1) > 0:
                raise ValueError
        except ValueError:
            raise argparse.ArgumentTypeError(
                f"{text!r} is not ATTENTION,UPSTREAM,SECONDS with UPSTREAM shared or rate:N"
            ) from None
        return found


class Benchmark:
    """One slice, measured cell by cell until its time is up."""

    def __init__(self, args: argparse.Namespace, what: Slice, engine: EmbeddedEngine, agents: Agents) -> None:
        self.args = args
        self.rate = what.rate
        self.engine = engine
        self.agents = agents
        self.end = time.monotonic() + what.seconds
        self.step = 0.0  # seconds that A takes for a token
        self.missing = 0  # cells for which there was no time
        self.shared: dict[str, Any] = {}
        self.key: dict[str, Any] = {"shape": args.shape, "attention": what.attention, "a": what.upstream}
        if args.expected:
            self.key["expected"] = True
        if args.share != "0.05":
            self.key["share"] = args.share
        self.done = set() if args.again else _known(args.out)

    async def run(self) -> None:
        """All cells that are missing and fit into the time."""
        import torch

        self.device = "cpu" if self.args.cpu else torch.cuda.get_device_name()
        self.shared = common("sglang", "torch", "triton", device=self.device)
        if self.rate is None or not self.agents.prefiller.curve.measured:
            await self.warm_up()
        for cell in cells(held=self.rate is not None):
            if isinstance(cell, str):
                await self.chunks()
            elif not self.args.only or self.args.only in f"{cell}":
                await self.cell(cell)
        if self.missing:
            print(f"no time for {self.missing} cells: run it again", flush=True)

    async def warm_up(self) -> None:
        """Kernels, graphs and the sizer's curve; not counted."""
        scale = self.args.scale
        for length in (128, 300, 600, 1200, 2000, 3000, 4000, 6000, 8000):
            await self.prefill(self.agents.script(8, length // scale).ids)
        scripts = [self.agents.script(max(256 // scale, 8), 2000 // scale) for _ in range(8)]
        for some in (scripts[:1], scripts):
            samples = await asyncio.gather(*(self.agents.off(s) for s in some))
            await asyncio.gather(*(self.agents.ours(s) for s in some))
            await self.empty()
            await asyncio.gather(*(self.agents.warm_all_but_the_last(s) for s in some))
            await asyncio.gather(*(self.agents.floor(s) for s in some))
            await self.empty()
            self.step = self.step or statistics.mean(samples[0].gaps)
        curve = self.agents.prefiller
        for size in (64, 128, 256, 512, 1024, 2048, 4096):
            for _ in range(2):
                await chunk_times(self.engine, curve, self.ids(size // scale + 8), size // scale, "one pass")
        print(f"A takes {1e3 * self.step:.2f} ms a token", flush=True)

    async def cell(self, cell: Cell) -> None:
        """One cell, if it is missing and fits."""
        args, scale = self.args, self.args.scale
        case = {**cell.case(scale), **self.key}
        if cell.heads == "warm" and cell.prefix // scale == 0:
            return
        each = cell.upstream // scale * (self.step if self.rate is None else 1 / self.rate) * 1.1
        each += (cell.prefix + cell.upstream) // scale * cell.concurrency * self.pace() * 2
        if not self.wanted("ours", case, 2.4 * args.repeats * each):
            return
        got: dict[str, list[Sample]] = {"off": [], "ours": [], "floor": []}
        for i in range(args.repeats):
            for variant in _rotated(list(got), i):
                scripts = [
                    self.agents.script(
                        cell.upstream // scale, cell.prefix // scale, wrong=_is_wrong(cell, i, j)
                    )
                    for j in range(cell.concurrency)
                ]
                await self.empty()
                if variant == "floor":
                    await asyncio.gather(*(self.agents.warm_all_but_the_last(s) for s in scripts))
                elif cell.heads == "warm":
                    await self.agents.warm_heads(scripts)
                one: Callable[[Script], Any] = getattr(self.agents, variant)
                got[variant] += await asyncio.gather(*(one(script) for script in scripts))
        self.add(case, got)

    def add(self, case: dict[str, Any], got: dict[str, list[Sample]]) -> None:
        """The rows of a cell."""
        rows = []

        def put(variant: str, metric: str, values: Sequence[float]) -> None:
            rows.append(row("handoff", variant, case, metric, list(values), self.shared))

        put("floor", "handoff_ms", [1e3 * (s.first - s.arrivals[0]) for s in got["floor"]])
        for variant in ("off", "ours"):
            samples = got[variant]
            put(variant, "handoff_ms", [1e3 * (s.first - s.arrivals[-1]) for s in samples])
            put(variant, "first_to_first_ms", [1e3 * (s.first - s.arrivals[0]) for s in samples])
            gaps = [[1e3 * gap for gap in s.gaps] for s in samples]
            put(variant, "upstream_itl_mean_ms", [statistics.mean(g) for g in gaps])
            for name, q in (("p50", 0.5), ("p99", 0.99), ("max", 1.0)):
                put(variant, f"upstream_itl_{name}_ms", [_quantile(g, q) for g in gaps])
            put(variant, "render_ms", [1e3 * s.render for s in samples])
            put(variant, "cached_tokens", [s.result.usage.cached_tokens for s in samples if s.result])
        figures = [s.figures for s in got["ours"] if s.figures is not None]
        for name in ("computed", "prewarmed", "wasted", "chunks"):
            put("ours", name if name == "chunks" else f"{name}_tokens", [getattr(f, name) for f in figures])
        append(self.args.out, rows, show=False)
        shown = {
            f"{r['variant']} {r['metric']}": r["p50"]
            for r in rows
            if r["metric"] in ("handoff_ms", "first_to_first_ms", "upstream_itl_mean_ms", "chunks")
        }
        print(json.dumps({k: v for k, v in case.items() if k not in self.key}), shown, flush=True)

    async def chunks(self) -> None:
        """The chunk sweep, if it is missing and fits."""
        scale = self.args.scale
        case = {"op": "chunks", "new": 2048 // scale, "cached": 4096 // scale, **self.key}
        if self.args.only or not self.wanted("sizer", case, self.args.repeats * (2.5 + 20_000 * self.pace())):
            return
        got: dict[str, list[tuple[float, int]]] = {size: [] for size in CHUNKS}
        for i in range(self.args.repeats):
            for size in _rotated(list(got), i):
                await self.empty()
                scaled = str(int(size) // scale) if size.isdigit() else size
                ids = self.ids((4096 + 2048) // scale)
                got[size].append(
                    await chunk_times(self.engine, self.agents.prefiller, ids, 2048 // scale, scaled)
                )
        rows = []
        for size, values in got.items():
            rows.append(row("handoff", size, case, "sum_ms", [1e3 * s for s, _ in values], self.shared))
            rows.append(row("handoff", size, case, "chunks", [n for _, n in values], self.shared))
        append(self.args.out, rows, show=False)
        print(
            {size: round(1e3 * statistics.median(s for s, _ in v), 1) for size, v in got.items()}, flush=True
        )

    def wanted(self, variant: str, case: dict[str, Any], seconds: float) -> bool:
        """Whether the cell is missing, and its expected `seconds` are left."""
        if _key(self.device, variant, case) in self.done:
            return False
        left = self.end - time.monotonic()
        self.missing += seconds > left
        return seconds <= left

    def pace(self) -> float:
        """Seconds a prompt token."""
        return self.agents.prefiller.curve.best_rate()

    def ids(self, n: int) -> list[int]:
        """A prompt of `n` tokens, unlike any before."""
        return self.agents.script(1, n + 8).ids[:n]

    async def prefill(self, ids: list[int]) -> None:
        async with aclosing(
            self.engine.generate(GenerateRequest(input_ids=ids, sampling=tokens(1)))
        ) as stream:
            async for _ in stream:
                pass

    async def empty(self) -> None:
        """Empty the cache; the engine may need a moment after its last answer."""
        for _ in range(500):
            if await self.engine.flush_cache():
                return
            await asyncio.sleep(0.01)
        raise RuntimeError("flush_cache was refused: the engine does not become idle")


def _is_wrong(cell: Cell, repetition: int, conversation: int) -> bool:
    """Spread the wrong forecasts evenly over the cell."""
    n = repetition * cell.concurrency + conversation
    share = (cell.wrong or 0) / 100
    return math.floor((n + 1) * share) > math.floor(n * share)


def _rotated(names: list[str], by: int) -> list[str]:
    by %= len(names)
    return names[by:] + names[:by]


def _quantile(values: Sequence[float], q: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(q * len(ordered)), len(ordered) - 1)]


def _key(device: str, variant: str, case: dict[str, Any]) -> str:
    return json.dumps([device, variant, case], sort_keys=True)


def _known(path: Path) -> set[str]:
    lines = path.read_text().splitlines() if path.exists() else []
    return {_key(r["device"], r["variant"], r["case"]) for r in map(json.loads, lines)}


async def measure(args: argparse.Namespace) -> None:
    """Start the engines, side by side, measure slice by slice, end them."""
    with tempfile.TemporaryDirectory() as folder:
        path = write_model(Path(folder), args.shape)
        more = dict(args.engine)
        os.environ["FLASHAGENTS_WARMUP_SHARE"] = args.share
        chat = HFChatTokenizer(path)
        async with AsyncExitStack() as stack:
            engines: dict[str, EmbeddedEngine] = {}
            for attention in dict.fromkeys(s.attention for s in args.slice):
                engine_args = CPU_ARGS if args.cpu else {**GPU_ARGS, "attention_backend": attention}
                engine = EmbeddedEngine(path, load_format="dummy", random_seed=0, **{**engine_args, **more})
                stack.push_async_callback(engine.close)
                engines[attention] = engine
            began = time.monotonic()
            infos = await asyncio.gather(*(engine.start(_tell) for engine in engines.values()))
            print(f"{len(engines)} engines up in {time.monotonic() - began:.1f} s: {infos[0]}", flush=True)
            wait(args)
            curves: dict[str, PrefillCurve] = {}
            for number, what in enumerate(args.slice):
                print(f"== {what.attention}, A {what.upstream}", flush=True)
                agents = Agents(
                    engines[what.attention],
                    chat,
                    args.seed + 1_000_003 * number,
                    rate=what.rate,
                    expected=args.expected,
                    scale=args.scale,
                    share=args.share,
                )
                if what.attention in curves:  # warm since its first slice
                    agents.prefiller.curve = curves[what.attention]
                curves[what.attention] = agents.prefiller.curve
                await Benchmark(args, what, engines[what.attention], agents).run()
                await agents.close()


def _tell(progress: Progress) -> None:
    print(progress.stage, file=sys.stderr)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--shape", default="smollm2-135m")
    parser.add_argument("--attention", default="torch_native", help="fa3 or triton on a GPU")
    parser.add_argument("--upstream", default="shared", help="shared, or rate:TOKENS_A_SECOND")
    parser.add_argument(
        "--slice",
        action="append",
        type=Slice.parse,
        metavar="ATTENTION,UPSTREAM,SECONDS",
        help="instead of --attention, --upstream and --budget-seconds; may be repeated",
    )
    parser.add_argument("--expected", action="store_true", help="tell sessions how long A's answer will be")
    parser.add_argument("--share", default="0.05", help="by how much warm-ups may slow A; inf is no limit")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--budget-seconds", type=float, default=1e9, help="start no cell that ends later")
    parser.add_argument("--again", action="store_true", help="measure cells that the file has, too")
    parser.add_argument("--only", default="", help="cells whose repr contains this")
    parser.add_argument("--scale", type=int, help="divides all token counts; default 1, on a CPU 16")
    parser.add_argument("--engine", type=engine_argument, action="append", default=[], metavar="NAME=VALUE")
    add_argument(parser)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--out", type=Path, default=RESULTS / "handoff.jsonl")
    args = parser.parse_args()
    try:
        args.slice = args.slice or [Slice.parse(f"{args.attention},{args.upstream},{args.budget_seconds}")]
    except argparse.ArgumentTypeError as e:
        parser.error(str(e))
    args.cpu = args.slice[0].attention == "torch_native"
    args.scale = args.scale or (16 if args.cpu else 1)
    asyncio.run(measure(args))


if __name__ == "__main__":
    main()
