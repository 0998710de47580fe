"""AutoGen's travel planner on an embedded SGLang engine: four stock agents, one model client.

make demo                                             # sets everything up first
python examples/travel_planner/main.py --task "Plan a weekend in Rome."
python examples/travel_planner/main.py --guide --compare
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.messages import ModelClientStreamingChunkEvent, TextMessage
from rich.console import Console
from rich.table import Table

from flashagents_autogen import FlashAgentsChatCompletionClient, FlashRoundRobinGroupChat
from flashagents_autogen.teams.timeline import Stopwatch, TimedTurn, print_timelines, same_texts
from flashagents_runtime import FlashAgentsError
from flashagents_runtime.progress import show_progress
from flashagents_runtime.trace import Trace, check_target

TASK = "Plan a 3 day trip to Paris."
GUIDE = Path(__file__).parent / "guide.md"
# Short and concrete: the default model has 135 million parameters.
AGENTS = {
    "planner": "You are a travel planner. Write a short plan for the trip: Day 1, Day 2 and Day 3.",
    "local_guide": "You are a helpful local guide. You suggest local food and places to visit on the trip.",
    "language_guide": "You are a helpful language guide. You give tips on how to speak with people there.",
    "summary": "You are a helpful assistant. You write a short summary of the travel plan.",
}


def build_team(
    client: FlashAgentsChatCompletionClient, overlap: bool = True, guide: str = ""
) -> FlashRoundRobinGroupChat:
    """Four AssistantAgents that speak once each, in order. The guide opens the prompt of every one."""
    agents: list[Any] = [
        AssistantAgent(
            name,
            model_client=client,
            system_message=f"{guide}\n\n{role}" if guide else role,
            model_client_stream=True,
        )
        for name, role in AGENTS.items()
    ]
    return FlashRoundRobinGroupChat(agents, max_turns=len(agents), overlap=overlap)


async def watch(team: FlashRoundRobinGroupChat, task: str, out: Console) -> list[TimedTurn]:
    """Print the answers as they come, and measure each turn."""
    stopwatch, speaker = Stopwatch(), ""
    async for event in stopwatch.watch(team, task):
        if isinstance(event, ModelClientStreamingChunkEvent):
            if event.source != speaker:
                speaker = event.source
                out.print(f"\n[bold cyan]{speaker}[/]")
            out.print(event.content, end="", markup=False, highlight=False, soft_wrap=True)
        elif isinstance(event, TextMessage) and event.source in AGENTS:
            out.print()
    return stopwatch.turns


def print_table(turns: list[TimedTurn], out: Console) -> None:
    """Tokens and times, one row a turn."""
    table = Table(title="Tokens and times a turn", title_justify="left")
    table.add_column("agent", no_wrap=True)
    # Short enough for 80 columns.
    for heading in ("prompt", "cached", "pre-\nwarmed", "new", "first\ntoken s", "total\ns", "tokens\n/s"):
        table.add_column(heading, justify="right", no_wrap=True)
    for turn in turns:
        counts = (turn.prompt_tokens, turn.cached_tokens, turn.prewarmed_tokens, turn.completion_tokens)
        table.add_row(
            turn.agent,
            *map(str, counts),
            f"{turn.first_token - turn.began:.2f}",
            f"{turn.ended - turn.began:.2f}",
            f"{turn.tokens_per_second:.1f}",
        )
    out.print()
    out.print(table)


async def compare(
    client: FlashAgentsChatCompletionClient,
    task: str,
    guide: str,
    out: Console,
    traces: list[Trace] | None = None,
) -> dict[str, list[TimedTurn]]:
    """The same plan without and with overlap, each from an empty cache; prints both timelines.

    Appends a trace of each run to `traces`.
    """
    runs: dict[str, list[TimedTurn]] = {}
    for title, overlap in (("overlap off", False), ("overlap on", True)):
        await client.engine.flush_cache()
        with Trace(title) as trace:
            runs[title] = await watch(build_team(client, overlap, guide), task, Console(quiet=True))
        if traces is not None:
            traces.append(trace)
    print_timelines(out, runs)
    out.print(f"same answers: {'yes' if same_texts(runs) else 'NO'}")
    return runs


async def plan(options: argparse.Namespace) -> None:
    """Start the engine, run the team, print, and close the engine however it ends."""
    sampling = {"temperature": 0.0} if options.seed is None else {"temperature": 0.7, "seed": options.seed}
    if not options.compare:
        # SGLang counts penalties in step with its schedule, so that an answer with a penalty depends on what
        # else the engine does at that moment: no way to compare two runs.
        sampling["repetition_penalty"] = 1.1
    client = FlashAgentsChatCompletionClient(options.model, max_tokens=options.max_tokens, **sampling)
    guide = options.guide.read_text().strip() if options.guide else ""
    out = Console(quiet=options.json)
    traces: list[Trace] = []
    try:
        with show_progress() as progress:
            info = await client.start(progress)
        out.print(f"[bold]{options.task}[/]  ({info.model.rpartition('/')[2]} on {info.device})")
        if options.compare:
            runs = await compare(client, options.task, guide, out, traces)
        else:
            with Trace("overlap on" if options.overlap else "overlap off") as trace:
                runs = {"": await watch(build_team(client, options.overlap, guide), options.task, out)}
            traces.append(trace)
            print_table(runs[""], out)
        if options.trace:
            saved = traces[-1].save(options.trace, compare=traces[0] if options.compare else None)
            out.print(f"time line: {saved}", highlight=False)
        if options.json:
            print(json.dumps({"task": options.task, "device": info.device, **as_json(runs)}, indent=2))
    finally:
        await client.close()


def as_json(runs: dict[str, list[TimedTurn]]) -> dict[str, Any]:
    """`turns` of the one run, or `runs` by their titles."""
    rows = {
        title: [{**dataclasses.asdict(turn), "tokens_per_second": turn.tokens_per_second} for turn in turns]
        for title, turns in runs.items()
    }
    return {"turns": rows[""]} if "" in rows else {"runs": rows}


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 0, 1 for an error of ours (one line), 130 on Ctrl-C."""
    parser = argparse.ArgumentParser(
        description="Plan a trip with four AutoGen agents on an embedded engine."
    )
    parser.add_argument("--task", default=TASK, help="what to plan (default: %(default)s)")
    parser.add_argument("--model", help="a Hugging Face folder or hub id (default: SmolLM2-135M-Instruct)")
    parser.add_argument("--max-tokens", type=int, default=120, help="longest answer (default: %(default)s)")
    parser.add_argument("--seed", type=int, help="sample with this seed (default: greedy)")
    parser.add_argument(
        "--guide",
        nargs="?",
        type=Path,
        const=GUIDE,
        help="a text that all four agents know; without a path the one shipped, some 2,500 tokens",
    )
    parser.add_argument(
        "--overlap",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="prefill the next agent's prompt while one speaks (default: yes)",
    )
    parser.add_argument(
        "--compare", action="store_true", help="run without and with overlap, and print both timelines"
    )
    parser.add_argument(
        "--trace", type=Path, metavar="FILE", help="save a time line: x.html, x.svg, ... (extra `trace`)"
    )
    parser.add_argument(
        "--json", action="store_true", help="print the answers and figures as JSON at the end"
    )
    options = parser.parse_args(arguments)
    try:
        if options.trace:
            check_target(options.trace, several=options.compare)  # before minutes of work
    except (ValueError, ImportError) as error:
        parser.error(str(error))
    try:
        asyncio.run(plan(options))
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130
    except (FlashAgentsError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
