"""Who spoke when in a run, as plain text: bars, and the figures of each turn."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from autogen_agentchat.base import TaskResult
from autogen_agentchat.messages import BaseAgentEvent, BaseChatMessage, ModelClientStreamingChunkEvent
from rich.console import Console
from rich.table import Table

from .._usage import FlashRequestUsage
from ._run import AgentTurn
from ._team import FlashTeam

Item = BaseAgentEvent | BaseChatMessage | TaskResult


@dataclass(frozen=True)
class TimedTurn:
    """One agent's turn; times are seconds since the run began.

    Attributes:
        agent: who spoke.
        text: what it said.
        began: it was asked.
        first_token: its first token came; `ended` where it did not stream.
        ended: its answer was whole.
        prompt_tokens: tokens of its prompt; of these, `cached_tokens` were in the KV cache, and of those
            `prewarmed_tokens` were put there while others spoke.
        completion_tokens: tokens of its answer.
    """

    agent: str
    text: str
    began: float
    first_token: float
    ended: float
    prompt_tokens: int = 0
    cached_tokens: int = 0
    prewarmed_tokens: int = 0
    completion_tokens: int = 0

    @property
    def tokens_per_second(self) -> float:
        """Rate of decoding, from the first token to the last; 0 where there is none."""
        decoding = self.ended - self.first_token
        return (self.completion_tokens - 1) / decoding if decoding > 0 and self.completion_tokens > 1 else 0.0


class Stopwatch:
    """Collects the turns of one run, of a team or of agents that are called by hand.

    Attributes:
        turns: in the order of their ends.
    """

    def __init__(self) -> None:
        self.turns: list[TimedTurn] = []
        self._start = time.perf_counter()
        self._first: dict[str, float] = {}
        self._began: dict[str, float] = {}

    @property
    def seconds(self) -> float:
        """From the beginning to the end of the last turn."""
        return max((turn.ended for turn in self.turns), default=0.0)

    def begin(self, agent: str) -> None:
        """The agent has been asked."""
        self._began[agent] = time.perf_counter()

    def see(self, item: Item) -> None:
        """Something came out of an agent: a chunk of its text, or its answer."""
        now = time.perf_counter()
        if isinstance(item, ModelClientStreamingChunkEvent):
            self._first.setdefault(item.source, now)
        elif isinstance(item, BaseChatMessage) and item.models_usage is not None:
            usage = item.models_usage
            flash = usage if isinstance(usage, FlashRequestUsage) else FlashRequestUsage(0, 0)
            first = self._first.pop(item.source, now)
            self.turns.append(
                TimedTurn(
                    agent=item.source,
                    text=item.to_text(),
                    began=min(self._began.pop(item.source, first), first) - self._start,
                    first_token=first - self._start,
                    ended=now - self._start,
                    prompt_tokens=usage.prompt_tokens,
                    cached_tokens=flash.cached_tokens,
                    prewarmed_tokens=flash.prewarmed_tokens,
                    completion_tokens=usage.completion_tokens,
                )
            )

    async def watch(self, team: FlashTeam, task: str, **options: Any) -> AsyncGenerator[Item, None]:
        """Run a team; hands its items through. Turns are timed by the team, which is ahead of its reader."""
        async for item in team.run_stream(task=task, **options):
            self.see(item)
            yield item
        of_agent: dict[str, list[AgentTurn]] = {}
        for turn in team.last_turns:
            of_agent.setdefault(turn.agent, []).append(turn)
        self.turns = [self._timed(turn, of_agent.get(turn.agent, [])) for turn in self.turns]

    def _timed(self, turn: TimedTurn, known: list[AgentTurn]) -> TimedTurn:
        if not known or known[0].ended is None:
            return turn
        timed = known.pop(0)
        assert timed.ended is not None
        began, ended = timed.began - self._start, timed.ended - self._start
        return replace(turn, began=began, first_token=min(max(turn.first_token, began), ended), ended=ended)


def print_timelines(out: Console, runs: Mapping[str, Sequence[TimedTurn]], width: int | None = None) -> None:
    """Print each run as bars over one common scale: `·` asked, `█` speaking.

    Args:
        out: where to.
        runs: the turns of each run, by its title.
        width: of the bars, in characters; None is what the console has room for.
    """
    if width is None:
        names = max((len(turn.agent) for turns in runs.values() for turn in turns), default=0)
        width = max(16, min(60, out.width - names - 44))
    end = max((turn.ended for turns in runs.values() for turn in turns), default=0.0) or 1.0

    def at(seconds: float) -> int:
        return min(width, round(seconds / end * width))

    for title, turns in runs.items():
        total = max((turn.ended for turn in turns), default=0.0)
        table = Table(title=f"{title}: {total:.2f} s", title_justify="left", box=None, padding=(0, 1, 0, 0))
        table.add_column("agent", no_wrap=True)
        table.add_column("", no_wrap=True, width=width)
        for heading in ("first s", "total s", "prompt", "cached", "prewarmed"):
            table.add_column(heading, justify="right", no_wrap=True)
        for turn in sorted(turns, key=lambda turn: turn.began):
            began, first, ended = at(turn.began), at(turn.first_token), at(turn.ended)
            ended = max(ended, first + 1) if first < width else ended
            bar = " " * began + "·" * (first - began) + "█" * (ended - first)
            figures = (turn.prompt_tokens, turn.cached_tokens, turn.prewarmed_tokens)
            table.add_row(
                turn.agent,
                bar,
                f"{turn.first_token - turn.began:.2f}",
                f"{turn.ended - turn.began:.2f}",
                *map(str, figures),
            )
        out.print(table)
        out.print()


def same_texts(runs: Mapping[str, Sequence[TimedTurn]]) -> bool:
    """Whether every agent said the same in all runs."""
    said = [sorted((turn.agent, turn.text) for turn in turns) for turns in runs.values()]
    return all(one == said[0] for one in said)


__all__ = ["Stopwatch", "TimedTurn", "print_timelines", "same_texts"]
