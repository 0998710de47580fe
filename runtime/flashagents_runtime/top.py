"""`flashagents top`: a look at a running server, again and again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator

import msgspec
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table

from .engine import Engine
from .plugin_figures import Figures, plugin_figures
from .types import EngineInfo, EngineState


async def states(
    engine: Engine, interval: float, count: int | None
) -> AsyncGenerator[tuple[EngineState, Figures], None]:
    """The engine's state and the plug-in's counts, every `interval` seconds; `count` times, None for ever.

    Raises EngineError where the engine cannot be asked (any more).
    """
    asked = 0
    while count is None or asked < count:
        if asked:
            await asyncio.sleep(interval)
        yield await engine.state(), await plugin_figures(engine)
        asked += 1


def picture(info: EngineInfo, state: EngineState, figures: Figures, where: str, at: str) -> Group:
    """One look, for a terminal."""
    total = max(state.kv_total, 1)
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column()
    table.add_row("requests running", str(state.running), "")
    table.add_row("requests waiting", str(state.waiting), "")
    for name, tokens in (("in use", state.kv_used), ("cached", state.kv_cached), ("free", state.kv_free)):
        bar = ProgressBar(total=total, completed=tokens, width=30)
        table.add_row(f"KV {name}", f"{tokens:,}", bar)
    table.add_row("KV in all", f"{state.kv_total:,}", "tokens")
    for feature, counted in figures.items():
        table.add_row(f"[bold]{escape(feature)}[/]")
        for name, value in counted.items():
            table.add_row(f"  {escape(name.replace('_', ' '))}", f"{value:,.6g}")
    model = info.model.rstrip("/").rpartition("/")[2]
    head = f"[bold]{escape(model)}[/] on {escape(info.device)}, {escape(where)}  [dim]{at}[/]"
    return Group(head, f"[dim]{escape(', '.join(info.features))}[/]", table)


async def watch(
    engine: Engine, where: str, console: Console, *, interval: float, count: int | None, as_json: bool
) -> None:
    """Show the states until `count` have been seen: in place on a terminal, else one block or line each."""
    info = await engine.start()
    if as_json:
        async for state, figures in states(engine, interval, count):
            line = {"time": time.time(), **msgspec.to_builtins(state), "plugin": figures}
            console.out(msgspec.json.encode(line).decode(), highlight=False)
        return
    with Live(console=console, auto_refresh=False, transient=False) as live:
        async for state, figures in states(engine, interval, count):
            live.update(picture(info, state, figures, where, time.strftime("%H:%M:%S")), refresh=True)


__all__ = ["picture", "states", "watch"]
