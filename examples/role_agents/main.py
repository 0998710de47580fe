"""Three role agents, LoRA adapters of one backbone, with and without a shared cache, and with overlap.

    python examples/role_agents/main.py
    python examples/role_agents/main.py --compare
    python examples/role_agents/main.py --schemes none,full,base,base_lr,precomputed --rounds 2

One plans, one acts, one reflects, in turn; the role is in the adapter, and all of them read the same
transcript. The adapters are random and small, made on the spot: they show what is computed and kept, not what
role agents can do. For each scheme an engine of its own is started.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.base import ChatAgent
from rich.console import Console
from rich.table import Table

from flashagents_autogen import (
    FlashAgentsChatCompletionClient,
    FlashRoundRobinGroupChat,
    TranscriptChatCompletionContext,
)
from flashagents_autogen.teams.timeline import Stopwatch, TimedTurn, print_timelines, same_texts
from flashagents_runtime import FlashAgentsError
from flashagents_runtime.embedded import EmbeddedEngine
from flashagents_runtime.model_store import resolve_model
from flashagents_runtime.progress import show_progress

ROLES = ("plan", "act", "reflect")
SYSTEM = (
    "You solve tasks in a team. Read the transcript, then write the next contribution, short and concrete."
)
TASK = (
    "A small town wants to turn its disused railway station into a public place. There are 40,000 "
    "euros, a roof that leaks in two places, a park next to it, and many volunteers with time on Saturdays. "
    "Find out what people need, choose, and say who does what until summer."
)


@dataclass
class Result:
    """What one scheme came to: the runs by their titles, and the bytes of KV cached by the first."""

    scheme: str
    runs: dict[str, list[TimedTurn]]
    kv_bytes: int


def write_adapter(folder: Path, model: Path, number: int, rank: int = 8) -> Path:
    """A random adapter of q_proj and v_proj in PEFT's format; all have the same `v_proj.lora_A`."""
    import numpy as np
    from safetensors.numpy import save_file

    c = json.loads((model / "config.json").read_text())
    head = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
    sizes = {"q_proj": head * c["num_attention_heads"], "v_proj": head * c["num_key_value_heads"]}
    own, common = np.random.default_rng(number), np.random.default_rng(1000)
    tensors = {}
    for i in range(c["num_hidden_layers"]):
        for module, rows in sizes.items():
            name = f"base_model.model.model.layers.{i}.self_attn.{module}"
            rng = common if module == "v_proj" else own
            down = rng.standard_normal((rank, c["hidden_size"])) / c["hidden_size"] ** 0.5
            tensors[f"{name}.lora_A.weight"] = down.astype(np.float32)
            tensors[f"{name}.lora_B.weight"] = (0.01 * own.standard_normal((rows, rank))).astype(np.float32)
    path = folder / ROLES[number]
    path.mkdir(parents=True)
    save_file(tensors, path / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": 2 * rank,
        "target_modules": list(sizes),
        "lora_dropout": 0.0,
        "bias": "none",
        "base_model_name_or_path": str(model),
    }
    (path / "adapter_config.json").write_text(json.dumps(config))
    return path


def token_bytes(model: Path, itemsize: int) -> int:
    """Bytes of K and V of one token."""
    c = json.loads((model / "config.json").read_text())
    head = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
    return int(2 * c["num_hidden_layers"] * c["num_key_value_heads"] * head * itemsize)


def build_team(
    engine: EmbeddedEngine, *, overlap: bool, rounds: int = 2, max_tokens: int = 40
) -> FlashRoundRobinGroupChat:
    """The roles in turn, each with a client of its own on the one engine, all on one transcript."""

    def agent(role: str) -> ChatAgent:
        client = FlashAgentsChatCompletionClient(
            engine=engine, lora=role, max_tokens=max_tokens, temperature=0
        )
        return AssistantAgent(
            role,
            model_client=client,
            system_message=SYSTEM,
            model_context=TranscriptChatCompletionContext(),
            model_client_stream=True,
        )

    agents = [agent(role) for role in ROLES]
    return FlashRoundRobinGroupChat(agents, max_turns=rounds * len(ROLES), overlap=overlap)


async def converse(
    engine: EmbeddedEngine, *, overlap: bool, rounds: int = 2, max_tokens: int = 40
) -> list[TimedTurn]:
    """One conversation on the task, from an empty cache."""
    await engine.flush_cache()
    stopwatch = Stopwatch()
    team = build_team(engine, overlap=overlap, rounds=rounds, max_tokens=max_tokens)
    async for _ in stopwatch.watch(team, TASK):
        pass
    return stopwatch.turns


async def run(scheme: str, model: Path, adapters: dict[str, str], options: argparse.Namespace) -> Result:
    """One engine, one conversation, or two where they are compared; the figures of both."""
    size = {"rounds": options.rounds, "max_tokens": options.max_tokens}
    engine = EmbeddedEngine(model, lora_paths=adapters, lora_sharing=scheme)
    with show_progress() as progress:
        info = await engine.start(progress)
    async with engine:
        # What the first requests of an engine cost is no matter of sharing.
        await converse(engine, overlap=False, rounds=1, max_tokens=1)
        runs = {"overlap off": await converse(engine, overlap=False, **size)}
        state = await engine.state()
        features = (await engine.internal_state())["flashagents"]["features"]
        rows = features.get("lora_sharing", {}).get("token_bytes_rows", 0)
        itemsize = 4 if info.device == "cpu" else 2
        if options.compare:
            runs["overlap on"] = await converse(engine, overlap=True, **size)
        return Result(scheme, runs, state.kv_cached * (token_bytes(model, itemsize) + rows))


def show(results: list[Result], out: Console) -> None:
    """The turns of the last scheme, the timelines where runs were compared, and all schemes side by side."""
    for turn in results[-1].runs["overlap off"]:
        out.print(f"[bold]{turn.agent}[/]: {turn.text.strip()}", highlight=False)
    for result in results:
        if len(result.runs) > 1:
            out.print()
            print_timelines(out, {f"{result.scheme}, {title}": run for title, run in result.runs.items()})
            out.print(f"same answers: {'yes' if same_texts(result.runs) else 'NO'}")
    table = Table(
        "lora_sharing", "prompt tokens", "computed", "cached KV, MB", "hand-offs, ms to first token"
    )
    for result in results:
        turns = result.runs["overlap off"]
        hand_offs = " ".join(f"{1e3 * (turn.first_token - turn.began):.0f}" for turn in turns[1:])
        prompts = sum(turn.prompt_tokens for turn in turns)
        computed = prompts - sum(turn.cached_tokens for turn in turns)
        table.add_row(result.scheme, f"{prompts}", f"{computed}", f"{result.kv_bytes / 1e6:.1f}", hand_offs)
    out.print()
    out.print(table)


async def play(options: argparse.Namespace, out: Console) -> list[Result]:
    """Each scheme on an engine of its own."""
    with show_progress() as progress:
        model = Path(resolve_model(options.model, progress=progress))
    results = []
    with tempfile.TemporaryDirectory() as folder:
        adapters = {
            role: str(write_adapter(Path(folder), model, number)) for number, role in enumerate(ROLES)
        }
        for scheme in options.schemes.split(","):
            out.print(f"{scheme}:")
            results.append(await run(scheme, model, adapters, options))
    return results


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 0, 1 for an error of ours (one line), 130 on Ctrl-C."""
    parser = argparse.ArgumentParser(description="Three role agents, LoRA adapters that share one cache.")
    parser.add_argument("--model", help="a Hugging Face folder or hub id (default: SmolLM2-135M-Instruct)")
    parser.add_argument(
        "--schemes", default="none,base_lr", help="of docs/lora-sharing.md (default: %(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=2, help="turns of each role (default: %(default)s)")
    parser.add_argument("--max-tokens", type=int, default=40, help="longest answer (default: %(default)s)")
    parser.add_argument(
        "--compare", action="store_true", help="run without and with overlap, and print both timelines"
    )
    out = Console()
    try:
        options = parser.parse_args(arguments)
        show(asyncio.run(play(options, out)), out)
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130
    except (FlashAgentsError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
