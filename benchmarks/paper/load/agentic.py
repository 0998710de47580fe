"""Agentic traces with hash ids as workflows of several agents: prompts as token ids, who hands on to whom.

A trace is a JSON file of one session of a coding agent: requests with `in` and `out` tokens, and `hash_ids`,
one for each block of 64 prompt tokens. Equal ids are equal blocks (of that trace: their scope is local): they
say which prefixes are shared. Requests of sub-agents stand inside one of the parent's list.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Turn:
    """One request.

    Attributes:
        agent: who makes it.
        prompt: its tokens.
        known: how many of them were in an earlier prompt of the workflow, so that they are known, but for the
            agent's own head, when the turn before this one begins.
        said: of the tokens that follow, those that stand for the answer of the turn before.
        answer: tokens that it writes.
        wait: seconds between the end of the turn before and this one: tools run.
    """

    agent: str
    prompt: list[int]
    known: int
    said: int
    answer: int
    wait: float


@dataclass(frozen=True)
class Fit:
    """How a trace is made to fit.

    Attributes:
        divide: tokens of prompts and answers are divided by it; it divides the block size.
        turns: no more of a workflow's.
        agents: how many the parent's turns are dealt to, in rotation, each with a head of its own.
        longest_prompt: the workflow ends before a prompt of more tokens (after dividing).
        longest_answer: tokens.
        longest_wait: seconds.
        vocabulary: token ids are below it.
    """

    divide: int = 8
    turns: int = 12
    agents: int = 2
    longest_prompt: int = 16_000
    longest_answer: int = 256
    longest_wait: float = 0.5
    vocabulary: int = 8192


def requests(entries: list[dict[str, Any]], agent: str = "main") -> Iterator[tuple[str, dict[str, Any]]]:
    """The requests in order, those of sub-agents where their parent waits for them, each with its agent."""
    for entry in entries:
        if entry["type"] == "subagent":
            yield from requests(entry["requests"], entry["agent_id"])
        else:
            yield agent, entry


def workflow(trace: dict[str, Any], fit: Fit, copy: int = 0) -> list[Turn]:
    """The turns of one trace.

    Args:
        trace: a file's content.
        fit: see there.
        copy: of the same trace: copies share the agents' heads and nothing else.

    Raises:
        ValueError: `divide` does not divide the block size.
    """
    size, rest = divmod(int(trace["block_size"]), fit.divide)
    if rest or not size:
        raise ValueError(f"the blocks have {trace['block_size']} tokens, which {fit.divide} does not divide")
    head = (trace["tool_tokens"] + trace["system_tokens"]) // int(trace["block_size"])
    turns: list[Turn] = []
    earlier: list[list[int]] = []
    answer, parents = 0, 0
    for agent, entry in requests(trace["requests"]):
        hashes = entry["hash_ids"]
        if agent == "main":
            agent, parents = f"agent_{parents % fit.agents}", parents + 1
        if len(turns) == fit.turns or len(hashes) * size > fit.longest_prompt:
            break
        prompt: list[int] = []
        for at, block in enumerate(hashes):
            # Heads are an application's: the same in all sessions of as many tokens of tools.
            whose = (agent, trace["tool_tokens"]) if at < head else (trace["id"], copy)
            prompt += tokens(block, size, fit.vocabulary, *whose)
        known = max((common(hashes, other) for other in earlier), default=0) * size
        said = min(answer, len(prompt) - known)
        wait = min(float(entry.get("think_time") or 0.0), fit.longest_wait) if turns else 0.0
        answer = min(max(int(entry["out"]) // fit.divide, 4), fit.longest_answer)
        turns.append(Turn(agent, prompt, known, said, answer, wait))
        earlier.append(hashes)
    return turns


@lru_cache(maxsize=100_000)
def tokens(block: int, size: int, vocabulary: int, *whose: Any) -> tuple[int, ...]:
    """The tokens of a block, the same for the same arguments."""
    rng = random.Random(repr((block, *whose)))
    return tuple(rng.randrange(300, vocabulary) for _ in range(size))


def common(a: list[int], b: list[int]) -> int:
    """How many ids both begin with."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def load(folder: Path, count: int, fit: Fit) -> list[list[Turn]]:
    """`count` workflows from the traces of a folder in the order of their names, then from the first again.

    Raises:
        ValueError: there is no trace of two turns or more.
    """
    traces = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    found: list[list[Turn]] = []
    for copy in range(count):
        for trace in traces:
            turns = workflow(trace, fit, copy)
            if len(turns) > 1:
                found.append(turns)
            if len(found) == count:
                return found
        if not found:
            break
    raise ValueError(f"{folder} holds no trace (*.json) of two turns or more that fits")
