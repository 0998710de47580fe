"""Make docs/performance.md from the rows of the small experiments:  python -m benchmarks.report

The kernels, the intra-turn cache and the hand-off have pages of their own, made by their own reports.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks/results"
DOC = ROOT / "docs/performance.md"

INTRO = """# Performance

Medians, with the 20th and 80th percentile in brackets. This page and the ones it names are made from
`benchmarks/results/*.jsonl`, whose rows hold device, versions, commit and the command that reproduces them.
Figures of a CPU are of shared machines: compare them within one table, not with others'.

| page | what |
|---|---|
| [hand-off](performance-handoff.md) | an upstream agent's tokens prefilled into the next prompt |
| [intra-turn cache](performance-intra-turn.md) | concurrent requests that share a cold prefix, on one H200 |
| [role LoRAs](performance-lora.md) | the sharing schemes on LRAgent's trace, beside stock SGLang's LoRA |
| [kernels](performance-kernels.md) | Flash-LoRA-Attention beside FA3 and SGLang's kernels, on one H200 |
| [the papers' workflows](performance-paper.md) | FlashAgents' experiments beside stock SGLang |
"""

TEXTS = {
    "client_overhead": """
## The client's cost a token

Cases without a wire: a scripted engine in the application's process, one core. `chunk_us`: from the engine's
delta to AutoGen's chunk (mark: under 100). `agent_chunk_us`: the same up to the consumer of
`AssistantAgent.run_stream`. `tokens_per_s`: what 64 streams carry in all; `cost_us` is what the client adds
to the engine alone. `share_percent`: where the time goes.

Cases with a wire: the engine is another process that speaks at 200 tokens/s a stream, over our frames
(embedded) or as SGLang's HTTP server does (remote). `chunk_us`: from the arrival of a token's bytes to
AutoGen's chunk; an embedded engine's I/O thread has to wake the task's own loop for it, a remote one's bytes
arrive there. `cpu_us_per_token`: CPU time of the application's process; `tokens_per_core_s` is its
reciprocal: what one core would carry, reckoned from 64 streams of 200 tokens/s, not from a run that fills the
core. `pace`: 1 keeps up with the producer; where it is lower, producer and application shared two CPUs, with
other work beside them, and which of them was late was not looked into. Read the ratios, not the figures.
In the profiles aiohttp is the largest part of a remote token, and has none in an embedded one; that HTTP
brings each stream's token by itself, and one frame those of all streams, is the likely reason.
""",
    "groupchat": """
## Teams that overlap

Conversations played by each kind of AutoGen team on a scripted engine, without and with the overlap; messages
and prompts were equal in all of them. Of the requests that came after another agent had spoken:
`foreseen_percent`, the whole conversation had been forecast; `right_percent`, and rightly so. `slot_percent`:
tokens of an upstream text in such a prompt that had been prefilled when the request came (a Swarm's hand-off
is known as a whole and has none). `cached_percent`: of the prompt, found in the cache. Where a model decides
who speaks, the rest are candidates that were not guessed. A scripted engine prefills at once: what an engine
has done in time is on the page of the hand-off.
""",
    "groupchat_engine": """
### On a real engine

Conversations taken up by each kind of team on an embedded engine with the default model: the team has read
the beginning, and its agents go on in the model's own words; who speaks is held to the conversation by
grammar. Messages and prompts were equal without and with the overlap in all of them. `right_percent`: as
above. `early_percent`: of the upstream texts in a prompt, tokens whose prefill was done before the upstream
agent had ended; `warm_percent`: when the request came. `prewarmed_percent`: of the prompt, computed while
others spoke. On a CPU a chunk takes as long as several decode steps, and these texts are a chunk or two: what
an H200 does in time is on the page of the hand-off.
""",
    "groupchat_overhead": """
### What the team layer costs

A RoundRobin team with the default model's tokenizer and heads of about 1,200 tokens: `cpu_us_per_token`, the
process's CPU time with the overlap minus without, forecasts and warm-up requests included (mark: under 50);
`share_percent`, the same of the turns' time (mark: under 1); `said_us`, handing on one delta.
""",
    "trace_cost": """
## What recording costs

A `Trace` that records, on a scripted engine and one core. `turn_us`: CPU time of one turn of the client,
recorded or not; the difference drowns in noise, so `turn_event_us` and `chunk_event_us` time what is done to
record a turn and a prefill chunk alone. `event_bytes`: memory of one event in a full ring. `share_percent`:
of one core, for 64 streams with one turn and two chunks a second each (mark: under 1).
""",
    "pressure": """
## Pressure

10, 50 and 200 workflows of agents on a KV pool too small for them, with the plug-in and prefill sessions
that help nobody (`ours`), and on SGLang's own cache without either (`stock`), in turns. `forecasts`:
`none`, eight `wrong` ones at any time that nobody closes, two `huge` ones of two fifths of the pool, eight
`endless` upstream agents. Mark: the 99th percentile of a request's time at most 1.1 times stock's
([benchmarks/pressure](../benchmarks/pressure/README.md) says what each figure is).
""",
    "pressure_reckoned": """
## Pressure in reckoned time

The same with 3, 10 and 50 workflows in a stepped scheduler whose passes last 8 ms and 40 us for each prompt
token: scheduling and eviction alone, the same on every machine. Percentiles are over the requests of all
runs together.
""",
    "wire": """
## The wire between application and host process

Frames of msgspec over a socket pair, as the embedded engine uses them, against SGLang's own HTTP interface
(server-sent events over the loopback, read by aiohttp), both at 200 tokens/s a stream.
`cpu_us_per_token`: CPU time of the application's process; `pace`: 1 keeps up with the producer;
`delivery_us`: from the arrival of a frame until the reading task has its delta; `python_us`: of that, what
our code runs, without the waits for a thread to be woken up. With one stream both wires pay for being
woken up 200 times a second, frames twice (I/O thread, then the task's own loop). With 64 streams one frame
carries the tokens of a step, and frames cost a third of HTTP: that is why they were chosen.
""",
    "startup": """
## Starting an engine

The default model on a machine without a GPU, from nothing to ready. `fork`: SGLang's children are forked from
the host process, which has imported everything already; `spawn`: as SGLang does it, and as we do with CUDA.
`cpu_seconds` is of all the engine's processes together.
""",
    "gpu_check": """
## The travel planner on a GPU

`make demo`'s conversation, bf16, through client, embedded engine and plug-in; three starts of the engine, the
first of them with cold caches of Triton and torch.compile. `until`: seconds from the call to that stage.
`cold` is the first conversation of an engine, `repeated` the same task again on it: the first token of the
cold planner pays for SGLang's torch.compile of the penalties (12.4 s on the first start of a machine, 0.7 s
with its cache). A repeated conversation may leave the first one's text, and so its cache, where bf16 rounds
a cached prefix differently from a computed one (`cached_tokens` 262 of 302).
""",
}


def load(experiment: str) -> list[dict[str, Any]]:
    """The rows of the newest run of each (device, case)."""
    path = RESULTS / f"{experiment}.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    newest: dict[str, dict[str, Any]] = {}
    for row in rows:
        newest[json.dumps([row["device"], row["variant"], row["case"], row["metric"]])] = row
    return list(newest.values())


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def table(rows: list[dict[str, Any]]) -> list[str]:
    """One line a case and variant, one column a metric; case keys that never vary stand above the table."""
    keys = {key: {json.dumps(r["case"].get(key)) for r in rows} for r in rows for key in r["case"]}
    fixed = {key: next(iter(values)) for key, values in keys.items() if len(values) == 1 < len(rows)}
    metrics = list(dict.fromkeys(r["metric"] for r in rows))
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for row in rows:
        case = ", ".join(f"{key} {value}" for key, value in row["case"].items() if key not in fixed)
        figures = f"{number(row['p50'])} ({number(row['p20'])} to {number(row['p80'])})"
        line = cells.setdefault((case, row["variant"]), {})
        line[row["metric"]] = figures
        line["n"] = str(row["n"])
    lines = []
    if fixed:
        lines = ["All rows: " + ", ".join(f"{k} {v.strip(chr(34))}" for k, v in fixed.items()) + ".", ""]
    columns = [*metrics, "n"]
    lines += [f"| case | variant | {' | '.join(columns)} |", "|---" * (len(columns) + 2) + "|"]
    for (case, variant), line in cells.items():
        lines.append(f"| {case} | {variant} | {' | '.join(line.get(c, '') for c in columns)} |")
    return lines


def main() -> None:
    parts = [INTRO]
    for experiment, text in TEXTS.items():
        rows = load(experiment)
        if not rows:
            continue
        parts.append(text)
        for device in sorted({row["device"] for row in rows}):
            mine = [row for row in rows if row["device"] == device]
            commands = sorted({row["command"] for row in mine})
            versions = ", ".join(f"{k} {v}" for k, v in sorted(mine[-1]["versions"].items()))
            parts.append(f"\nDevice: {device}; {versions}. " + " ".join(f"`{c}`" for c in commands) + "\n")
            parts.append("\n".join(table(mine)) + "\n")
    DOC.write_text("\n".join(part.strip("\n") + "\n" for part in parts))
    print(f"wrote {DOC.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
