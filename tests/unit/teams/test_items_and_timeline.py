"""Items of a list that is still being written, and the bars of a run."""

from __future__ import annotations

import io
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from flashagents_autogen import FlashMapReduce, FlashRoundRobinGroupChat
from flashagents_autogen.teams import StreamedJSONError, stream_items
from flashagents_autogen.teams.timeline import Stopwatch, TimedTurn, print_timelines, same_texts
from helpers.teams import assistants


async def pieces(text: str, cuts: list[int] | None = None) -> AsyncIterator[str]:
    """The text in pieces that end at the cuts; character by character without."""
    ends = sorted({*(cuts if cuts is not None else range(len(text))), len(text)})
    begin = 0
    for end in ends:
        yield text[begin:end]
        begin = end


async def test_an_item_comes_with_its_last_character() -> None:
    text = '{"title": "T", "slides": [{"t": "one", "p": ["a]", "b}"]}, {"t": "two"}], "end": [1]}'
    came: list[tuple[int, Any]] = []
    seen = 0

    async def counted() -> AsyncIterator[str]:
        nonlocal seen
        async for piece in pieces(text):
            seen += len(piece)
            yield piece

    async for item in stream_items(counted(), "slides"):
        came.append((seen, item))
    first, second = '{"t": "one", "p": ["a]", "b}"]}', '{"t": "two"}'
    assert came == [
        (text.index(first) + len(first), {"t": "one", "p": ["a]", "b}"]}),
        (text.index(second) + len(second), {"t": "two"}),
    ]


async def test_the_array_may_be_the_whole_text() -> None:
    assert [item async for item in stream_items(pieces('[1, 2.5, "é😀"]'), "")] == [1, 2.5, "é😀"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(items=st.lists(JSON, max_size=4), data=st.data(), ascii=st.booleans())
async def test_the_items_are_those_of_the_whole_text(items: list[Any], data: Any, ascii: bool) -> None:
    """Wherever the text is cut, also within an escape."""
    text = json.dumps({"a": {"items": items}}, ensure_ascii=ascii)
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=12))
    assert [item async for item in stream_items(pieces(text, cuts), "a.items")] == items


@pytest.mark.parametrize("text", ['{"slides": [{"t": "one"}, {"t": "tw', "no JSON at all"])
async def test_a_text_that_is_cut_off_is_an_error_after_what_was_whole(text: str) -> None:
    found = []
    with pytest.raises(StreamedJSONError, match="no complete JSON"):
        async for item in stream_items(pieces(text), "slides"):
            found.append(item)
    assert found == ([{"t": "one"}] if text.startswith("{") else [])


async def test_a_stopwatch_knows_the_turns_of_a_team() -> None:
    agents, _ = assistants("abc", "one", "two", "three")
    team = FlashRoundRobinGroupChat(list(agents), max_turns=3)
    stopwatch = Stopwatch()
    items = [item async for item in stopwatch.watch(team, "Go.")]
    assert [(turn.agent, turn.text) for turn in stopwatch.turns] == [
        ("a", "one"),
        ("b", "two"),
        ("c", "three"),
    ]
    for turn in stopwatch.turns:
        assert 0 <= turn.began <= turn.first_token <= turn.ended <= stopwatch.seconds
        assert turn.prompt_tokens > 0 and turn.completion_tokens == len(turn.text)
    assert len(items) == len("onetwothree") + 5


async def test_turns_at_the_same_time_begin_at_the_same_time() -> None:
    agents, _ = assistants("abr", *[lambda request: "x" * 30] * 3)
    stopwatch = Stopwatch()
    async for _ in stopwatch.watch(FlashMapReduce(list(agents[:2]), agents[2]), "Go."):
        pass
    a, b, r = sorted(stopwatch.turns, key=lambda turn: turn.agent)
    assert b.began < a.ended and a.began < b.ended <= r.began


def test_the_bars() -> None:
    runs = {
        "off": [TimedTurn("a", "x", 0, 1, 4), TimedTurn("b", "y", 4, 6, 8, prompt_tokens=9)],
        "on": [TimedTurn("a", "x", 0, 1, 4), TimedTurn("b", "y", 4, 4, 6, cached_tokens=7)],
    }
    out = Console(file=io.StringIO(), width=120)
    print_timelines(out, runs, width=8)
    text = out.file.getvalue()  # type: ignore[attr-defined]
    lines = [line.rstrip() for line in text.splitlines()]
    assert "off: 8.00 s" in text and "on: 6.00 s" in text
    assert [line.split()[1] for line in lines if line.startswith("b")] == ["··██", "██"]
    assert same_texts(runs)
    assert not same_texts({**runs, "odd": [TimedTurn("a", "z", 0, 1, 2)]})
