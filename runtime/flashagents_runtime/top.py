"""`flashagents top`: a look at running engines, again and again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Protocol

import msgspec
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table

from .engine import Engine
from .errors import EngineError
from .looks import Look, ask, windows
from .plugin_figures import plugin_figures
from .tally import Counts

DEFAULT_URL = "http://127.0.0.1:30000"


class Source(Protocol):
    """Where looks come from."""

    async def look(self) -> list[Look]:
        """All engines, now; never empty. Raises EngineError where there is none (any more)."""
        ...

    def where(self, look: Look) -> str:
        """Where that engine is, in a few words."""
        ...

    async def close(self) -> None:
        """Look no more."""
        ...


class EngineSource:
    """One engine that this process can ask, such as a server behind `RemoteEngine`."""

    def __init__(self, engine: Engine, where: str) -> None:
        self._engine = engine
        self._where = where

    async def look(self) -> list[Look]:
        """See `Source`."""
        info = await self._engine.start()
        return [Look(info=info, state=await self._engine.state(), plugin=await plugin_figures(self._engine))]

    def where(self, look: Look) -> str:
        """See `Source`."""
        return self._where

    async def close(self) -> None:
        """See `Source`."""
        await self._engine.close()


class EmbeddedSource:
    """The embedded engines of this user's processes, or of one of them; found anew at each look.

    Engines that end, or do not answer, are left out as long as another one answers.
    """

    def __init__(self, pid: int | None = None) -> None:
        self._pid = pid

    async def look(self) -> list[Look]:
        """See `Source`."""
        found = await asyncio.gather(*(_look_or_error(window) for window in windows()))
        looks = [one for one in found if isinstance(one, Look) and self._pid in (None, one.pid)]
        if looks:
            return looks
        errors = [one for one in found if isinstance(one, EngineError)]
        if errors and self._pid is None:
            raise errors[0]
        whose = "of yours" if self._pid is None else f"of process {self._pid}"
        raise EngineError(f"no embedded engine {whose} is running (an engine is found once it is up)")

    def where(self, look: Look) -> str:
        """See `Source`."""
        return f"embedded in process {look.pid}"

    async def close(self) -> None:
        """See `Source`."""


async def _look_or_error(window: Path) -> Look | EngineError:
    try:
        return await ask(window)
    except EngineError as error:
        return error


def source_of(where: str | None, api_key: str | None = None) -> Source:
    """The source that a command line names.

    Args:
        where: a server's URL; the id of a process; None for all embedded engines of this user, or,
            where there are none, the server at `DEFAULT_URL`.
        api_key: the server's key.

    Raises ValueError for what is neither.
    """
    from .remote import RemoteEngine

    if where is None and windows():
        return EmbeddedSource()
    if where is not None and where.isdecimal():
        return EmbeddedSource(int(where))
    url = where or DEFAULT_URL
    return EngineSource(RemoteEngine(url, api_key=api_key), url)


async def looks(source: Source, interval: float, count: int | None) -> AsyncGenerator[list[Look], None]:
    """All engines, every `interval` seconds; `count` times, None for ever. Raises as `Source.look`."""
    asked = 0
    while count is None or asked < count:
        if asked:
            await asyncio.sleep(interval)
        yield await source.look()
        asked += 1


def picture(look: Look, where: str, at: str, *, bars: bool = True) -> Group:
    """One engine, for a terminal; without bars for anything else."""
    state = look.state
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column()
    table.add_row("requests running", str(state.running), "")
    table.add_row("requests waiting", str(state.waiting), "")
    for name, tokens in (("in use", state.kv_used), ("cached", state.kv_cached), ("free", state.kv_free)):
        bar = ProgressBar(total=max(state.kv_total, 1), completed=tokens, width=30) if bars else ""
        table.add_row(f"KV {name}", f"{tokens:,}", bar)
    table.add_row("KV in all", f"{state.kv_total:,}", "tokens")
    if look.counts is not None:
        for row in _counted(look.counts):
            table.add_row(*row)
    for feature, counted in look.plugin.items():
        table.add_row(f"[bold]{escape(feature)}[/]")
        for name, value in counted.items():
            table.add_row(f"  {escape(name.replace('_', ' '))}", f"{value:,.6g}")
    model = look.info.model.rstrip("/").rpartition("/")[2]
    head = f"[bold]{escape(model)}[/] on {escape(look.info.device)}, {escape(where)}  [dim]{at}[/]"
    return Group(head, f"[dim]{escape(', '.join(look.info.features))}[/]", table)


def _counted(counts: Counts) -> list[tuple[str, str, str]]:
    def part(some: int, of: int, what: str) -> str:
        return f"{some / of:.0%} of {what}" if of else ""

    return [
        ("sessions open", f"{counts.sessions:,}", "prefill sessions"),
        ("answers", f"{counts.answers:,}", f"{counts.completion:,} tokens"),
        ("cache hits", f"{counts.cached:,}", part(counts.cached, counts.prompt, "the prompts' tokens")),
        ("prewarmed", f"{counts.prewarmed:,}", part(counts.prewarmed, counts.prompt, "the prompts' tokens")),
        ("computed ahead", f"{counts.ahead:,}", f"in {counts.warm_ups:,} warm-ups"),
        ("wasted", f"{counts.wasted:,}", part(counts.wasted, counts.ahead, "these")),
    ]


def _line(look: Look, where: str) -> bytes:
    out = {"time": time.time(), "where": where, "model": look.info.model, "pid": look.pid}
    state = msgspec.to_builtins(look.state)
    return msgspec.json.encode({**out, **state, "counts": look.counts, "plugin": look.plugin})


async def watch(
    source: Source, console: Console, *, interval: float, count: int | None, as_json: bool
) -> None:
    """Show what there is until it was seen `count` times: in place on a terminal, else one after another."""

    def shown(found: Sequence[Look]) -> Group:
        at = time.strftime("%H:%M:%S")
        return Group(*(picture(one, source.where(one), at, bars=console.is_terminal) for one in found))

    if as_json or not console.is_terminal:
        async for found in looks(source, interval, count):
            if not as_json:
                console.print(shown(found))
                continue
            for one in found:
                console.out(_line(one, source.where(one)).decode(), highlight=False)
        return
    with Live(console=console, auto_refresh=False, transient=False) as live:
        async for found in looks(source, interval, count):
            live.update(shown(found), refresh=True)


__all__ = ["EmbeddedSource", "EngineSource", "Source", "looks", "picture", "source_of", "watch"]
