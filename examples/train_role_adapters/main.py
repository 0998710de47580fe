"""Train three role adapters on a few pairs, and let them speak from one shared cache.

    python examples/train_role_adapters/main.py
    python examples/train_role_adapters/main.py --pairs 240 --epochs 3 --out adapters

All roles read the same note; the planner answers where to go, the actor what to take, the critic what the
note says. The pairs are made on the spot. With a shared `v_proj` A (`flashagents train-roles --shared-a` does
the same) the adapters fit `lora_sharing="base_lr"`: what one role has read the others find in the cache.
"""

from __future__ import annotations

import argparse
import asyncio
import random
from pathlib import Path

from autogen_core.models import UserMessage
from rich.console import Console
from rich.table import Table

from flashagents_autogen import FlashAgentsChatCompletionClient
from flashagents_runtime.embedded import EmbeddedEngine
from flashagents_runtime.model_store import resolve_model
from flashagents_runtime.progress import show_progress
from flashagents_runtime.role_training import Pair, Recipe, TrainedRole, train_roles

THINGS = ("lamp", "map", "drum", "kettle", "rope", "ladder", "violin", "mirror", "blanket", "compass")
PLACES = ("attic", "cellar", "garden", "kitchen", "station", "library", "harbour", "tower", "market", "mill")
ANSWERS = {
    "planner": "Next we go to the {place}.",
    "actor": "I take the {thing}.",
    "critic": "The note is clear: {thing}, {place}.",
}


def note(thing: str, place: str) -> str:
    """What all roles read."""
    return f"Note for the team: what we need is the {thing}, and it is in the {place}. It is your turn."


def make_pairs(count: int, seed: int = 0) -> dict[str, list[Pair]]:
    """`count` pairs for each role; the last thing and place never meet in them."""
    rng = random.Random(seed)
    out: dict[str, list[Pair]] = {role: [] for role in ANSWERS}
    for role, answer in ANSWERS.items():
        while len(out[role]) < count:
            thing, place = rng.choice(THINGS), rng.choice(PLACES)
            if (thing, place) != (THINGS[-1], PLACES[-1]):
                out[role].append(Pair(note(thing, place), answer.format(thing=thing, place=place)))
    return out


async def speak(model: Path, adapters: dict[str, str], out: Console) -> None:
    """Each role answers the same note, on one engine with one cache."""
    table = Table("role", "should say", "says", "prompt", "cached")
    async with EmbeddedEngine(model, lora_paths=adapters, lora_sharing="base_lr") as engine:
        message = [UserMessage(content=note(THINGS[-1], PLACES[-1]), source="team")]
        for role, answer in ANSWERS.items():
            client = FlashAgentsChatCompletionClient(engine=engine, lora=role, max_tokens=24, temperature=0)
            result = await client.create(message)
            usage = client.usage
            should = answer.format(thing=THINGS[-1], place=PLACES[-1])
            table.add_row(
                role, should, str(result.content), f"{usage.prompt_tokens}", f"{usage.cached_tokens}"
            )
            await client.close()
    out.print(table)


def main(argv: list[str] | None = None) -> list[TrainedRole]:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--model", help="left out: the default small model")
    parser.add_argument("--out", type=Path, default=Path("role-adapters"), help="a cut-off run goes on there")
    parser.add_argument("--pairs", type=int, default=96, help="for each role")
    parser.add_argument("--epochs", type=float, default=2.0)
    parser.add_argument("--no-engine", action="store_true", help="train only")
    args = parser.parse_args(argv)
    out = Console()
    recipe = Recipe(epochs=args.epochs, batch_size=8, learning_rate=2e-3, max_tokens=256, chat=True)
    with show_progress() as progress:
        model = Path(resolve_model(args.model, progress=progress))
        done = train_roles(model, make_pairs(args.pairs), args.out, recipe, shared_a=True, progress=progress)
    for trained in done:
        first, last = trained.losses[0], trained.losses[-1]
        out.print(f"{trained.role}: loss {first:.2f} at the first step, {last:.2f} at the last")
    if not args.no_engine:
        asyncio.run(speak(model, {role: str(args.out / role) for role in ANSWERS}, out))
    return done


if __name__ == "__main__":
    main()
