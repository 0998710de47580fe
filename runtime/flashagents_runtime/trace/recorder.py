"""`Trace`: the events of a run, kept in a ring, and the ways to look at them."""

from __future__ import annotations

import errno
import io
import uuid
from collections import deque
from pathlib import Path
from typing import Any, Self

import msgspec

from .. import _extras
from ..errors import TraceFileError
from .events import AnyEvent, add_sink, remove_sink
from .groups import KINDS
from .view import TraceView

FORMAT = 1  # of the .jsonl files
PICTURES = (".pdf", ".png", ".svg")
_DPI = 200  # of a .png


def check_target(path: str | Path, *, several: bool = False) -> None:
    """Whether `Trace.save` can write this file: worth asking before a long run.

    Args:
        path: where to.
        several: two traces are to be compared.

    Raises as `Trace.save`; FileNotFoundError, which is an OSError, for a folder that is not there.
    """
    kind = Path(path).suffix.lower()
    if kind in (".jsonl", ".json"):
        if several:
            raise ValueError(f"{kind} files hold one trace; save the other one to a file of its own")
    elif kind in (".html", *PICTURES):
        package = "plotly" if kind == ".html" else "matplotlib"
        if missing := _extras.find_missing([package]):
            raise ImportError(_extras.missing_message(missing, "trace"), name=package)
    else:
        raise ValueError(f"{Path(path).name}: a trace is saved as .html, .jsonl, .json, .svg, .pdf or .png")
    folder = Path(path).resolve().parent
    if not folder.is_dir():
        raise FileNotFoundError(errno.ENOENT, "there is no such folder to save a trace in", str(folder))


def _write(path: Path, content: bytes) -> None:
    """A file appears in one piece, or not at all: a disk that fills up must not take the last trace along."""
    if path.exists() and not path.is_file():  # a device or a pipe
        path.write_bytes(content)
        return
    path = path.resolve()
    part = path.with_name(f".{path.name[:100]}.{uuid.uuid4().hex}")
    try:
        part.write_bytes(content)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


class _Header(msgspec.Struct, omit_defaults=True):
    trace: int
    name: str = ""
    dropped: int = 0


class Trace:
    """Records what happens while it runs: off until `start`, or for the length of a `with` block.

    Args:
        name: shown as its title, and in comparisons.
        capacity: events kept; older ones are dropped, so a trace of any length takes bounded memory
            (an event takes about half a kilobyte).

    Attributes:
        dropped: events that did not find room any more.

    Example:
        >>> with Trace() as trace:
        ...     await team.run(task="Plan a trip.")
        >>> trace.save("timeline.html")
    """

    def __init__(self, name: str = "", *, capacity: int = 50_000) -> None:
        if capacity < 1:
            raise ValueError(f"capacity={capacity}: a trace needs room for one event at least")
        self.name = name
        self.dropped = 0
        self._events: deque[AnyEvent] = deque(maxlen=capacity)

    def __repr__(self) -> str:
        return f"<Trace {self.name!r}: {len(self._events)} events>"

    def __len__(self) -> int:
        return len(self._events)

    def start(self) -> Self:
        """Record from now on; twice is once."""
        add_sink(self)
        return self

    def stop(self) -> None:
        """Record no more; what is there stays."""
        remove_sink(self)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def record(self, event: AnyEvent, /) -> None:
        """Take an event. Called through `flashagents_runtime.trace.record`, from any thread."""
        if len(self._events) == self._events.maxlen:
            self.dropped += 1
        self._events.append(event)

    @property
    def events(self) -> list[AnyEvent]:
        """A copy of what is there, in order of recording: spans are recorded when they end."""
        return list(self._events)

    @property
    def view(self) -> TraceView:
        """Turns, gaps, rows and sums of what is there now."""
        return TraceView(self.events)

    # ---- ways out

    def save(self, path: str | Path, *, compare: Trace | None = None) -> Path:
        """Write it; the name's ending says what.

        - ``.html``: one page with time lines and tables; needs the extra `trace`.
        - ``.jsonl``: the events, for `Trace.load` and `flashagents trace show`.
        - ``.json``: Chrome's trace format, for ui.perfetto.dev and chrome://tracing.
        - ``.svg``, ``.pdf``, ``.png``: a figure for a paper; needs the extra `trace`.

        Args:
            path: where to.
            compare: a second trace, such as the same task without hand-off; for pages and figures.

        Raises:
            ValueError: another ending, or `compare` for a file that holds one trace.
            ImportError: the extra is missing.
            OSError: it cannot be written; a file that was there is left as it was.
        """
        path = Path(path)
        check_target(path, several=compare is not None)
        kind = path.suffix.lower()
        if kind == ".html":
            from .page import page

            _write(path, page(self, compare).encode())
        elif kind == ".jsonl":
            head = _Header(FORMAT, self.name, self.dropped)
            _write(path, msgspec.json.Encoder().encode_lines([head, *self.events]))
        elif kind == ".json":
            from .perfetto import chrome_trace

            _write(path, msgspec.json.encode(chrome_trace(self.view)))
        else:
            picture = io.BytesIO()
            self.plot(compare=compare).savefig(picture, format=kind[1:], dpi=_DPI)
            _write(path, picture.getvalue())
        return path

    @classmethod
    def load(cls, path: str | Path) -> Trace:
        """Read a ``.jsonl`` file.

        Raises:
            TraceFileError: it holds no trace.
            OSError: it cannot be read.
        """
        lines = Path(path).read_bytes().splitlines()
        try:
            head = msgspec.json.decode(lines[0] if lines else b"", type=_Header)
            if head.trace != FORMAT:
                raise TraceFileError(f"{path} has trace format {head.trace}, this version reads {FORMAT}")
            decode = msgspec.json.Decoder(AnyEvent).decode
            events = [decode(line) for line in lines[1:]]
        except msgspec.DecodeError as e:
            other = (
                " (.json is for https://ui.perfetto.dev; save the trace as .jsonl as well)"
                if Path(path).suffix == ".json"
                else ""
            )
            raise TraceFileError(
                f'{path} holds no trace as `Trace.save("x.jsonl")` writes it{other}: {e}'
            ) from e
        trace = cls(head.name, capacity=max(len(events), 1))
        trace._events.extend(events)
        trace.dropped = head.dropped
        return trace

    def figure(self, *, compare: Trace | None = None) -> Any:
        """The time line, a `plotly.graph_objects.Figure`: the last expression of a notebook's cell shows it.

        Raises ImportError where the extra `trace` is missing.
        """
        from .timeline import timeline

        return timeline(self, compare)

    def plot(self, *, compare: Trace | None = None, width: float = 7.0) -> Any:
        """The time line as a `matplotlib.figure.Figure`, `width` inches wide.

        Raises ImportError where the extra `trace` is missing.
        """
        from .paper import paper_figure

        return paper_figure(self, compare, width)

    def _repr_html_(self) -> str:
        from .tables import trace_html

        return trace_html(self)

    def to_dict(self) -> dict[str, Any]:
        """Sums, rows, and sums by agent, engine and workflow as JSON values."""
        view = self.view
        out = {"name": self.name, "dropped": self.dropped, "summary": view.summary, "turns": view.rows}
        out |= {f"by_{by}": view.groups(by) for by in KINDS}
        return dict(msgspec.to_builtins(out))


__all__ = ["FORMAT", "Trace", "check_target"]
