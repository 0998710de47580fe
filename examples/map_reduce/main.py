"""Three reviewers read the same papers at the same time; a meta-reviewer hears all three, in order.

python examples/map_reduce/main.py
python examples/map_reduce/main.py --compare
python examples/map_reduce/main.py --graph        # the same team as a GraphFlow
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.base import ChatAgent
from autogen_agentchat.messages import TextMessage
from rich.console import Console

from flashagents_autogen import FlashAgentsChatCompletionClient, FlashGraphFlow, FlashMapReduce
from flashagents_autogen.teams import map_reduce_graph
from flashagents_autogen.teams.timeline import Stopwatch, TimedTurn, print_timelines, same_texts
from flashagents_runtime import FlashAgentsError
from flashagents_runtime.progress import show_progress

PAPERS = Path(__file__).parent / "abstracts.md"
REVIEWERS = {
    "novelty": "You review papers. Say in a few sentences what is new in each of them.",
    "soundness": "You review papers. Say in a few sentences whether the method of each can be trusted.",
    "clarity": "You review papers. Say in a few sentences what is unclear in each of them.",
}
META = "You are the meta-reviewer. Read the three reviews and say which paper should be accepted, and why."


def build_team(
    client: FlashAgentsChatCompletionClient, *, overlap: bool = True, graph: bool = False
) -> FlashGraphFlow:
    """Three mappers and a reducer, as a `FlashMapReduce` or as the graph that this is."""

    def agent(name: str, role: str) -> ChatAgent:
        return AssistantAgent(name, model_client=client, system_message=role, model_client_stream=True)

    reviewers = [agent(name, role) for name, role in REVIEWERS.items()]
    meta = agent("meta_reviewer", META)
    if graph:
        return FlashGraphFlow(
            [*reviewers, meta], map_reduce_graph(reviewers, meta), parallel=True, overlap=overlap
        )
    return FlashMapReduce(reviewers, meta, overlap=overlap)


async def review(team: FlashGraphFlow, papers: str, out: Console) -> list[TimedTurn]:
    """Run the team and print each review when it is complete."""
    stopwatch = Stopwatch()
    async for event in stopwatch.watch(team, papers):
        if isinstance(event, TextMessage) and event.source != "user":
            out.print(f"\n[bold cyan]{event.source}[/]")
            out.print(event.content, markup=False, highlight=False)
    return stopwatch.turns


async def run(options: argparse.Namespace) -> None:
    """Start the engine, review, print, and close the engine however it ends."""
    client = FlashAgentsChatCompletionClient(options.model, max_tokens=options.max_tokens, temperature=0)
    papers = options.papers.read_text().strip()
    out = Console()
    try:
        with show_progress() as progress:
            await client.start(progress)
        modes = {"overlap off": False, "overlap on": True} if options.compare else {"reviews": True}
        runs: dict[str, list[TimedTurn]] = {}
        for title, overlap in modes.items():
            await client.engine.flush_cache()
            team = build_team(client, overlap=overlap, graph=options.graph)
            runs[title] = await review(team, papers, Console(quiet=options.compare))
        out.print()
        print_timelines(out, runs)
        if options.compare:
            out.print(f"same answers: {'yes' if same_texts(runs) else 'NO'}")
    finally:
        await client.close()


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 0, 1 for an error of ours (one line), 130 on Ctrl-C."""
    parser = argparse.ArgumentParser(description="Three reviewers and a meta-reviewer over the same papers.")
    parser.add_argument(
        "--papers", type=Path, default=PAPERS, help="a text file (default: three short abstracts)"
    )
    parser.add_argument("--model", help="a Hugging Face folder or hub id (default: SmolLM2-135M-Instruct)")
    parser.add_argument("--max-tokens", type=int, default=100, help="longest answer (default: %(default)s)")
    parser.add_argument("--graph", action="store_true", help="build the team as a GraphFlow")
    parser.add_argument(
        "--compare", action="store_true", help="run without and with overlap, and print both timelines"
    )
    try:
        asyncio.run(run(parser.parse_args(arguments)))
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130
    except (FlashAgentsError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
