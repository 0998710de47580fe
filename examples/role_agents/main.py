"""Three role agents, LoRA adapters of one backbone, with and without a shared cache.

    python examples/role_agents/main.py
    python examples/role_agents/main.py --schemes none,full,base,base_lr,precomputed --rounds 2

A planner, an actor and a critic take turns on one growing transcript; the role is in the adapter, so all of
them read the same prompt. The adapters are random and small, made on the spot: they show what is computed and
kept, not what role agents can do. For each scheme an engine of its own is started.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autogen_core.models import SystemMessage, UserMessage
from rich.console import Console
from rich.table import Table

from flashagents_autogen import FlashAgentsChatCompletionClient
from flashagents_runtime.embedded import EmbeddedEngine
from flashagents_runtime.model_store import resolve_model
from flashagents_runtime.progress import show_progress

ROLES = ("planner", "actor", "critic")
SYSTEM = (
    "You solve tasks in a team. Read the transcript, then write the next contribution, short and concrete."
)
TASK = (
    "Task: a small town wants to turn its disused railway station into a public place. There are 40,000 "
    "euros, a roof that leaks in two places, a park next to it, and many volunteers with time on Saturdays. "
    "Find out what people need, choose, and say who does what until summer."
)


@dataclass
class Turn:
    """One contribution."""

    role: str
    prompt: int
    cached: int
    first_token_ms: float
    text: str


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


async def converse(engine: EmbeddedEngine, rounds: int, max_tokens: int) -> list[Turn]:
    """The roles in turn, each by a client of its own on the one engine."""
    clients = [
        FlashAgentsChatCompletionClient(engine=engine, lora=role, max_tokens=max_tokens, temperature=0)
        for role in ROLES
    ]
    transcript, turns = TASK, []
    for i in range(rounds * len(ROLES)):
        role, client = ROLES[i % len(ROLES)], clients[i % len(ROLES)]
        before = client.usage
        messages = [SystemMessage(content=SYSTEM), UserMessage(content=transcript, source="team")]
        began, first, text = time.perf_counter(), 0.0, ""
        async for piece in client.create_stream(messages):
            first = first or time.perf_counter() - began
            text = piece if isinstance(piece, str) else str(piece.content)
        spent = client.usage
        prompt = spent.prompt_tokens - before.prompt_tokens
        cached = spent.cached_tokens - before.cached_tokens
        turns.append(Turn(role, prompt, cached, 1e3 * first, text))
        transcript += f"\n{role}: {text}"
    for client in clients:
        await client.close()
    return turns


async def run(scheme: str, model: Path, adapters: dict[str, str], args: argparse.Namespace) -> dict[str, Any]:
    """One engine, one conversation; the figures of both."""
    engine = EmbeddedEngine(model, lora_paths=adapters, lora_sharing=scheme)
    with show_progress() as progress:
        info = await engine.start(progress)
    async with engine:
        await converse(engine, 1, 1)  # what the first requests of an engine cost is no matter of sharing
        await engine.flush_cache()
        turns = await converse(engine, args.rounds, args.max_tokens)
        state = await engine.state()
        features = (await engine.internal_state())["flashagents"]["features"]
        rows = features.get("lora_sharing", {}).get("token_bytes_rows", 0)
        itemsize = 4 if info.device == "cpu" else 2
        return {
            "scheme": scheme,
            "turns": turns,
            "computed": sum(t.prompt - t.cached for t in turns),
            "kv_bytes": state.kv_cached * (token_bytes(model, itemsize) + rows),
        }


def show(results: list[dict[str, Any]], out: Console) -> None:
    """The turns of the last scheme, and all schemes side by side."""
    for turn in results[-1]["turns"]:
        out.print(f"[bold]{turn.role}[/]: {turn.text.strip()}", highlight=False)
    table = Table(
        "lora_sharing", "prompt tokens", "computed", "cached KV, MB", "hand-offs, ms to first token"
    )
    for r in results:
        hand_offs = " ".join(f"{t.first_token_ms:.0f}" for t in r["turns"][1:])
        prompts = sum(t.prompt for t in r["turns"])
        table.add_row(r["scheme"], f"{prompts}", f"{r['computed']}", f"{r['kv_bytes'] / 1e6:.1f}", hand_offs)
    out.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", help="left out: the default small model")
    parser.add_argument("--schemes", default="none,base_lr")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--max-tokens", type=int, default=40)
    args = parser.parse_args()
    out = Console()
    with show_progress() as progress:
        model = Path(resolve_model(args.model, progress=progress))
    with tempfile.TemporaryDirectory() as folder:
        adapters = {
            role: str(write_adapter(Path(folder), model, number)) for number, role in enumerate(ROLES)
        }
        results = []
        for scheme in args.schemes.split(","):
            out.print(f"{scheme}:")
            results.append(asyncio.run(run(scheme, model, adapters, args)))
    show(results, out)


if __name__ == "__main__":
    main()
