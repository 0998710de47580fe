"""The command line: `flashagents doctor`, `prepare-model`, `serve`, `top`, `trace`, `train-roles`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ._version import __version__
from .errors import FlashAgentsError

INTERRUPTED = 130

app = typer.Typer(
    name="flashagents",
    help="FlashAgents for AutoGen: AutoGen agents on embedded SGLang engines.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"flashagents-autogen {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """FlashAgents for AutoGen: AutoGen agents on embedded SGLang engines."""


@app.command()
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Compare SGLang's files with its release instead of importing it."),
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but what is wrong.")] = False,
) -> None:
    """Check versions, device, shims, SGLang seams and folders; exit status 1 if something is wrong.

    Imports torch and SGLang as an engine does, which takes a quarter of a minute; --quick does not.
    """
    from .doctor import Report, examine

    with Console(stderr=True, quiet=quiet).status("Looking at the installation") as status:
        report: Report = examine(quick=quick, tell=lambda stage: status.update(f"Looking at {escape(stage)}"))
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(report)).decode())
    elif quiet:
        for line in report.problems():
            typer.echo(line)
    else:
        table = Table(box=None, show_header=False)
        table.add_column()
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        signs = {"ok": "[green]ok[/]", "note": "[yellow]note[/]", "problem": "[red]problem[/]"}
        for check in report.checks:
            table.add_row(signs[check.status], check.name, escape(check.found))
        out = Console()
        out.print(table)
        for line in report.advice():
            out.print(f"\n{escape(line)}", soft_wrap=True, highlight=False)
        out.print("\nAll is well." if report.ok else "\nThis installation does not work as it is.")
    raise typer.Exit(0 if report.ok else 1)


@app.command()
def prepare_model(
    name: Annotated[
        str | None, typer.Argument(help="A folder or hub id; left out, the default model.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the folder as JSON.")] = False,
) -> None:
    """Fetch and check a model, so that the first engine start needs no network; print its folder."""
    from .model_store import resolve_model
    from .progress import show_progress

    with show_progress(quiet=quiet) as progress:
        folder = resolve_model(name, progress=progress)
    typer.echo(msgspec.json.encode({"model": str(folder)}) if as_json else folder)


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    epilog="All other arguments are those of SGLang's launcher, such as --port, --host, --tp, --api-key.",
)
def serve(
    context: typer.Context,
    model: Annotated[
        str | None, typer.Option("--model", help="A folder or hub id; left out, the default model.")
    ] = None,
    max_body_mib: Annotated[int, typer.Option(min=0, help="Longest body of a request; 0: no limit.")] = 64,
    max_requests_per_key: Annotated[
        int, typer.Option(min=0, help="Running requests of one API key; 0: no limit.")
    ] = 1024,
    max_sessions_per_key: Annotated[
        int, typer.Option(min=0, help="Open SGLang sessions of one API key; 0: no limit.")
    ] = 64,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="Show no progress of the model's preparation.")
    ] = False,
) -> None:
    """Serve a model over HTTP, with our plug-in, for clients with `engine_url=`; loopback by default."""
    from .engine_args import check_flags
    from .model_store import resolve_model
    from .progress import show_progress
    from .serve import check_address
    from .serve import serve as run
    from .serve_limits import Limits

    check_flags(context.args, [flag for option in context.command.params for flag in option.opts])
    check_address(context.args)
    limits = Limits(
        body_bytes=max_body_mib << 20,
        requests_per_key=max_requests_per_key,
        sessions_per_key=max_sessions_per_key,
    )

    with show_progress(quiet=quiet) as progress:
        folder = resolve_model(model, progress=progress)
    run(str(folder), context.args, limits)


@app.command()
def top(
    where: Annotated[
        str | None,
        typer.Argument(
            help="A server's URL, or the id of a process that has embedded engines. Left out: all embedded "
            "engines of yours, or where there are none http://127.0.0.1:30000."
        ),
    ] = None,
    interval: Annotated[float, typer.Option("--interval", min=0.05, help="Seconds between looks.")] = 1.0,
    count: Annotated[
        int | None, typer.Option("--count", min=1, help="Look so often, then end; left out, until Ctrl-C.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON line for each engine and look.")
    ] = False,
) -> None:
    """Watch running engines: requests, sessions, pins, cache hits, waste, and what the KV cache holds."""
    import asyncio
    import os

    from .top import source_of, watch

    async def look() -> None:
        source = source_of(where, os.environ.get("FLASHAGENTS_API_KEY"))
        try:
            await watch(source, Console(), interval=interval, count=count, as_json=as_json)
        finally:
            await source.close()

    asyncio.run(look())


@app.command()
def train_roles(
    roles: Annotated[
        list[str],
        typer.Argument(
            metavar="ROLE=FILE",
            help='A role\'s name and its pairs, a JSON list of {"input": ..., "output": ...}.',
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="Where the adapters go; a cut-off run goes on there.")],
    model: Annotated[
        str | None, typer.Option("--model", help="A folder or hub id; left out, the default model.")
    ] = None,
    shared_a: Annotated[
        bool,
        typer.Option("--shared-a", help="All roles get the first one's v_proj.lora_A, as base_lr needs it."),
    ] = False,
    rank: Annotated[int, typer.Option(help="r of the adapters.")] = 8,
    alpha: Annotated[int, typer.Option(help="lora_alpha; adapters are scaled by alpha / rank.")] = 16,
    targets: Annotated[str, typer.Option(help="Modules with an adapter.")] = "q_proj,v_proj",
    dropout: Annotated[float, typer.Option(help="Of the adapters' input.")] = 0.05,
    epochs: Annotated[float, typer.Option(help="Passes over the pairs.")] = 3.0,
    batch_size: Annotated[int, typer.Option(help="Pairs a step.")] = 32,
    micro_batch: Annotated[int, typer.Option(help="Pairs in memory at once.")] = 4,
    learning_rate: Annotated[float, typer.Option(help="At its peak.")] = 5e-4,
    warmup: Annotated[float, typer.Option(help="Share of the steps in which it rises.")] = 0.05,
    max_tokens: Annotated[int, typer.Option(help="Of a pair; longer inputs lose their beginning.")] = 2048,
    max_pairs: Annotated[int | None, typer.Option(help="Of a role; left out, all.")] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Put inputs into the model's chat template.")] = False,
    seed: Annotated[int, typer.Option(help="Another one gives other adapters.")] = 0,
    dtype: Annotated[str, typer.Option(help="Of the backbone: auto, float32, bfloat16.")] = "auto",
    cpu: Annotated[bool, typer.Option("--cpu", help="Train on the CPU though there is a GPU.")] = False,
    checkpoint_steps: Annotated[int, typer.Option(min=1, help="Steps between checkpoints.")] = 20,
    no_plot: Annotated[bool, typer.Option("--no-plot", help="Do not draw the losses.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print folders, recipe and losses of each role as JSON.")
    ] = False,
) -> None:
    """Train a LoRA adapter for each role; prints their folders. Needs the extra `train`."""
    from .model_store import resolve_model
    from .progress import show_progress
    from .role_training import Recipe
    from .role_training import train_roles as train
    from .role_training.command import pair_files, sharing_note

    files = pair_files(roles)
    recipe = Recipe(
        rank=rank,
        alpha=alpha,
        targets=tuple(part.strip() for part in targets.split(",") if part.strip()),
        dropout=dropout,
        epochs=epochs,
        batch_size=batch_size,
        micro_batch=micro_batch,
        learning_rate=learning_rate,
        warmup=warmup,
        max_tokens=max_tokens,
        max_pairs=max_pairs,
        chat=chat,
        seed=seed,
        dtype=dtype,
    )
    with show_progress(quiet=quiet) as progress:
        folder = resolve_model(model, progress=progress)
        done = train(
            folder,
            files,
            out,
            recipe,
            shared_a=shared_a,
            device="cpu" if cpu else None,
            checkpoint_steps=checkpoint_steps,
            plot=not no_plot,
            progress=progress,
        )
    if as_json:
        found = {t.role: {"adapter": str(out / t.role), **msgspec.to_builtins(t)} for t in done}
        typer.echo(msgspec.json.format(msgspec.json.encode(found)).decode())
    else:
        for trained in done:
            typer.echo(out / trained.role)
    if note := sharing_note(recipe, shared_a=shared_a):
        typer.echo(note, err=True)


trace_app = typer.Typer(no_args_is_help=True, help="Look at traces that `Trace.save` wrote.")
app.add_typer(trace_app, name="trace")


@trace_app.command()
def show(
    file: Annotated[Path, typer.Argument(help="A .jsonl file of `Trace.save`.", exists=True, dir_okay=False)],
    as_json: Annotated[bool, typer.Option("--json", help="Print sums and turns as JSON.")] = False,
    page: Annotated[Path | None, typer.Option("--page", help="Write a page (.html) or other file.")] = None,
    compare: Annotated[
        Path | None, typer.Option("--compare", help="A second trace for the page.", exists=True)
    ] = None,
) -> None:
    """Show a trace: time line, sums, turns."""
    from .trace import Trace
    from .trace.terminal import show as show_on_terminal

    trace = Trace.load(file)
    if page is not None:
        other = None if compare is None else Trace.load(compare)
        with Console(stderr=True).status("Drawing"):
            saved = trace.save(page, compare=other)
        typer.echo(saved)
    elif as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(trace.to_dict())).decode())
    else:
        show_on_terminal(trace)


def main() -> None:
    """Entry point: our errors are one line on standard error and exit status 1, Ctrl-C is 130."""
    try:
        app(standalone_mode=True)
    except (FlashAgentsError, ImportError, ValueError, OSError) as error:
        typer.echo(f"flashagents: {error}", err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


__all__ = ["app", "main"]
