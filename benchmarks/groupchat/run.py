"""Forecast hit rates of each kind of team, and what the team layer costs.

    python benchmarks/groupchat/run.py [--conversations FOLDER] [--count 40] [--teams ...]
        [--skip-overhead]

Runs on a scripted engine in this process (no model).

- Hit rates: conversations, real ones from `FOLDER/*.jsonl` (one a line: `{"id", "question", "history":
  [{"name", "role", "content"}]}`) or made-up ones, are played by each kind of team without and with the
  overlap; messages and prompts have to be equal. `right_percent`: of the requests that come after another
  agent has spoken, those whose whole conversation was forecast. `slot_percent`: of the upstream texts in
  these prompts, tokens (here bytes) that a prefill session had computed when the request came.
  `cached_percent`: of the tokens of these prompts, found in the cache.
- Overhead, with the default model's own tokenizer: `cpu_us_per_token`, the process's CPU time a decoded
  token with the overlap minus the same without (forecasts and warm-up requests included);
  `share_percent`, that difference of the time that the turns took at 250 tokens/s; `said_us`, time
  of handing on one delta.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]

import replay
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.teams import RoundRobinGroupChat
from rows import RESULTS, append, common, row

from flashagents_autogen import FlashAgentsChatCompletionClient, FlashGroupChatRuntime, GroupChatPolicy
from flashagents_autogen.groupchat.tap import CallTap
from flashagents_autogen.groupchat.turns import Turn, hit_rate
from flashagents_runtime import GenerateRequest, ScriptedEngine
from flashagents_runtime.chat_tokenizer import load_chat_tokenizer
from flashagents_runtime.model_store import resolve_model
from flashagents_runtime.scripted import Reply

TURNS, TOKENS, INTERVAL = 6, 300, 0.004
GUIDE = "You work in a team that plans journeys. Keep to facts, and never repeat what another has said. " * 60


async def hits(kind: str, conversations: list[replay.Conversation]) -> list[Turn]:
    """The turns of all conversations; raises where the overlap has changed anything."""
    turns: list[Turn] = []
    async with FlashGroupChatRuntime(replay.POLICY) as runtime:
        for conversation, play in replay.plays(kind, conversations):
            stock = await replay.run(play, None)
            flash = await replay.run(play, runtime)
            if flash.messages != stock.messages or sorted(flash.prompts) != sorted(stock.prompts):
                raise AssertionError(f"{kind}: the overlap has changed conversation {conversation.name}")
            turns += replay.readers(kind, list(runtime.turns))
            runtime.turns.clear()
    return turns


class Forgetful(ScriptedEngine):
    """Compares no prompts: that would be most of the CPU time."""

    def _cached(self, request: GenerateRequest) -> int:
        return 0


async def talk(folder: Path, runtime: FlashGroupChatRuntime | None) -> tuple[float, float]:
    """CPU and wall seconds of one run of a team."""
    tokenizer = load_chat_tokenizer(folder)
    text = "Take the train to the next city, look at the old town, then walk along the river. " * 60
    ids = tokenizer.encode(text)[:TOKENS]
    pieces = [tokenizer.decode([i]) for i in ids]
    reply = Reply(text=pieces, token_ids=[[i] for i in ids], interval=INTERVAL)
    engine = Forgetful([reply] * TURNS, context_length=1 << 20)
    client = FlashAgentsChatCompletionClient(str(folder), engine=engine)
    agents = [
        AssistantAgent(name, client, system_message=f"{GUIDE}You are {name}.")
        for name in ("planner", "local", "writer")
    ]
    team = RoundRobinGroupChat(agents, max_turns=TURNS)
    if runtime is not None:
        runtime.attach(team)
    cpu, wall = time.process_time(), time.perf_counter()
    await team.run(task="A week by train from Paris to Rome.")
    return time.process_time() - cpu, time.perf_counter() - wall


async def overhead(repeats: int) -> dict[str, list[float]]:
    """The figures of the team layer's cost."""
    folder = resolve_model(None)
    spent: list[int] = []
    said = CallTap.said

    def timed(self: CallTap, *args: Any) -> None:
        start = time.perf_counter_ns()
        said(self, *args)
        spent.append(time.perf_counter_ns() - start)

    found: dict[str, list[float]] = {"cpu_us_per_token": [], "share_percent": [], "said_us": []}
    await talk(folder, None)  # loads the tokenizer
    for _ in range(repeats):
        off, wall = await talk(folder, None)
        async with FlashGroupChatRuntime(GroupChatPolicy()) as runtime:
            on, _ = await talk(folder, runtime)
        found["cpu_us_per_token"].append((on - off) / (TURNS * TOKENS) * 1e6)
        found["share_percent"].append((on - off) / wall * 100)
    CallTap.said = timed  # type: ignore[method-assign]
    try:
        async with FlashGroupChatRuntime(GroupChatPolicy()) as runtime:
            await talk(folder, runtime)
    finally:
        CallTap.said = said  # type: ignore[method-assign]
    found["said_us"] = [ns / 1e3 for ns in spent]
    return found


def main() -> None:
    """Measure and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--conversations", type=Path)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--teams", nargs="*", default=list(replay.KINDS), help="kinds of teams")
    parser.add_argument("--skip-overhead", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the rows")
    arguments = parser.parse_args()
    if arguments.conversations is None:
        name, conversations = "made up", replay.made_up(arguments.count)
    else:
        name = "real"
        files = sorted(arguments.conversations.glob("*.jsonl"))
        conversations = [one for file in files for one in replay.load(file)][: arguments.count]
    shared = common("autogen-agentchat", "tokenizers")
    given = " --conversations FOLDER" if arguments.conversations else ""
    given += " --skip-overhead" if arguments.skip_overhead else ""
    given += "" if arguments.teams else " --teams"
    shared["command"] = f"python benchmarks/groupchat/run.py{given}"
    rows: list[dict[str, Any]] = []
    costs: list[dict[str, Any]] = []
    for kind in arguments.teams:
        turns = asyncio.run(hits(kind, conversations))
        rate = hit_rate(turns)
        case = {"team": kind, "conversations": f"{len(conversations)} {name}"}
        shares = {"foreseen_percent": rate.foreseen, "right_percent": rate.right}
        for metric, value in shares.items():
            entry = row("groupchat", "ours", case, metric, [100 * value / rate.turns], shared)
            rows.append(entry | {"n": rate.turns})
        covered = [
            100 * slot.prewarmed / (slot.end - slot.start)
            for turn in turns
            for slot in turn.slots
            if slot.end - slot.start > 4 * 64
        ]
        if covered:  # a hand-off of a Swarm is known as a whole: it has no gap
            rows.append(row("groupchat", "ours", case, "slot_percent", covered, shared))
        cached = [100 * turn.cached / turn.prompt for turn in turns if turn.right]
        rows.append(row("groupchat", "ours", case, "cached_percent", cached, shared))
    if not arguments.skip_overhead:
        case = {
            "team": "RoundRobin",
            "turns": TURNS,
            "tokens a turn": TOKENS,
            "tokens/s": round(1 / INTERVAL),
        }
        for metric, values in asyncio.run(overhead(arguments.repeats)).items():
            costs.append(row("groupchat_overhead", "ours", case, metric, values, shared))
    append(arguments.out / "groupchat.jsonl", rows)
    append(arguments.out / "groupchat_overhead.jsonl", costs)


if __name__ == "__main__":
    main()
