"""Conversations taken up by each kind of team on a real engine, without and with the overlap.

    python benchmarks/groupchat/real.py [--conversations FOLDER] [--count 5] [--teams ...] [--tokens 24]
        [--model FOLDER] [--engine-arg NAME=VALUE ...]

The teams are those of `replay.py`. Each reads the beginning of a conversation, and its agents go on from
there in the model's own words (greedy). What decides who speaks is held to the conversation by grammar: a
selector's choice, a hand-off, a ledger. Each conversation is played from an empty cache without and with the
overlap; messages and prompts have to be equal, or nothing is recorded.

`right_percent`: of the requests that come after another agent has spoken, those whose whole conversation was
forecast. `early_percent`: of the upstream texts in these prompts, tokens that were in the engine before the
upstream agent had ended. `warm_percent`: the same when the request came. `prewarmed_percent`: of the prompt,
computed while others spoke.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import re
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]

import msgspec
import replay
from rows import RESULTS, append, common, row

from flashagents_autogen import FlashAgentsChatCompletionClient, FlashGroupChatRuntime, GroupChatPolicy
from flashagents_autogen.groupchat.turns import Turn, hit_rate
from flashagents_runtime import Delta, GenerateRequest
from flashagents_runtime.embedded import EmbeddedEngine
from flashagents_runtime.model_store import resolve_model
from flashagents_runtime.scripted import Reply

TURNS = 3  # that are played
READ, WORDS = 2, 300  # messages that the team has read before, and characters of each
POLICY = GroupChatPolicy(chunk_size=8, share=1.0)


class Director:
    """An engine whose decisions are those of a script; all other answers are the model's own.

    Attributes:
        prompts: of the real requests.
    """

    def __init__(self, engine: EmbeddedEngine, script: Sequence[Any], speakers: Sequence[str], tokens: int):
        self.prompts: list[list[int]] = []
        self._engine, self._speakers, self._tokens = engine, set(speakers), tokens
        self._script = iter(script)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        """See `Engine.generate`."""
        if request.sampling.max_new_tokens != 0:
            self.prompts.append(request.input_ids)
            request = self._directed(request, next(self._script))
        async with aclosing(self._engine.generate(request)) as stream:
            async for delta in stream:
                yield delta

    def _directed(self, request: GenerateRequest, item: Any) -> GenerateRequest:
        decided = _decision(item, self._speakers)
        sampling = msgspec.structs.replace(
            request.sampling,
            regex=decided,
            max_new_tokens=self._tokens if decided is None else 400,
            ignore_eos=decided is None,
        )
        wanted = request.format
        if wanted is not None:  # one grammar a request: a strict tool's gives way
            tools = [msgspec.structs.replace(tool, strict=False) for tool in wanted.tools]
            wanted = msgspec.structs.replace(wanted, tools=tools)
        return msgspec.structs.replace(request, sampling=sampling, format=wanted)


def _decision(item: Any, speakers: set[str]) -> str | None:
    """The grammar of an answer that decides who speaks; None for one that does not."""
    if not isinstance(item, Reply):
        return None
    if item.tool_calls:
        (call,) = item.tool_calls
        raw = f'{{"name": "{call.name}", "arguments": {call.arguments}}}'
        return f"<tool_call>\n{_literal(raw)}\n</tool_call>"
    text = "".join(item.text)
    return _literal(text) if text in speakers or text.startswith('{"is_request_satisfied"') else None


def _literal(text: str) -> str:
    """As a regular expression of any dialect, which `re.escape` is not."""
    return re.sub(r"([\\.^$*+?{}\[\]|()])", r"\\\1", text)


def shortened(conversation: replay.Conversation) -> replay.Conversation:
    """The turns that are played; what a ledger repeats of them is a few words long."""
    words = [(name, re.sub(r"\W+", " ", text)[:60]) for name, text in conversation.turns[READ : READ + TURNS]]
    return replace(conversation, turns=words or [("Someone", "Go on.")])


def beginning(conversation: replay.Conversation) -> str:
    """What the team reads first: the task, and the first messages."""
    said = [f"{name}: {text[:WORDS]}" for name, text in conversation.turns[:READ]]
    return "\n\n".join([conversation.task[:WORDS], *said])


async def empty(engine: EmbeddedEngine) -> None:
    """Wait until the engine is idle, and empty its cache."""
    for _ in range(200):
        if await engine.flush_cache():
            return
        await asyncio.sleep(0.05)
    raise TimeoutError("the engine does not become idle")


async def run(
    engine: EmbeddedEngine,
    kind: str,
    conversation: replay.Conversation,
    index: int,
    runtime: FlashGroupChatRuntime | None,
    tokens: int,
) -> replay.Outcome:
    """Play it once, from an empty cache; `index` chooses the model contexts."""
    play = replay.KINDS[kind](shortened(conversation), index)
    await empty(engine)
    director = Director(engine, play.script, shortened(conversation).speakers, tokens)
    client = FlashAgentsChatCompletionClient(engine=director, temperature=0)
    # A ledger's own grammar would be a second one.
    info = {**client.model_info, "structured_output": False, "json_output": False}
    client = FlashAgentsChatCompletionClient(engine=director, temperature=0, model_info=info)  # type: ignore[arg-type]
    team = play.make(client)
    if runtime is not None:
        runtime.attach(team)
    numbers = itertools.count()
    with patch("flashagents_autogen._answer._new_id", lambda: f"call{next(numbers):05d}"):
        result = await team.run(task=beginning(conversation))
    return replay.Outcome(play.shown(result.messages, result.stop_reason), director.prompts)


async def both(
    engine: EmbeddedEngine, kind: str, conversations: Sequence[replay.Conversation], tokens: int
) -> list[Turn]:
    """The turns of all of them with the overlap; raises where it has changed anything."""
    turns: list[Turn] = []
    async with FlashGroupChatRuntime(POLICY) as runtime:
        for i, conversation in enumerate(conversations):
            stock = await run(engine, kind, conversation, i, None, tokens)
            flash = await run(engine, kind, conversation, i, runtime, tokens)
            if flash.messages != stock.messages or sorted(flash.prompts) != sorted(stock.prompts):
                raise AssertionError(f"{kind}: the overlap has changed conversation {conversation.name}")
            turns += replay.readers(kind, list(runtime.turns))
            runtime.turns.clear()
    return turns


async def measure(arguments: argparse.Namespace, conversations: Sequence[replay.Conversation]) -> None:
    """Play all, and write the rows of each kind of team as soon as it is through."""
    shared = common("autogen-agentchat", "sglang")
    where = "real" if arguments.conversations else "made up"
    given = " --conversations FOLDER" if arguments.conversations else ""
    shared["command"] = f"python benchmarks/groupchat/real.py{given} --count {arguments.count}"
    if arguments.tokens != 24:
        shared["command"] += f" --tokens {arguments.tokens}"
    given_args = dict(one.split("=", 1) for one in arguments.engine_arg)
    shared["command"] += "".join(f" --engine-arg {name}={text}" for name, text in given_args.items())
    args = {name: value(text) for name, text in given_args.items()}
    async with EmbeddedEngine(resolve_model(arguments.model), **args) as engine:
        assert engine.info is not None
        shared["device"] = name_of(engine.info.device)
        for kind in arguments.teams:
            turns = await both(engine, kind, conversations, arguments.tokens)
            case = {
                "team": kind,
                "conversations": f"{len(conversations)} {where}",
                "turns": TURNS,
                "tokens a turn": arguments.tokens,
            }
            append(arguments.out / "groupchat_engine.jsonl", rows_of(case, turns, shared))
            print(f"{kind}: {len(turns)} turns, {hit_rate(turns)}")


def value(text: str) -> Any:
    """An engine argument as JSON, else as it stands."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def name_of(device: str) -> str:
    """The GPU's name, or "cpu"."""
    if device == "cpu":
        return device
    import torch

    return str(torch.cuda.get_device_name())


def rows_of(case: dict[str, Any], turns: Sequence[Turn], shared: dict[str, Any]) -> list[dict[str, Any]]:
    """The figures of one kind of team."""
    rate = hit_rate(turns)
    found = [row("groupchat_engine", "ours", case, "right_percent", [100 * rate.right / rate.turns], shared)]
    found[0]["n"] = rate.turns
    right = [turn for turn in turns if turn.right]
    slots = [slot for turn in right for slot in turn.slots if slot.end - slot.start > POLICY.chunk_size]  # type: ignore[operator]
    shares = {
        "early_percent": [100 * slot.done_early / (slot.end - slot.start) for slot in slots],
        "warm_percent": [100 * slot.prewarmed / (slot.end - slot.start) for slot in slots],
        "prewarmed_percent": [100 * turn.prewarmed / turn.prompt for turn in right],
    }
    return found + [
        row("groupchat_engine", "ours", case, name, values, shared)
        for name, values in shares.items()
        if values
    ]


def main() -> None:
    """Measure and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--conversations", type=Path)
    parser.add_argument("--count", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=24, help="of an answer")
    parser.add_argument("--model", help="left out: the default small model")
    parser.add_argument("--engine-arg", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument(
        "--teams", nargs="*", choices=list(replay.KINDS), default=list(replay.KINDS), help="kinds of teams"
    )
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the rows")
    arguments = parser.parse_args()
    if arguments.conversations is None:
        conversations = replay.made_up(arguments.count)
    else:
        files = sorted(arguments.conversations.glob("*.jsonl"))
        found = [replay.load(file) for file in files]
        # From each file in turn.
        mixed = [one for group in itertools.zip_longest(*found) for one in group if one is not None]
        conversations = mixed[: arguments.count]
    asyncio.run(measure(arguments, conversations))


if __name__ == "__main__":
    main()
