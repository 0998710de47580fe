"""AutoGen's travel planner on an embedded SGLang engine: four stock agents, one model client.

make demo                                             # sets everything up first
python examples/travel_planner/main.py --task "Plan a weekend in Rome."
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import json
import logging
import signal
import sys
import time
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.base import ChatAgent, TaskResult, Team
from autogen_agentchat.messages import (
    BaseAgentEvent,
    BaseChatMessage,
    ModelClientStreamingChunkEvent,
    TextMessage,
)
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core import CancellationToken
from rich.console import Console
from rich.table import Table

from flashagents_autogen import FlashAgentsChatCompletionClient, FlashRequestUsage
from flashagents_runtime import FlashAgentsError
from flashagents_runtime.progress import show_progress

TASK = "Plan a 3 day trip to Paris."
# Short and concrete: the default model has 135 million parameters.
AGENTS = {
    "planner": "You are a travel planner. Write a short plan for the trip: Day 1, Day 2 and Day 3.",
    "local_guide": "You are a helpful local guide. You suggest local food and places to visit on the trip.",
    "language_guide": "You are a helpful language guide. You give tips on how to speak with people there.",
    "summary": "You are a helpful assistant. You write a short summary of the travel plan.",
}


@dataclass
class Turn:
    """One agent's turn; times are seconds since the turn began."""

    agent: str
    text: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    first_token: float
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        """Rate of decoding, from the first token to the last."""
        decoding = self.seconds - self.first_token
        return (self.completion_tokens - 1) / decoding if decoding > 0 and self.completion_tokens > 1 else 0.0


def build_team(client: FlashAgentsChatCompletionClient) -> RoundRobinGroupChat:
    """Four AssistantAgents that speak once each, in order."""
    agents: list[ChatAgent | Team] = [
        AssistantAgent(name, model_client=client, system_message=message, model_client_stream=True)
        for name, message in AGENTS.items()
    ]
    return RoundRobinGroupChat(agents, max_turns=len(agents))


async def watch(
    stream: AsyncGenerator[BaseAgentEvent | BaseChatMessage | TaskResult, None], out: Console
) -> list[Turn]:
    """Print the answers as they come, and measure each turn."""
    turns: list[Turn] = []
    began, first, speaker = time.perf_counter(), 0.0, ""
    async for event in stream:
        now = time.perf_counter()
        if isinstance(event, ModelClientStreamingChunkEvent):
            if event.source != speaker:
                speaker, first = event.source, now
                out.print(f"\n[bold cyan]{speaker}[/]")
            out.print(event.content, end="", markup=False, highlight=False, soft_wrap=True)
        elif isinstance(event, TextMessage) and event.source in AGENTS:
            usage = event.models_usage
            turns.append(
                Turn(
                    agent=event.source,
                    text=event.content,
                    prompt_tokens=usage.prompt_tokens if usage else 0,
                    cached_tokens=usage.cached_tokens if isinstance(usage, FlashRequestUsage) else 0,
                    completion_tokens=usage.completion_tokens if usage else 0,
                    first_token=first - began,
                    seconds=now - began,
                )
            )
            out.print()
            began = now
    return turns


def print_table(turns: list[Turn], out: Console) -> None:
    """Tokens and times, one row a turn."""
    table = Table(title="Tokens and times a turn", title_justify="left")
    table.add_column("agent")
    for heading in ("prompt", "cached", "completion", "first token s", "total s", "tokens/s"):
        table.add_column(heading, justify="right")
    for turn in turns:
        counts = (turn.prompt_tokens, turn.cached_tokens, turn.completion_tokens)
        table.add_row(
            turn.agent,
            *map(str, counts),
            f"{turn.first_token:.2f}",
            f"{turn.seconds:.2f}",
            f"{turn.tokens_per_second:.1f}",
        )
    out.print()
    out.print(table)


@contextlib.contextmanager
def cancelled_by_ctrl_c() -> Iterator[CancellationToken]:
    """A token that Ctrl-C cancels, which stops the agent that speaks.

    Left to itself Ctrl-C cancels the task, and then AutoGen's team waits until its agents are done.
    """
    token = CancellationToken()
    loop = asyncio.get_running_loop()

    def stop() -> None:
        logging.getLogger("autogen_core").setLevel(logging.CRITICAL)  # it logs the cancellation as an error
        token.cancel()

    loop.add_signal_handler(signal.SIGINT, stop)
    try:
        yield token
    except asyncio.CancelledError:
        if token.is_cancelled():
            raise KeyboardInterrupt from None
        raise
    finally:
        loop.remove_signal_handler(signal.SIGINT)


async def plan(options: argparse.Namespace) -> None:
    """Start the engine, run the team, print, and close the engine however it ends."""
    sampling = {"temperature": 0.0} if options.seed is None else {"temperature": 0.7, "seed": options.seed}
    client = FlashAgentsChatCompletionClient(
        options.model, max_tokens=options.max_tokens, repetition_penalty=1.1, **sampling
    )
    out = Console(quiet=options.json)
    try:
        with show_progress() as progress:
            info = await client.start(progress)
        out.print(f"[bold]{options.task}[/]  ({info.model.rpartition('/')[2]} on {info.device})")
        with cancelled_by_ctrl_c() as token:
            stream = build_team(client).run_stream(task=options.task, cancellation_token=token)
            turns = await watch(stream, out)
        print_table(turns, out)
        if options.json:
            rows = [
                {**dataclasses.asdict(turn), "tokens_per_second": turn.tokens_per_second} for turn in turns
            ]
            print(json.dumps({"task": options.task, "device": info.device, "turns": rows}, indent=2))
    finally:
        await client.close()


def main() -> int:
    """Exit status: 0, 1 for an error of ours (one line), 130 on Ctrl-C."""
    parser = argparse.ArgumentParser(
        description="Plan a trip with four AutoGen agents on an embedded engine."
    )
    parser.add_argument("--task", default=TASK, help="what to plan (default: %(default)s)")
    parser.add_argument("--model", help="a Hugging Face folder or hub id (default: SmolLM2-135M-Instruct)")
    parser.add_argument("--max-tokens", type=int, default=120, help="longest answer (default: %(default)s)")
    parser.add_argument("--seed", type=int, help="sample with this seed (default: greedy)")
    parser.add_argument(
        "--json", action="store_true", help="print the answers and figures as JSON at the end"
    )
    try:
        asyncio.run(plan(parser.parse_args()))
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130
    except FlashAgentsError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
