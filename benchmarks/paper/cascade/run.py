"""FlashAgents' two-agent cascade and its ablation: ours beside stock SGLang, each on an engine of its own.

    python benchmarks/paper/cascade/run.py --setup tiny-shared --scale 16                    # CPU
    python benchmarks/paper/cascade/run.py --setup 7b-shared --budget-seconds 400            # one GPU
    python benchmarks/paper/cascade/run.py --setup 7b-rate50 --cells ablation
    python benchmarks/paper/cascade/run.py --setup 7b-rate50 --cells ablation-loras

A cell's rows are appended when it is done; run the same command again for the cells that are missing.
README.md, one folder up, says what each figure is.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(_ROOT), str(_ROOT / "runtime")]

from benchmarks.handoff.conversation import Agents, Sample
from benchmarks.handoff.model import write_model
from benchmarks.paper.cascade.cells import SETUPS, Cell, ablation, cascade
from benchmarks.paper.engines import ROLES, flush, running
from benchmarks.paper.slices import Slice, rotated
from benchmarks.rows import RESULTS, common, row
from flashagents_runtime.chat_tokenizer import HFChatTokenizer
from flashagents_runtime.embedded import EmbeddedEngine


@dataclass(frozen=True)
class Variant:
    """What is compared: an engine of `engines.SPECS`, with the overlap or without, heads warmed or not.

    With `loras` the conversations' B's take turns as the role adapters of `engines.ROLES`.
    """

    engine: str
    overlap: bool
    warm: bool = False
    loras: bool = False


VARIANTS = {
    "stock-fcfs": Variant("stock-fcfs", False),
    "stock-lpm": Variant("stock-lpm", False),
    "handoff": Variant("flash-without-intra-turn", True),
    "intra-turn": Variant("flash", False),
    "ours": Variant("flash", True),
    "ours-sjf": Variant("flash-sjf", True),
    "stock-lpm, heads warm": Variant("stock-lpm", False, warm=True),
    "ours, heads warm": Variant("flash", True, warm=True),
    "stock-lpm, role LoRAs": Variant("stock-lora", False, loras=True),
    "ours, role LoRAs": Variant("flash-lora", True, loras=True),
    "ours + LoRA sharing, role LoRAs": Variant("flash-lora-shared", True, loras=True),
}
OF_CASCADE = ("stock-fcfs", "stock-lpm", "ours", "stock-lpm, heads warm", "ours, heads warm")
OF_ABLATION = ("stock-fcfs", "stock-lpm", "handoff", "intra-turn", "ours", "ours-sjf")
OF_LORAS = (
    "stock-lpm",
    "ours",
    "stock-lpm, role LoRAs",
    "ours, role LoRAs",
    "ours + LoRA sharing, role LoRAs",
)
DEFAULT = {"cascade": OF_CASCADE, "ablation": OF_ABLATION, "ablation-loras": OF_LORAS}


class Cascade:
    """All cells of one set-up."""

    def __init__(
        self, args: argparse.Namespace, engines: dict[str, EmbeddedEngine], agents: dict[str, Agents]
    ) -> None:
        self.args = args
        self.engines = engines
        self.agents = agents  # by engine
        self.any = next(iter(agents.values()))

    async def run(self, out: Slice) -> None:
        """What is missing and fits into the time."""
        print("warming up", flush=True)
        longest = 512 if SETUPS[self.args.setup].rate is None else 128  # held to a rate, it would take long
        for prefix, output in ((4000, 128), (2000, longest)):
            for at_once in (1, 8):
                for variant in self.args.variants:
                    cell = Cell(prefix, output, at_once)
                    await self.once(variant, cell)
        cells = (cascade if self.args.cells == "cascade" else ablation)(self.args.repeats)
        for cell in cells:
            if cell.prefix not in self.args.prefix or cell.output not in self.args.output:
                continue
            case = {
                "setup": self.args.setup,
                "cells": self.args.cells,
                "prefixes": self.args.prefixes,
                "prefix": cell.prefix // self.args.scale,
                "output": cell.output // self.args.scale,
                "concurrency": cell.concurrency,
            }
            if out.missing(case, self.args.variants):
                async with out.timed(case, cell.repeats) as fits:
                    if fits:
                        out.add(self.rows(case, out.shared, await self.cell(cell)))

    async def cell(self, cell: Cell) -> dict[str, list[list[Sample]]]:
        """Samples of each variant, a list a repeat."""
        got: dict[str, list[list[Sample]]] = {name: [] for name in self.args.variants}
        for i in range(cell.repeats):
            for name in rotated(list(got), i):
                got[name].append(await self.once(name, cell))
        return got

    async def once(self, name: str, cell: Cell) -> list[Sample]:
        """One repeat of one variant, from an empty cache."""
        variant, scale = VARIANTS[name], self.args.scale
        agents = self.agents[variant.engine]
        told = self.any.text(cell.prefix // scale) if self.args.prefixes == "shared" else None
        scripts = [
            self.any.script(cell.output // scale, cell.prefix // scale, told=told)
            for _ in range(cell.concurrency)
        ]
        if variant.loras:
            for i, script in enumerate(scripts):
                script.lora = ROLES[i % len(ROLES)]
        await flush(self.engines[variant.engine])
        if variant.warm:
            await agents.warm_heads(scripts)
        one = agents.ours if variant.overlap else agents.off
        return list(await asyncio.gather(*(one(script) for script in scripts)))

    def rows(
        self, case: dict[str, Any], shared: dict[str, Any], got: dict[str, list[list[Sample]]]
    ) -> list[dict[str, Any]]:
        """Medians over conversations; the slowest conversation of each repeat as `_last`."""
        found = []
        for name, repeats in got.items():

            def put(metric: str, values: Sequence[float], name: str = name) -> None:
                found.append(row("paper_cascade", name, case, metric, list(values), shared))

            for metric, at in (("first_to_first", 0), ("handoff", -1)):
                times = [[1e3 * (s.first - s.arrivals[at]) for s in samples] for samples in repeats]
                put(f"{metric}_ms", [t for of_repeat in times for t in of_repeat])
                put(f"{metric}_last_ms", [max(of_repeat) for of_repeat in times])
            samples = [s for of_repeat in repeats for s in of_repeat]
            gaps = [1e3 * sum(s.gaps) / len(s.gaps) for s in samples if s.gaps]
            put("upstream_itl_mean_ms", gaps)
            put("cached_tokens", [s.result.usage.cached_tokens for s in samples if s.result])
        return found


async def measure(args: argparse.Namespace) -> None:
    """Start the engines, all or in turn, run, end them."""
    import torch

    cpu = not torch.cuda.is_available()
    device = "cpu" if cpu else torch.cuda.get_device_name()
    out = Slice(args.out, common("sglang", "torch", "triton", device=device), args.budget_seconds)
    names = list(dict.fromkeys(VARIANTS[name].engine for name in args.variants))
    asked = args.variants
    with tempfile.TemporaryDirectory() as folder:
        path = write_model(Path(folder), SETUPS[args.setup].shape)
        for group in [[name] for name in names] if args.in_turn else [names]:
            args.variants = [name for name in asked if VARIANTS[name].engine in group]
            if group != names and out.left < 90:
                print(f"no time for {', '.join(group)}: run it again", flush=True)
                continue
            await beside_each_other(args, group, path, out, cpu=cpu)
    out.end()


async def beside_each_other(
    args: argparse.Namespace, names: list[str], path: Path, out: Slice, *, cpu: bool
) -> None:
    """These engines at once, and what their variants lack."""
    setup = SETUPS[args.setup]
    more = {"tp_size": args.tp} if args.tp > 1 else {}
    if args.cells != "cascade" and not cpu:
        more["max_total_tokens"] = 60_000  # its cells need 18,000, and five engines share a GPU
    async with AsyncExitStack() as stack:
        engines = await stack.enter_async_context(running(names, path, cpu=cpu, more=more))
        speaker: EmbeddedEngine | None = None
        if setup.two_gpus:
            found = await stack.enter_async_context(running(["stock-fcfs"], path, cpu=cpu, gpu=args.tp))
            speaker = found["stock-fcfs"]
        chat = HFChatTokenizer(path)
        agents = {}
        for name, engine in engines.items():
            agents[name] = Agents(engine, chat, args.seed, speaker=speaker, rate=setup.rate, scale=args.scale)
            stack.push_async_callback(agents[name].close)
        await Cascade(args, engines, agents).run(out)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--setup", choices=SETUPS, default="tiny-shared")
    parser.add_argument("--cells", choices=DEFAULT, default="cascade")
    parser.add_argument("--variants", help="with '; ' between; default: those of the cells")
    parser.add_argument(
        "--prefixes", choices=("shared", "own"), default="shared", help="do all B's have the same prefix"
    )
    parser.add_argument("--prefix", type=_numbers, default=(500, 1000, 2000, 4000))
    parser.add_argument("--output", type=_numbers, default=(128, 256, 512, 1024, 2048))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--scale", type=int, default=1, help="divides all token counts")
    parser.add_argument("--tp", type=int, default=1, help="GPUs of each engine")
    parser.add_argument("--in-turn", action="store_true", help="one engine after another: large models")
    parser.add_argument("--budget-seconds", type=float, default=1e9, help="start no cell that ends later")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--out", type=Path, default=RESULTS / "paper_cascade.jsonl")
    args = parser.parse_args()
    args.variants = (
        [v.strip() for v in args.variants.split(";")] if args.variants else list(DEFAULT[args.cells])
    )
    if unknown := set(args.variants) - set(VARIANTS):
        parser.error(f"no such variants: {', '.join(sorted(unknown))}; there are {', '.join(VARIANTS)}")
    print(json.dumps({k: str(v) for k, v in vars(args).items()}), flush=True)
    asyncio.run(measure(args))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


if __name__ == "__main__":
    main()
