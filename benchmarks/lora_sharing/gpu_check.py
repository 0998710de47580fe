"""The sharing schemes on a GPU against their definitions in torch, on a small random model.

    python benchmarks/lora_sharing/gpu_check.py
    python benchmarks/lora_sharing/gpu_check.py --beside --budget-seconds 95   # all at once, graphs on
    python benchmarks/lora_sharing/gpu_check.py --cpu          # the same path on a CPU, tiny

For each scheme, with CUDA graphs on and off: `plan` computes a context and answers; `act` and `reflect` go
on from it; then all of them, the model itself and a second turn in one batch. The engine's tokens are fed to
tests/helpers/lora_reference.py (float64), and log-probs compared token by token. Stock SGLang, each agent on
its own context, gives the noise of bf16; the same answers against a wrong definition (nothing shared) give
what a mistake would look like. A scheme passes if its mean difference is at most 1.5 times the noise.
Then milliseconds of a prefill, of an increment and of a decode step on this model: few layers, so for the
ratio of the variants only. With `--beside` each scheme is checked by a process of its own, all at the same
time, and nothing is timed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "runtime"), str(ROOT / "tests")]

from benchmarks.lora_sharing.sharing_engine import SharingEngine, write_random_model
from benchmarks.paper.bounded import bounded
from benchmarks.rows import RESULTS, append, common, row
from helpers.lora_adapters import make_adapter
from helpers.lora_reference import Backbone, Context

ROLES = ("plan", "act", "reflect")
NEW = 12


class Check:
    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.began = time.perf_counter()
        self.shape = "tiny" if args.cpu else "random-4-layers"
        self.folder = Path(tempfile.mkdtemp())
        self.model = write_random_model(self.folder, self.shape)
        sizes = {"size_a": 0.05, "size_b": 0.05} if not args.cpu else {"size_a": 0.1, "size_b": 0.2}
        self.adapters = {
            name: make_adapter(
                self.folder,
                self.model,
                name,
                rank=args.rank,
                alpha=(1 + i) * args.rank,
                shared_a="team",
                **sizes,
            )
            for i, name in enumerate(ROLES)
        }
        rng = random.Random(5)
        vocabulary, scale = (500, 8) if args.cpu else (8000, 1)
        self.tokens = lambda n: [rng.randrange(4, vocabulary) for _ in range(max(4, n // scale))]
        self.context = self.tokens(args.context)
        self.tails = {name: self.tokens(96) for name in (*ROLES, None)}
        self.differences: dict[str, list[float]] = {}
        self.answers: dict[tuple[str, str], Any] = {}
        self.shared = common("sglang", "torch", "triton", device=args.device)
        self.rows: list[dict[str, Any]] = []
        self.failed: list[str] = []

    def engine(self, scheme: str, graphs: bool) -> SharingEngine:
        a = self.args
        extra: dict[str, Any] = (
            {"cuda_graph_bs_decode": [1, 2, 4, 8]} if graphs else {"disable_cuda_graph": True}
        )
        if a.cpu:
            extra = {"max_total_tokens": 8192}
        else:
            extra |= {"dtype": "bfloat16", "mem_fraction_static": 0.3, "max_total_tokens": 100_000}
            extra |= {"attention_backend": a.attention} if scheme in ("none", "full") else {}
        extra |= {name: json.loads(text) for name, _, text in (pair.partition("=") for pair in a.set)}
        return SharingEngine(
            scheme, ROLES, list(self.adapters.values()), cpu=a.cpu, model_path=str(self.model),
            chunked_prefill_size=64 if a.cpu else a.chunk, page_size=a.page_size, context_length=4096,
            **extra,
        )  # fmt: skip

    # ---- what the engine says

    def converse(self, e: SharingEngine, scheme: str) -> list[tuple[str, Any, list[int], int, int, Any]]:
        """(what, adapter, prompt, tokens of it that were cached, and shared, SGLang's answer) in order."""
        out = []

        def ask(what: str, name: str | None, ids: list[int], start: int) -> Any:
            got = e.generate(ids, NEW, name, return_logprob=True, logprob_start_len=start)
            out.append((what, name, ids, int(got["meta_info"]["cached_tokens"]), start, got))
            return got

        if scheme == "none":  # each on its own context
            for name in (*ROLES, None):
                e.flush()
                ask(f"own {name}", name, self.context + self.tails[name], 0)
            return out
        e.flush()
        first = ask("first", "plan", self.context, len(self.context))
        page = self.args.page_size
        known = self.context + first["output_ids"][:-1]
        known = known[: len(known) // page * page]
        # What follows differs at once from what is cached: an agent that computes what another one has
        # cached beyond the match goes on with that one's rows, which the definition below leaves out.
        follows = (self.context + first["output_ids"])[len(known)]
        new = [token for token in range(5, 40) if token != follows]
        for i, name in enumerate(("act", "reflect")):
            ask(f"next {name}", name, [*known, new[i], *self.tails[name]], len(known))
        names = [*ROLES, None, "act", "reflect"]
        prompts = [[*known, new[8 + i], *self.tails[n][: 8 + 3 * i]] for i, n in enumerate(names)]
        starts = [len(known) if n is not None else 0 for n in names]
        got = e.generate(prompts, NEW, names, return_logprob=True, logprob_start_len=starts)
        for i, (name, ids, start) in enumerate(zip(names, prompts, starts, strict=True)):
            cached = int(got[i]["meta_info"]["cached_tokens"])
            out.append((f"batch {i} {name}", name, ids, cached, start, got[i]))
        return out

    # ---- what the definition says

    def judge(self, scheme: str, conversation: list[Any], label: str) -> list[float]:
        """Differences of log-probs to the definition of `scheme`, token by token."""
        reference = Backbone(
            self.model,
            self.adapters,
            "none" if label == "control" else scheme,
            device="cpu" if self.args.cpu else "cuda",
        )
        shared = Context()
        differences: list[float] = []
        for what, name, ids, cached, start, got in conversation:
            if scheme == "none" or label == "control" or (name is None and start == 0):
                context = Context()
                at = 0
            elif what == "first":
                context, at = shared, 0
            else:
                at = start
                if scheme != "base" and cached < start:
                    raise RuntimeError(f"{what}: {cached} tokens cached, {start} expected")
                context = shared.cut(at)
            answer = list(got["output_ids"])
            fed = ids[at:] + answer[:-1]
            again: list[int] = []
            first = at
            if reference.scheme == "base" and name is not None and at:
                first = min(at, context.valid(name))
                again = context.tokens[first:]
            found = reference.extend(context, [*again, *fed], name, start=first)[len(again) :]
            want = [float(found[j, t]) for j, t in enumerate([*fed[1:], answer[-1]])]
            meta = got["meta_info"]
            have = [x[0] for x in meta["input_token_logprobs"] if x[0] is not None]
            have += [x[0] for x in meta["output_token_logprobs"]]
            n = min(len(have), len(want))
            part = [abs(x - y) for x, y in zip(have[-n:], want[-n:], strict=True)]
            differences += part
            if label != "control":
                print(
                    f"    {what:16} cached {cached:4}: mean {statistics.mean(part):.5f} max {max(part):.5f}"
                )
        return differences

    # ---- milliseconds

    def clock(self, e: SharingEngine, scheme: str) -> dict[str, list[float]]:
        def ms(call: Any) -> float:
            began = time.perf_counter()
            call()
            return 1e3 * (time.perf_counter() - began)

        n, times = (200, 2) if self.args.cpu else (2048, 5)
        out: dict[str, list[float]] = {"prefill_ms": [], "increment_ms": [], "decode_step_ms": []}
        for _ in range(times + 1):
            e.flush()
            prompt = self.tokens(n * (8 if self.args.cpu else 1))
            out["prefill_ms"].append(ms(lambda: e.generate(prompt, 1, "plan")))  # noqa: B023
            longer = prompt + self.tokens(64)
            out["increment_ms"].append(ms(lambda: e.generate(longer, 1, "plan")))  # noqa: B023
            prompts = [[*longer, 9 + j] for j in range(8)]
            roles = [ROLES[j % 3] for j in range(8)]
            e.generate(prompts, 1, roles)
            steps = 4 if self.args.cpu else 64
            one = ms(lambda: e.generate([[*p, 3] for p in prompts], 1, roles))  # noqa: B023
            many = ms(lambda: e.generate([[*p, 4] for p in prompts], 1 + steps, roles))  # noqa: B023
            out["decode_step_ms"].append((many - one) / steps)
        return {k: v[1:] for k, v in out.items()}

    # ---- all of it

    def spent(self) -> float:
        return time.perf_counter() - self.began

    def run(self) -> None:
        for scheme in self.args.schemes.split(","):
            for graphs in self.args.graphs.split(","):
                if self.spent() > self.args.budget_seconds:
                    print(f"no time left for {scheme}, graphs {graphs}")
                    continue
                self.one(scheme, graphs == "on")
        append(self.args.out, self.rows)
        print("FAILED: " + "; ".join(self.failed) if self.failed else "all passed")

    def one(self, scheme: str, graphs: bool) -> None:
        case = {
            "shape": self.shape,
            "r": self.args.rank,
            "context": len(self.context),
            "page_size": self.args.page_size,
            "chunk": self.args.chunk,
            "graphs": graphs,
            "attention": self.args.attention if scheme in ("none", "full") else "flashagents",
        }
        print(f"== {scheme}, CUDA graphs {'on' if graphs else 'off'} ({self.spent():.0f} s)", flush=True)
        e = None
        try:
            e = self.engine(scheme, graphs)
            print(f"   started in {e.start_seconds:.0f} s; {json.dumps(e.figures)}", flush=True)
            conversation = self.converse(e, scheme)
            print(f"   joined passes: {e.figures.get('joined', 0)}", flush=True)
            found = self.judge(scheme, conversation, "ours")
            mean = statistics.mean(found)
            self.differences.setdefault(scheme, []).append(mean)
            self.add(scheme, case, "logprob_abs_diff_mean", [mean])
            self.add(scheme, case, "logprob_abs_diff_max", [max(found)])
            noise = max(self.differences.get("none", [0.0]))
            line = f"   mean {mean:.5f}, max {max(found):.5f}; stock's noise {noise:.5f}"
            if scheme != "none":
                if noise or self.args.cpu:
                    self.hold(scheme, graphs, mean, noise)
                if len(self.differences[scheme]) == 1:
                    wrong = statistics.mean(self.judge(scheme, conversation, "control"))
                    self.add(scheme, case, "logprob_abs_diff_mean_of_a_wrong_definition", [wrong])
                    line += f"; a wrong definition {wrong:.5f}"
            print(line, flush=True)
            for metric, values in self.clock(e, scheme).items() if self.args.clock else ():
                self.add(scheme, case, metric, values)
                print(f"   {metric}: {statistics.median(values):.3f}", flush=True)
        except Exception as error:
            self.failed.append(f"{scheme} graphs={graphs}: {type(error).__name__}: {error}")
            print("   " + self.failed[-1], flush=True)
        finally:
            if e is not None:
                e.close()

    def hold(self, scheme: str, graphs: bool, mean: float, noise: float) -> None:
        """Against the noise of stock."""
        limit = 1e-3 if self.args.cpu else 1.5 * noise
        if mean > limit:
            self.failed.append(f"{scheme} graphs={graphs}: mean {mean:.5f} above {limit:.5f}")

    # ---- all at once

    def beside(self) -> None:
        """Every scheme in a process of its own, all at the same time."""
        schemes = self.args.schemes.split(",")
        with ThreadPoolExecutor(len(schemes)) as pool:
            found = dict(zip(schemes, pool.map(self._child, schemes), strict=True))
        means = {
            (scheme, row["case"]["graphs"]): row["p50"]
            for scheme, rows in found.items()
            for row in rows
            if row["metric"] == "logprob_abs_diff_mean"
        }
        stock = [mean for (scheme, _), mean in means.items() if scheme == "none"]
        noise = max(stock, default=0.0)
        if not stock:
            self.failed.append("no noise of stock to compare with: `none` has no rows")
        for (scheme, graphs), mean in means.items():
            print(f"{scheme}, CUDA graphs {'on' if graphs else 'off'}: mean {mean:.5f}, noise {noise:.5f}")
            if scheme != "none" and noise:  # on a CPU each child has held itself to what fp32 leaves
                self.hold(scheme, graphs, mean, noise)
        append(self.args.out, [{**row, **self.shared} for rows in found.values() for row in rows], show=False)
        print("FAILED: " + "; ".join(self.failed) if self.failed else f"all passed ({self.spent():.0f} s)")

    def _child(self, scheme: str) -> list[dict[str, Any]]:
        """Its rows."""
        rows, log = self.folder / f"{scheme}.jsonl", self.folder / f"{scheme}.log"
        words = [sys.executable, __file__, "--schemes", scheme, "--no-clock", "--out", str(rows)]
        for name in ("graphs", "attention", "rank", "context", "page_size", "chunk"):
            words += [f"--{name.replace('_', '-')}", str(getattr(self.args, name))]
        for pair in self.args.set:
            words += ["--set", pair]
        with log.open("wb") as output:
            code, _ = bounded(
                [*words, "--cpu"] if self.args.cpu else words,
                self.args.budget_seconds - self.spent(),
                output=output,
            )
        said = log.read_text(errors="replace").splitlines()
        print("\n".join(line for line in said if line.startswith(("==", "   "))), flush=True)
        if code or not rows.exists():
            self.failed.append(f"{scheme}: exit status {code} after {self.spent():.0f} s")
            print("\n".join(said[-25:]), flush=True)
        return [json.loads(line) for line in rows.read_text().splitlines()] if rows.exists() else []

    def add(self, scheme: str, case: dict[str, Any], metric: str, values: list[float]) -> None:
        self.rows.append(row("lora_sharing", scheme, case, metric, values, self.shared))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--schemes", default="none,base_lr,precomputed,full,base")
    parser.add_argument("--graphs", help="off,on is the default")
    parser.add_argument("--attention", default="fa3", help="of stock and of `full`")
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--context", type=int, default=600)
    parser.add_argument("--chunk", type=int, default=256, help="tokens of a prefill pass")
    parser.add_argument("--page-size", type=int, default=1)
    parser.add_argument("--budget-seconds", type=float, default=480)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=JSON", help="server arguments")
    parser.add_argument("--beside", action="store_true", help="all schemes at once; graphs on unless told")
    parser.add_argument("--no-clock", dest="clock", action="store_false", help="time nothing")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=RESULTS / "lora_sharing.jsonl")
    args = parser.parse_args()
    args.graphs = args.graphs or ("on" if args.beside else "off,on")
    if args.cpu:
        args.graphs = "off"
    else:
        import torch

        args.device = torch.cuda.get_device_name()
    if args.beside:  # for each child, whose reference computes on the CPU
        os.environ["OMP_NUM_THREADS"] = str(max(1, (os.cpu_count() or 1) // len(args.schemes.split(","))))
    check = Check(args)
    if args.beside:
        check.beside()
    else:
        check.run()
    sys.exit(bool(check.failed))


if __name__ == "__main__":
    main()
