"""Log-probs and greedy answers with publishing against stock's, on a small random model.

    python benchmarks/intra_turn/exact.py --attention fa3 --device "NVIDIA H200"
    python benchmarks/intra_turn/exact.py --cpu

Families of 8 prompts (600 tokens shared by all, 300 more by each half, 100 of their own), 16 greedy tokens.
Pairs: `stock_ours`; `stock_cached`, stock against stock with the prefix in the cache first, which is the
noise of an ordinary hit; `ours_ours`, twice the same.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from bench_engine import Bench, write_random_model
from rows import Rows

NEW = 16


class Exact:
    def __init__(self, args: argparse.Namespace) -> None:
        self.scale = 10 if args.cpu else 1
        self.vocabulary = 500 if args.cpu else 31_000
        self.rng = random.Random(11)
        shape = "tiny" if args.cpu else "random-6-layers"
        self.bench = Bench(
            cpu=args.cpu,
            model_path=str(write_random_model(Path(tempfile.mkdtemp()), shape)),
            attention_backend="torch_native" if args.cpu else args.attention,
            dtype="float32" if args.cpu else "bfloat16",
            max_total_tokens=20_000,
            mem_fraction_static=0.6 if args.cpu else 0.2,
            context_length=4096,
            page_size=args.page_size,
            **({} if args.cpu else {"cuda_graph_bs_decode": [1, 2, 4, 8]}),
        )
        self.case = {
            "attention": "torch_native" if args.cpu else args.attention,
            "shape": shape,
            "page_size": args.page_size,
        }
        self.rows = Rows(args.out, run=args.run, commit=args.commit, device=args.device)

    def tokens(self, n: int) -> list[int]:
        return [self.rng.randrange(4, self.vocabulary) for _ in range(n // self.scale)]

    def generate(self, prompts: list[list[int]], start: int) -> tuple[list[list[float]], list[list[int]]]:
        out = self.bench.engine.generate(
            input_ids=prompts,
            sampling_params={"temperature": 0.0, "max_new_tokens": NEW, "ignore_eos": True},
            return_logprob=True,
            logprob_start_len=[start] * len(prompts),
        )
        values = [
            [x[0] for x in o["meta_info"]["input_token_logprobs"] if x[0] is not None]
            + [x[0] for x in o["meta_info"]["output_token_logprobs"]]
            for o in out
        ]
        return values, [o["output_ids"] for o in out]

    def run(self, families: int) -> None:
        pairs: dict[str, list[tuple[list[float], int, int]]] = {}
        for _ in range(families):
            base, halves = self.tokens(600), [self.tokens(300), self.tokens(300)]
            prompts = [base + halves[i % 2] + self.tokens(100) for i in range(8)]
            start = len(base) + len(halves[0])
            got = {}
            for name in ("stock", "ours", "ours_again", "cached"):
                self.bench.variant("ours" if name.startswith("ours") else "stock_fcfs")
                self.bench.flush()
                if name == "cached":
                    for half in halves:
                        self.bench.engine.generate(
                            input_ids=base + half, sampling_params={"max_new_tokens": 0}
                        )
                got[name] = self.generate(prompts, start)
            for pair, a, b in (
                ("stock_ours", "stock", "ours"),
                ("stock_cached", "stock", "cached"),
                ("ours_ours", "ours", "ours_again"),
            ):
                # prompt log-probs, and the answers' first one: later ones depend on the tokens chosen
                differences = [
                    abs(x - y)
                    for u, v in zip(got[a][0], got[b][0], strict=True)
                    for x, y in list(zip(u, v, strict=True))[: len(u) - NEW + 1]
                ]
                equal = sum(u == v for u, v in zip(got[a][1], got[b][1], strict=True))
                pairs.setdefault(pair, []).append((differences, equal, len(prompts)))
        for pair, results in pairs.items():
            self.write(pair, results)

    def write(self, pair: str, results: list[tuple[list[float], int, int]]) -> None:
        differences = [d for r in results for d in r[0]]
        equal, of = sum(r[1] for r in results), sum(r[2] for r in results)
        case: dict[str, Any] = {"pair": pair, **self.case}
        self.rows.add("ours", case, "logprob_abs_diff", differences)
        self.rows.add("ours", case, "logprob_abs_diff_mean", [statistics.mean(differences)])
        self.rows.add("ours", case, "logprob_abs_diff_max", [max(differences)])
        self.rows.add("ours", case, "greedy_equal", [equal / of])
        mean = statistics.mean(differences)
        print(
            f"{self.case['attention']} {pair}: mean {mean:.6f}, max {max(differences):.6f}, "
            f"equal greedy answers {equal} of {of}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--attention", default="fa3")
    parser.add_argument("--page-size", type=int, default=1)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--run", default=time.strftime("%Y%m%d-%H%M%S"))
    parser.add_argument("--families", type=int, default=4)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/intra_turn.jsonl"))
    args = parser.parse_args()
    exact = Exact(args)
    exact.run(args.families)
    exact.bench.close()


if __name__ == "__main__":
    main()
