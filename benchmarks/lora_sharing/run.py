"""The sharing schemes on LRAgent's trace: times to first token, throughput, tokens computed, KV bytes.

    python benchmarks/lora_sharing/run.py --plan                             # what there is, and how long
    python benchmarks/lora_sharing/run.py --group shared --budget-seconds 560
    python benchmarks/lora_sharing/run.py --cpu --group shared --cells "33.7k x 1, 3 roles, 100%"

`none` is stock SGLang with its LoRA (Non-Shared), `floor` the same engine with one adapter for all steps: it
computes what a perfectly shared cache has to compute, with stock kernels, and is the bound of the others.

The engines of a group are up at the same time and take turns, run by run, each with a pool of the same size.
A cell's rows are appended when it is done. None is begun that would end after the budget; repeat the command
for what is missing.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_ROOT), str(_ROOT / "runtime")]

from benchmarks.lora_sharing import reckon
from benchmarks.lora_sharing.cells import GROUPS, OF_ENGINE, Cell, Group, case, chosen
from benchmarks.lora_sharing.engines import CPU_ARGS, GPU_ARGS, arguments, spec, write_model
from benchmarks.lora_sharing.shapes import SHAPES
from benchmarks.lora_sharing.trace import CONTEXTS, Conversation, Step, steps, tokens_of
from benchmarks.paper.engines import beside, flush
from benchmarks.paper.slices import Slice, rotated
from benchmarks.rows import RESULTS, common, row
from flashagents_runtime import GenerateRequest, SamplingParams
from flashagents_runtime.embedded import EmbeddedEngine

CPU_SCALE = 64  # divides the documents
CPU_POOL = 16  # divides the pools
LONG = 20_000  # tokens of a prompt of several chunks
SHOWN = ("ttft_sum_ms", "throughput", "tokens_computed", "kv_tokens")


@dataclass
class Run:
    """One run of one variant: all trajectories at once, from an empty cache."""

    first: list[list[float]]
    """Seconds to the first token, by trajectory and step."""
    seconds: float
    tokens: int
    computed: int
    kept: int
    """Tokens of the cache in the end."""


class Pace:
    """What runs take, over what was reckoned: the dearest of a variant's last ones counts."""

    def __init__(self) -> None:
        self._seen: dict[str, list[float]] = {}

    def learn(self, variant: str, ratio: float) -> None:
        """One run took `ratio` of what was reckoned."""
        self._seen.setdefault(variant, []).append(ratio)

    def of(self, variant: str) -> float:
        """By how much to stretch what is reckoned; within limits, for a run may have compiled something."""
        seen = self._seen.get(variant) or [ratio for some in self._seen.values() for ratio in some]
        return min(max(seen[-4:], default=1.25), 2.0)


class Trials:
    """A group's cells on engines that are up."""

    def __init__(self, args: argparse.Namespace, group: Group, engines: dict[str, EmbeddedEngine]) -> None:
        self.args = args
        self.group = group
        self.engines = engines
        self.shape = args.shape
        self.scale = args.scale
        self.pace = Pace()
        self.token_bytes: dict[str, float] = {}

    async def run(self, out: Slice) -> None:
        """What is missing and fits into the time."""
        for name, engine in self.engines.items():
            self.token_bytes[name] = await self._token_bytes(engine)
            if engine.info is not None and engine.info.max_total_tokens != self.group.pool:
                raise RuntimeError(
                    f"{name} has a pool of {engine.info.max_total_tokens} tokens, not {self.group.pool}: "
                    "too little memory is free; try --pool with less"
                )
        await self.warm_up()
        for cell in missing(self.args, self.group, list(self.engines), out):
            variants = self.group.measured(cell, list(self.engines))
            each = {v: self.reckoned(v, cell) for v in variants}
            count = repeats(self.args, self.group, cell)
            if count * sum(each.values()) > out.left:
                print(f"no time for {cell}: {count * sum(each.values()):.0f} s reckoned", flush=True)
                continue
            got: dict[str, list[Run]] = {v: [] for v in variants}
            for i in range(count):
                if i and sum(self.reckoned(v, cell) for v in variants) > out.left:
                    break  # what is done is enough for a row
                for variant in rotated(variants, i):
                    got[variant].append(await self.once(variant, cell, i))
            out.add(self.rows(cell, got, out.shared), SHOWN)

    def reckoned(self, variant: str, cell: Cell) -> float:
        """Seconds of one run, by what runs have taken so far."""
        return self.pace.of(variant) * reckon.work(variant, cell, self.group.pool, scale=self.scale).seconds

    async def warm_up(self) -> None:
        """Compile what there is to compile, on all engines at the same time; then see how fast they are."""
        began = time.monotonic()
        await asyncio.gather(*(self._warm_up(name) for name in self.engines))
        cell = Cell("1.9k" if self.args.cpu else "9.1k")
        for variant in self.group.measured(cell, list(self.engines)):
            await self.once(variant, cell, 98)
        print(f"warm after {time.monotonic() - began:.0f} s", flush=True)

    async def _warm_up(self, name: str) -> None:
        """One trajectory, eight at once, and a prompt of several chunks: the kernels of any context."""
        for context, seeds in (("9.1k", range(9_000, 9_001)), ("1.9k", range(9_010, 9_018))):
            trace = steps(CONTEXTS[context] // self.scale, 3)
            talks = [self._talk(trace, 100, seed) for seed in seeds]
            await asyncio.gather(*(self._trajectory(name, trace, talk) for talk in talks))
        long = [Step(0, LONG // self.scale, 8)]
        await self._trajectory(name, long, self._talk(long, 100, 9_999))
        await flush(self.engines[name])

    def _talk(self, trace: Sequence[Step], overlap: int, seed: int) -> Conversation:
        return Conversation(trace, overlap, seed, SHAPES[self.shape]["vocab_size"])

    async def _trajectory(
        self, name: str, trace: Sequence[Step], talk: Conversation, *, alone: bool = False
    ) -> tuple[list[float], int]:
        """Seconds to the first token of each step, and prompt tokens computed; `alone`: as one role."""
        engine = self.engines[name]
        first, computed = [], 0
        for step in trace:
            request = GenerateRequest(
                input_ids=talk.prompt(step),
                sampling=SamplingParams(max_new_tokens=step.answer, temperature=0.0, ignore_eos=True),
                lora=f"role{0 if alone else step.role}",
            )
            began, answer = time.perf_counter(), list[int]()
            async with aclosing(engine.generate(request)) as stream:
                async for delta in stream:
                    if delta.token_ids and not answer:
                        first.append(time.perf_counter() - began)
                    answer += delta.token_ids
                    if delta.result is not None:
                        usage = delta.result.usage
                        computed += usage.prompt_tokens - usage.cached_tokens
            talk.answer(step, answer)
        return first, computed

    async def once(self, variant: str, cell: Cell, seed: int) -> Run:
        """One run of a variant."""
        name = OF_ENGINE.get(variant, variant)
        trace = steps(CONTEXTS[cell.context] // self.scale, cell.roles)
        talks = [self._talk(trace, cell.overlap, 1000 * seed + t) for t in range(cell.trajectories)]
        await flush(self.engines[name])
        began = time.perf_counter()
        found = await asyncio.gather(
            *(self._trajectory(name, trace, talk, alone=variant == "floor") for talk in talks)
        )
        seconds = time.perf_counter() - began
        expected = reckon.work(variant, cell, self.group.pool, scale=self.scale)
        self.pace.learn(variant, seconds / expected.seconds)
        state = await self.engines[name].state()
        return Run(
            first=[f for f, _ in found],
            seconds=seconds,
            tokens=cell.trajectories * tokens_of(trace),
            computed=sum(computed for _, computed in found),
            kept=state.kv_total - state.kv_free,
        )

    async def _token_bytes(self, engine: EmbeddedEngine) -> float:
        """Bytes of the pool that a token takes, its rows included."""
        shape = SHAPES[self.shape]
        heads = 2 * shape["num_hidden_layers"] * shape["num_key_value_heads"] * shape["head_dim"]
        state = await engine.internal_state()
        sharing = state["flashagents"]["features"].get("lora_sharing", {})
        return float(heads * (4 if self.args.cpu else 2) + sharing.get("token_bytes_rows", 0))

    def rows(self, cell: Cell, got: dict[str, list[Run]], shared: dict[str, Any]) -> list[dict[str, Any]]:
        """One value a run."""
        found = []
        for variant, runs in got.items():
            of = case(cell, self.group.pool, self.shape, self.args.rank)
            each = self.token_bytes[OF_ENGINE.get(variant, variant)]
            steps_of = [[statistics.mean(step) for step in zip(*r.first, strict=True)] for r in runs]
            values = {
                "ttft_sum_ms": [1e3 * sum(means) for means in steps_of],
                "wall_ms": [1e3 * r.seconds for r in runs],
                "throughput": [r.tokens / r.seconds for r in runs],
                "tokens_computed": [r.computed for r in runs],
                "kv_tokens": [r.kept for r in runs],
                "kv_bytes": [r.kept * each for r in runs],
            }
            for i, of_step in enumerate(zip(*steps_of, strict=True)):
                values[f"ttft_step_{i:02}_ms"] = [1e3 * s for s in of_step]
            for metric, numbers in values.items():
                found.append(row("lora_sharing", variant, of, metric, numbers, shared))
        return found


def asked(args: argparse.Namespace) -> list[Group]:
    """The groups, with the pools that they have here."""
    found = [GROUPS[name] for name in args.group]
    pools = [args.pool or (group.pool // CPU_POOL if args.cpu else group.pool) for group in found]
    return [replace(group, pool=pool) for group, pool in zip(found, pools, strict=True)]


def missing(args: argparse.Namespace, group: Group, engines: Sequence[str], out: Slice) -> list[Cell]:
    """Cells of which the file lacks what these engines are there for."""
    return [
        cell
        for cell in chosen(group, args.cells)
        if out.missing(case(cell, group.pool, args.shape, args.rank), group.own(cell, engines))
    ]


def repeats(args: argparse.Namespace, group: Group, cell: Cell) -> int:
    """How often each variant of a cell is run."""
    every = group.measured(cell, group.engines)
    once = sum(reckon.work(v, cell, group.pool, scale=args.scale).seconds for v in every)
    return reckon.repeats(once, args.repeats)


async def measure(args: argparse.Namespace, out: Slice) -> None:
    """The groups, one after another; of each, the engines that are up at the same time."""
    with tempfile.TemporaryDirectory() as folder:
        path = write_model(Path(folder), args.shape)
        for group in asked(args):
            for names in group.starts:
                left = missing(args, group, names, out)
                if left and dearness(group, names, left[0], args.scale) > out.left:
                    print(f"no time for {group.name} on {', '.join(names)}: run it again", flush=True)
                elif left:
                    base = dict(CPU_ARGS) if args.cpu else dict(GPU_ARGS)
                    base["max_total_tokens"] = group.pool
                    base |= arguments(args.set)
                    attention = None if args.cpu else args.attention
                    specs = {n: spec(n, group.members, rank=args.rank, attention=attention) for n in names}
                    async with beside(specs, path, base, cpu=args.cpu) as engines:
                        await Trials(args, group, engines).run(out)


def dearness(group: Group, names: Sequence[str], cell: Cell, scale: int) -> float:
    """Seconds, reckoned, of a start of these engines and of one run of the cell by each variant."""
    runs = sum(reckon.work(v, cell, group.pool, scale=scale).seconds for v in group.measured(cell, names))
    return reckon.START + reckon.WARM_UP + runs


def plan(args: argparse.Namespace, out: Slice) -> None:
    """Print what there is, what is missing, and what it takes."""
    for group in asked(args):
        kind = "one after another" if group.in_turn else "side by side"
        print(
            f"\n{group.name}: {', '.join(group.engines)} {kind}, {group.pool:,} tokens each, {group.members} "
            f"adapters; {reckon.memory(group) / 2**30:.0f} of {reckon.MEMORY / 2**30:.0f} GiB"
        )
        end = 0.0
        for names in group.starts:
            left = missing(args, group, names, out)
            if left:
                end += reckon.START + reckon.WARM_UP
                print(f"  {', '.join(names)} up and warm: {end:.0f} s")
            for cell in chosen(group, args.cells):
                works = {
                    v: reckon.work(v, cell, group.pool, scale=args.scale) for v in group.measured(cell, names)
                }
                once, count = sum(work.seconds for work in works.values()), repeats(args, group, cell)
                end += count * once if cell in left else 0
                when = f"until {end:4.0f} s" if cell in left else "is there    "
                figures = ", ".join(f"{v} {w.computed:,} in {w.seconds:.0f} s" for v, w in works.items())
                print(f"  {when}  {cell!s:30} x {count}: {figures}")


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--group", type=lambda t: t.split(","), default=list(GROUPS), help=", ".join(GROUPS))
    parser.add_argument("--cells", default="", help="those whose name, as --plan prints it, contains this")
    parser.add_argument("--plan", action="store_true", help="print it, and do nothing")
    parser.add_argument("--again", action="store_true", help="measure what the file has, too")
    parser.add_argument("--pool", type=int, help="tokens of each engine; default: the group's")
    parser.add_argument("--repeats", type=int, default=3, help="at most; dear cells are measured less often")
    parser.add_argument("--shape", choices=sorted(SHAPES), help="default llama-3.1-8b, on a CPU tiny")
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--attention", default="fa3", help="of stock, the floor and `full`")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=JSON", help="engine arguments")
    parser.add_argument("--budget-seconds", type=float, default=1e9, help="start no cell that ends later")
    parser.add_argument("--cpu", action="store_true", help="the same path, tiny")
    parser.add_argument("--out", type=Path, default=RESULTS / "lora_sharing.jsonl")
    args = parser.parse_args(argv)
    args.shape = args.shape or ("tiny" if args.cpu else "llama-3.1-8b")
    args.scale = CPU_SCALE if args.cpu else 1
    if unknown := set(args.group) - set(GROUPS):
        parser.error(f"no such groups: {', '.join(sorted(unknown))}; there are {', '.join(GROUPS)}")
    return args


def main() -> None:
    """Measure, or print the plan."""
    import torch

    args = parse()
    device = "cpu" if args.cpu else "NVIDIA H200"  # of a plan that is made elsewhere
    if not args.cpu and torch.cuda.is_available():
        device = torch.cuda.get_device_name()
    elif not args.cpu and not args.plan:
        sys.exit("there is no GPU: --cpu tries it all, tiny; --plan prints what there is")
    shared = common("sglang", "torch", "triton", device=device)
    out = Slice(args.out, shared, args.budget_seconds, again=args.again)
    if args.plan:
        plan(args, out)
    else:
        asyncio.run(measure(args, out))


if __name__ == "__main__":
    main()
