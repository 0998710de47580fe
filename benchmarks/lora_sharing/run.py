"""The sharing schemes on LRAgent's trace: times to first token, throughput, tokens computed, KV bytes.

    python benchmarks/lora_sharing/run.py --budget-seconds 500
    python benchmarks/lora_sharing/run.py --schemes none,base_lr --contexts 33.7k --trajectories 1,8
    python benchmarks/lora_sharing/run.py --cpu                      # the same path on a CPU, tiny

`none` is stock SGLang with its LoRA (Non-Shared), `floor` the same with one role for all steps: it computes
what a perfectly shared cache has to compute, with stock kernels, and is the bound of the other variants.
Rows go to benchmarks/results/lora_sharing.jsonl as each case ends; a case that is there already (same
variant, case, device and commit) is passed over, so a run that was cut off is finished by running it again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]

from trace import CONTEXTS, Step, inputs, steps, tokens_of

from rows import RESULTS, append, common, row
from sharing_engine import SHAPES, SharingEngine, adapter_tensors, write_config


class Run:
    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.began = time.perf_counter()
        self.shape = "tiny" if args.cpu else args.shape
        self.model = write_config(Path(tempfile.mkdtemp()), self.shape)
        self.shared = common("sglang", "torch", "triton", device=args.device)
        self.done = self._done()

    def _done(self) -> set[str]:
        if not self.args.out.exists():
            return set()
        lines = (json.loads(line) for line in self.args.out.read_text().splitlines())
        keys = ("device", "commit")
        return {
            self._key(r["variant"], r["case"])
            for r in lines
            if r["experiment"] == "lora_sharing" and all(r[k] == self.shared[k] for k in keys)
        }

    @staticmethod
    def _key(variant: str, case: dict[str, Any]) -> str:
        return json.dumps([variant, case], sort_keys=True)

    def left(self) -> float:
        return float(self.args.budget_seconds) - (time.perf_counter() - self.began)

    # ---- engines

    def engine(self, variant: str, roles: int) -> SharingEngine:
        a = self.args
        scheme = "none" if variant == "floor" else variant
        names = [f"role{i}" for i in range(roles)]
        extra: dict[str, Any] = {"max_total_tokens": 16384, "context_length": 8192}
        if not a.cpu:
            extra = {
                "dtype": "bfloat16",
                "mem_fraction_static": a.mem_fraction,
                "context_length": 135168,
                "chunked_prefill_size": 8192,
                "max_running_requests": 32,
                "cuda_graph_bs_decode": [1, 2, 4, 8],
            }
            if scheme in ("none", "full"):
                extra["attention_backend"] = a.attention
        extra |= {name: json.loads(text) for name, _, text in (pair.partition("=") for pair in a.set)}
        e = SharingEngine(
            scheme,
            names,
            cpu=a.cpu,
            model_path=str(self.model),
            load_format="dummy",
            max_lora_rank=a.rank,
            lora_target_modules=["q_proj", "v_proj"],
            **extra,
        )
        for i, name in enumerate(names):
            e.load(name, *adapter_tensors(self.shape, i, a.rank))
        return e

    # ---- the trace

    async def _trajectory(self, e: SharingEngine, trace: list[Step], seed: int) -> tuple[list[float], int]:
        """Milliseconds to the first token of each step, and prompt tokens computed."""
        history: list[int] = []
        first: list[float] = []
        computed = 0
        vocabulary = SHAPES[self.shape]["vocab_size"]
        for step, new in zip(trace, inputs(trace, seed, vocabulary), strict=True):
            history = history + new
            began = time.perf_counter()
            sampling = {"temperature": 0.0, "max_new_tokens": step.answer, "ignore_eos": True}
            stream = await e.engine.async_generate(
                input_ids=history, sampling_params=sampling, lora_path=f"role{step.role}", stream=True
            )
            answer: list[int] = []
            async for out in stream:
                if not answer:
                    first.append(1e3 * (time.perf_counter() - began))
                answer = list(out["output_ids"])
                meta = out["meta_info"]
            computed += meta["prompt_tokens"] - meta["cached_tokens"]
            history = history + answer
        return first, computed

    def once(self, e: SharingEngine, trace: list[Step], trajectories: int, seed: int) -> dict[str, Any]:
        """All trajectories at once, on an empty cache."""
        e.flush()

        async def all_of_them() -> Any:
            return await asyncio.gather(
                *(self._trajectory(e, trace, 1000 * seed + t) for t in range(trajectories))
            )

        began = time.perf_counter()
        found = e.engine.loop.run_until_complete(all_of_them())
        wall = time.perf_counter() - began
        kv = e.info["internal_states"][0]["flashagents"]["kv"]
        return {
            "ttft_sum_ms": statistics.mean(sum(first) for first, _ in found),
            "ttft_steps_ms": [statistics.mean(step) for step in zip(*(f for f, _ in found), strict=True)],
            "wall_ms": 1e3 * wall,
            "throughput": trajectories * tokens_of(trace) / wall,
            "tokens_computed": sum(computed for _, computed in found),
            "kv_bytes": kv["kv_cached"] * self.token_bytes(e),
        }

    def token_bytes(self, e: SharingEngine) -> int:
        s = SHAPES[self.shape]
        kv = (
            2
            * s["num_hidden_layers"]
            * s["num_key_value_heads"]
            * s["head_dim"]
            * (4 if self.args.cpu else 2)
        )
        return int(kv + e.figures.get("token_bytes_rows", 0))

    # ---- all of it

    def run(self) -> None:
        variants = self.args.schemes.split(",")
        for roles in (int(n) for n in self.args.roles.split(",")):
            for variant in variants:
                cases = [
                    self.case(variant, roles, int(t), c)
                    for t in self.args.trajectories.split(",")
                    for c in self.args.contexts.split(",")
                ]
                cases = [case for case in cases if self._key(variant, case) not in self.done]
                if not cases:
                    continue
                if self.left() < self.args.reserve_seconds:
                    print(f"no time left for {variant} with {roles} roles: run it again")
                    continue
                self.variant(variant, roles, cases)

    def case(self, variant: str, roles: int, trajectories: int, context: str) -> dict[str, Any]:
        ours = variant in ("base", "base_lr", "precomputed")
        return {
            "context": context,
            "roles": roles,
            "trajectories": trajectories,
            "shape": self.shape,
            "r": self.args.rank,
            "attention": "flashagents" if ours else self.args.attention,
        }

    def variant(self, variant: str, roles: int, cases: list[dict[str, Any]]) -> None:
        e = self.engine(variant, roles)
        try:
            print(f"== {variant}, {roles} roles: started in {e.start_seconds:.0f} s", flush=True)
            document = 16 if self.args.cpu else 2048
            for n in (1, 2):
                self.once(e, self.trace(variant, document, roles), n, 99)  # compiles what there is to compile
            for case in cases:
                if self.left() < self.args.reserve_seconds / 3:
                    print("no time left: run it again")
                    return
                document = CONTEXTS[case["context"]] // (64 if self.args.cpu else 1)
                trace = self.trace(variant, document, roles)
                results = []
                for seed in range(self.args.repeats):
                    results.append(self.once(e, trace, case["trajectories"], seed))
                    if self.left() < self.args.reserve_seconds / 3:
                        break
                self.write(variant, case, results)
        finally:
            e.close()

    @staticmethod
    def trace(variant: str, document: int, roles: int) -> list[Step]:
        found = steps(document, roles)
        return [Step(0, s.new, s.answer) for s in found] if variant == "floor" else found

    def write(self, variant: str, case: dict[str, Any], results: list[dict[str, Any]]) -> None:
        rows = []
        for metric in ("ttft_sum_ms", "wall_ms", "throughput", "tokens_computed", "kv_bytes"):
            rows.append(row("lora_sharing", variant, case, metric, [r[metric] for r in results], self.shared))
        for i, values in enumerate(zip(*(r["ttft_steps_ms"] for r in results), strict=True)):
            rows.append(row("lora_sharing", variant, case, f"ttft_step_{i:02}_ms", list(values), self.shared))
        append(self.args.out, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--shape", default="llama-3.1-8b", choices=sorted(SHAPES))
    parser.add_argument("--schemes", default="none,floor,full,base_lr,precomputed,base")
    parser.add_argument("--contexts", default="33.7k,9.1k,66.4k,17.3k,1.9k,128k")
    parser.add_argument("--roles", default="3")
    parser.add_argument("--trajectories", default="1,8")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--attention", default="fa3", help="of stock, the floor and `full`")
    parser.add_argument("--mem-fraction", type=float, default=0.8)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=JSON", help="server arguments")
    parser.add_argument("--budget-seconds", type=float, default=500)
    parser.add_argument("--reserve-seconds", type=float, default=60, help="what an engine and a case need")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=RESULTS / "lora_sharing.jsonl")
    args = parser.parse_args()
    if args.cpu:
        args.contexts, args.trajectories, args.repeats = "1.9k,9.1k", "1,2", 2
        args.attention = "torch_native"
    else:
        import torch

        args.device = torch.cuda.get_device_name()
    Run(args).run()


if __name__ == "__main__":
    main()
