"""What a trace is written as, and what its numbers are."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from flashagents_runtime import TraceFileError, _extras
from flashagents_runtime.trace import Chunk, Handoff, Trace, Turn
from flashagents_runtime.trace.bars import Bars
from flashagents_runtime.trace.view import MOST_AGENT_LANES
from helpers.traces import made_up

NASTY = '</script><script>alert("x")</script>$<b>'


def turn(agent: str, start: float, end: float, workflow: str = "w", **more: Any) -> Turn:
    more = {"first": start + 0.1, "rid": f"{agent}{start}", **more}
    return Turn(agent=agent, workflow=workflow, start=start, end=end, **more)


def trace_of(*events: Any) -> Trace:
    trace = Trace()
    for event in events:
        trace.record(event)
    return trace


# ---- the view


def test_gaps_follow_the_turn_before() -> None:
    view = trace_of(
        turn("a", 0, 1),
        turn("b", 1.5, 2),
        turn("c", 1.2, 3),  # beside b: both follow a
        turn("c", 3.1, 4),  # itself again: no hand-off
        turn("x", 2.5, 3, workflow="other"),
        turn("loose", 5, 6, workflow=""),
    ).view
    assert [(g.upstream, g.agent, g.start, g.end) for g in view.handoffs] == [
        ("a", "b", 1, 1.6),
        ("a", "c", 1, pytest.approx(1.3)),
    ]
    assert [row.gap is not None for row in view.rows] == [False, True, True, False, False, False]


def test_failed_turns_hand_nothing_off_and_recorded_gaps_win() -> None:
    told = Handoff(agent="c", workflow="w", upstream="a", start=1, end=4.1, rid="c4")
    failed = turn("b", 1.5, 3, outcome="failed", first=None)
    view = trace_of(turn("a", 0, 1), failed, turn("c", 4, 5), told).view
    assert view.handoffs == [told]


def test_sums() -> None:
    trace = made_up(agents=3, turns=6)
    summary, rows = trace.view.summary, trace.view.rows
    assert (summary.turns, summary.agents, summary.workflows) == (6, 3, 1)
    assert summary.wasted == 50 and sum(row.wasted for row in rows) == 50
    assert summary.chunks == 20 and summary.aborted_chunks == 1
    assert summary.prompt == sum(row.prompt for row in rows)
    assert rows[0].ahead == 0 and rows[1].ahead == pytest.approx(0.32)
    assert rows[0].start == 0 and all(row.rate == pytest.approx(60, rel=0.05) for row in rows)


def test_sums_by_agent_engine_and_workflow() -> None:
    view = made_up(agents=3, workflows=2, turns=6).view
    for by, names in (("agent", 3), ("engine", 1), ("workflow", 2)):
        found = view.groups(by)  # type: ignore[arg-type]
        assert len(found) == names
        for name in ("turns", "prompt", "cached", "prewarmed", "wasted", "completion"):
            assert sum(getattr(group, name) for group in found) == getattr(view.summary, name)
    [engine] = view.groups("engine")
    assert engine.gap == pytest.approx(view.summary.gap)
    assert engine.first_token == pytest.approx(view.summary.first_token)
    [nobody] = trace_of(turn("a", 0, 1, first=None)).view.groups("workflow")
    assert (nobody.gap, nobody.first_token) == (None, None)
    with pytest.raises(ValueError, match="by agent, engine, workflow"):
        view.groups("mood")  # type: ignore[arg-type]


def test_an_empty_trace_can_be_looked_at(tmp_path: Path) -> None:
    trace = Trace()
    assert trace.view.summary.seconds == 0
    for name in ("x.html", "x.json", "x.jsonl", "x.svg"):
        assert trace.save(tmp_path / name).stat().st_size > 0
    assert "0 events" in trace._repr_html_()


def test_many_agents_share_a_lane_a_workflow() -> None:
    few, many = Bars(made_up(12).view), Bars(made_up(12, workflows=64).view)
    assert len(few.lanes) == 12 <= MOST_AGENT_LANES
    assert len(many.lanes) == 64
    assert {bar.lane for bar in many.bars} == set(range(64))


# ---- files


def test_events_come_back(tmp_path: Path) -> None:
    trace = made_up(name=NASTY)
    trace.dropped = 7
    back = Trace.load(trace.save(tmp_path / "x.jsonl"))
    assert (back.name, back.dropped, back.events) == (NASTY, 7, trace.events)


@pytest.mark.parametrize(
    "content", ["", "{}", '{"trace": 99}', '{"trace": 1}\n{"event": "unknown"}', "no json"]
)
def test_other_files_are_refused(content: str, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(content)
    with pytest.raises(TraceFileError):
        Trace.load(path)


def test_perfettos_file_is_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text('{"traceEvents": []}')
    with pytest.raises(TraceFileError, match=r"\.json is for https://ui\.perfetto\.dev; save .* as \.jsonl"):
        Trace.load(path)


def test_other_endings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\.html, \.jsonl"):
        Trace().save(tmp_path / "x.txt")
    with pytest.raises(ValueError, match="one trace"):
        Trace().save(tmp_path / "x.json", compare=Trace())


def test_chrome_trace(tmp_path: Path) -> None:
    trace = made_up(agents=3, workflows=2, turns=5)
    events = json.loads(trace.save(tmp_path / "x.json").read_text())["traceEvents"]
    spans = [e for e in events if e["ph"] == "X"]
    assert all(e["ts"] >= 0 and e["dur"] >= 0 and e["pid"] > 0 and e["tid"] > 0 for e in spans)
    assert sum(e["name"] == "decode" for e in spans) == 10
    assert sum(e["cat"] == "chunk" for e in spans) == len(trace.view.chunks)
    threads = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert {(e["pid"], e["tid"]) for e in spans} <= threads
    begins, ends = ({e["id"]: e["ts"] for e in events if e["ph"] == phase} for phase in "sf")
    assert begins.keys() == ends.keys() and len(begins) == len(trace.view.handoffs)
    assert all(begins[i] <= ends[i] for i in begins)
    assert {e["ph"] for e in events} == {"M", "X", "i", "s", "f"}


def test_a_figure_for_a_paper(tmp_path: Path) -> None:
    trace = made_up(name="with $x_1$")
    svg = trace.save(tmp_path / "x.svg", compare=made_up(overlap=False, name="without")).read_text()
    assert svg.lstrip().startswith("<?xml")
    assert trace.save(tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    figure = trace.plot(width=3.5)
    assert figure.get_figwidth() == 3.5
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()][:2] == ["agent_00", "agent_01"]


# ---- pages (what a browser makes of them: tests/pages)


class Page(HTMLParser):
    """Tags, attributes and texts of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.cells: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] == "td":
            self.cells.append(data)


@pytest.mark.long
def test_short_chunks_are_seen_in_a_picture(tmp_path: Path) -> None:
    """Of 5 ms each, beside turns of a minute: far less than a pixel."""
    chunks = [
        Chunk(session="s", agent="b", workflow="w", start=3.0 * i, end=3.0 * i + 0.005, position=(0, 64))
        for i in range(1, 20)
    ]
    path = trace_of(turn("a", 0, 60), turn("b", 60, 61), *chunks).save(tmp_path / "x.png")
    from matplotlib import image

    pixels = image.imread(path)
    green = (pixels[..., 1] - pixels[..., 0] > 0.2) & (pixels[..., 1] - pixels[..., 2] > 0.05)
    columns = green[pixels.shape[0] // 2 :].any(axis=0)  # below the legend
    assert (columns[1:] & ~columns[:-1]).sum() == len(chunks)


def test_a_page_loads_nothing_and_trusts_no_name(tmp_path: Path) -> None:
    nasty = turn(NASTY, 0, 1, workflow=NASTY, error=NASTY, outcome="failed", engine=NASTY)
    chunk = Chunk(session=NASTY, agent=NASTY, workflow=NASTY, start=0, end=1, position=(0, 4))
    trace = trace_of(nasty, chunk)
    trace.name = NASTY
    text = trace.save(tmp_path / "x.html").read_text()
    page = Page(text)
    assert not [a for _, a in page.tags for name in ("src", "href") if (a.get(name) or "").startswith("http")]
    assert '<script>alert("x")' not in text
    assert "default-src 'none'" in text
    assert NASTY in page.cells


def test_a_page_has_both_traces_and_all_turns(tmp_path: Path) -> None:
    ours, other = made_up(name="with"), made_up(overlap=False, name="without", turns=7)
    page = Page(ours.save(tmp_path / "x.html", compare=other).read_text())
    assert page.cells.count("hand-off ms, mean") == 1
    groups = 2 * (1 + 4)  # by agent; there is one engine and one workflow
    assert sum(tag == "tr" for tag, _ in page.tags) == (1 + 12) + (1 + 12) + (1 + 7) + groups


def test_notebooks_see_a_table_that_trusts_no_name() -> None:
    trace = trace_of(turn(NASTY, 0, 1))
    html = trace._repr_html_()
    assert "<script" not in html and "&lt;script&gt;" in html


@pytest.mark.parametrize("name", ["x.html", "x.svg"])
def test_a_missing_extra_is_named(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_extras, "find_missing", lambda modules: ["absent"])
    with pytest.raises(ImportError, match=r"flashagents-autogen\[trace\]"):
        made_up().save(tmp_path / name)
    assert not (tmp_path / name).exists()
