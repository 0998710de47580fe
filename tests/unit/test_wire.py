"""Frames between application and host."""

from __future__ import annotations

import itertools
from pathlib import PurePath

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashagents_runtime import wire
from flashagents_runtime.types import Delta, GenerateRequest, GenerateResult, Progress, SamplingParams, Usage

MESSAGES = [
    wire.Progressed(Progress("Loading", 0.5)),
    wire.Deltas([("a" * 32, Delta("héllo 🎉", [1, 2])), ("b" * 32, Delta("", []))]),
    wire.Deltas(
        [("c" * 32, Delta("", [], GenerateResult(finish_reason="stop", usage=Usage(prompt_tokens=3))))]
    ),
    wire.Failed("d" * 32, "no", True),
    wire.Answer(7, {"kv_total": 1}),
    wire.Refused("never"),
]


@given(st.lists(st.sampled_from(MESSAGES), max_size=6), st.lists(st.integers(0, 400), max_size=8))
def test_any_cut_of_the_stream_gives_the_same_messages(
    messages: list[wire.FromHost], cuts: list[int]
) -> None:
    data = b"".join(wire.encode(m) for m in messages)
    reader = wire.FrameReader(wire.FromHost)
    edges = sorted({0, len(data), *(c for c in cuts if c < len(data))})
    got = [m for a, b in itertools.pairwise(edges) for m in reader.feed(data[a:b])]
    assert got == messages


def test_requests_come_through_whole() -> None:
    request = GenerateRequest(
        input_ids=list(range(5000)), sampling=SamplingParams(max_new_tokens=0, stop=["x"]), lora="planner"
    )
    [got] = wire.FrameReader(wire.ToHost).feed(wire.encode(wire.Generate(request)))
    assert got == wire.Generate(request)


def test_only_what_was_given_is_sent() -> None:
    assert SamplingParams(max_new_tokens=0).to_sglang() == {"max_new_tokens": 0}


def test_what_msgpack_does_not_know_is_sent_as_text() -> None:
    [got] = wire.FrameReader(wire.FromHost).feed(wire.encode(wire.Answer(1, {"path": PurePath("a/b")})))
    assert got.value == {"path": "a/b"}


def test_a_peer_out_of_step_is_noticed() -> None:
    with pytest.raises(ValueError, match="out of step"):
        wire.FrameReader(wire.FromHost).feed(b"\xff\xff\xff\xff")
    with pytest.raises(msgspec.DecodeError):
        wire.FrameReader(wire.FromHost).feed(b"\x02\x00\x00\x00\xc1\xc1")
