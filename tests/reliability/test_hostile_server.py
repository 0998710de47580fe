"""A server that answers with nonsense: a typed error each time, no hang, bounded memory."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from flashagents_runtime import (
    AnswerFormat,
    Delta,
    EngineDiedError,
    EngineError,
    EngineStartError,
    EngineState,
    GenerateRequest,
    ToolDefinition,
)
from flashagents_runtime.remote import RemoteEngine
from flashagents_runtime.remote import engine as remote_engine
from flashagents_runtime.remote.outputs import MAX_EVENT_BYTES, EventReader, check_output
from helpers.hostile_server import MODEL, SERVER, HostileServer, answer, stream

END = {
    "text": "",
    "output_ids": [],
    "meta_info": {"finish_reason": {"type": "stop", "matched": None}, "prompt_tokens": 2},
}

ENOUGH = settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["stop", "length", "abort", "cpu", "flashagents"]),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=6,
)


def objects(*names: str) -> st.SearchStrategy[dict[str, Any]]:
    """Objects that have some of these fields, with values of any kind."""
    return st.fixed_dictionaries({}, optional={name: values for name in names})


metas = st.fixed_dictionaries(
    {},
    optional={
        "finish_reason": st.one_of(values, objects("type", "message", "status_code", "matched")),
        "cached_tokens_details": st.one_of(values, objects("shared_in_turn")),
        **{
            name: values
            for name in (
                "prompt_tokens",
                "cached_tokens",
                "completion_tokens",
                "output_token_logprobs",
                "output_top_logprobs",
            )
        },
    },
)
outputs = st.one_of(
    values,
    st.fixed_dictionaries(
        {},
        optional={
            "text": values,
            "output_ids": values,
            "meta_info": st.one_of(values, metas),
            "error": st.one_of(values, objects("code", "message")),
        },
    ),
)
FORMAT = AnswerFormat(tools=[ToolDefinition(name="look")])


async def read(server: HostileServer, **fields: Any) -> list[Delta]:
    async with server.serve() as url:
        engine = RemoteEngine(url, read_timeout=30, connect_timeout=2)
        try:
            async with asyncio.timeout(60):
                request = GenerateRequest(input_ids=[1, 2], **fields)
                return [delta async for delta in engine.generate(request)]
        finally:
            await engine.close()


def typed(server: HostileServer, **fields: Any) -> EngineError | None:
    """Read an answer: None where it was a good one, the error where it was one of ours; all else fails."""
    try:
        deltas = asyncio.run(read(server, **fields))
    except EngineError as e:
        assert str(e)
        return e
    assert deltas[-1].result is not None
    for delta in deltas:
        assert isinstance(delta.text, str) and all(isinstance(i, int) for i in delta.token_ids)
    return None


# ---- what it says of itself


@ENOUGH
@given(
    model=st.one_of(values, objects("model_path", "tool_call_parser", "reasoning_parser")),
    server=st.one_of(
        values,
        objects(
            "context_length",
            "max_total_num_tokens",
            "max_req_input_len",
            "incremental_streaming_output",
            "device",
            "version",
            "internal_states",
            "enable_lora",
        ),
        st.builds(lambda v: {**SERVER, "internal_states": [{"flashagents": v}]}, values),
    ),
)
def test_any_json_for_model_and_server(model: Any, server: Any) -> None:
    typed(
        HostileServer(
            {
                "/model_info": answer(model),
                "/server_info": answer(server),
                "/generate": stream(END),
                "/separate_reasoning": answer({"text": "", "reasoning_text": ""}),
            }
        )
    )


@ENOUGH
@given(loads=st.one_of(values, objects("loads"), st.builds(lambda v: {"loads": [v]}, values)), plugin=values)
def test_any_json_for_its_state(loads: Any, plugin: Any) -> None:
    async def state() -> EngineState:
        server = {**SERVER, "internal_states": [{"flashagents": plugin}]}
        answers = {"/server_info": answer(server), "/v1/loads": answer(loads)}
        async with HostileServer(answers).serve() as url:
            engine = RemoteEngine(url, read_timeout=2)
            try:
                return await engine.state()
            finally:
                await engine.close()

    try:
        asyncio.run(state())
    except EngineError as e:
        assert str(e)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: abc\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\nx",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\nnope",
        b"HTTP/9.9 999 \xff\xfe\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"\x00" * 100_000,
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * 100_000 + b"\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\n" + b"X-A: b\r\n" * 50_000 + b"\r\n{}",
        b"HTTP/1.1 301 Moved\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 204 No Content\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
    ],
    ids=lambda raw: repr(raw[:48]),
)
@pytest.mark.parametrize("path", ["/model_info", "/generate"])
def test_broken_http(raw: bytes, path: str) -> None:
    error = typed(HostileServer({path: [raw]}))
    assert error is not None
    assert isinstance(error, EngineStartError) or path == "/generate"


@pytest.mark.parametrize(
    "body",
    [b"\xff\xfe", b"{", b"[" * 200_000, b'{"a":' * 100_000, b"NaN", b"1" * 10_000, b"<html>", b'"text"'],
    ids=lambda body: repr(body[:12]),
)
def test_bodies_that_are_no_sglang(body: bytes) -> None:
    assert isinstance(typed(HostileServer({"/model_info": answer(body)})), EngineStartError)


# ---- streams


@ENOUGH
@given(events=st.lists(outputs, max_size=3), whole=st.booleans(), incremental=st.booleans())
@example(events=[{"error": ""}], whole=False, incremental=False)  # found by atheris
def test_any_json_for_events(events: list[Any], whole: bool, incremental: bool) -> None:
    typed(
        HostileServer(
            {
                "/server_info": answer({**SERVER, "incremental_streaming_output": incremental}),
                "/generate": stream(*events, *([END] if whole else [])),
            }
        ),
        logprobs=True,
    )


@ENOUGH
@given(data=st.binary(max_size=200), cut=st.integers(0, 60))
def test_any_bytes_for_a_stream(data: bytes, cut: int) -> None:
    whole = b"".join(stream(END)[1:])
    typed(HostileServer({"/generate": [stream()[0], whole[:cut], data, whole[cut:]]}))


@ENOUGH
@given(output=outputs)
def test_what_passes_the_check_can_be_read(output: Any) -> None:
    """The check knows all that is read of an output afterwards."""
    if isinstance(output, dict) and output.get("error") is None:
        try:
            check_output(output)
        except ValueError:
            return
        request = GenerateRequest(input_ids=[1], logprobs=True)
        try:
            delta = remote_engine._delta(output, None, request, False)
        except EngineError:
            return
        assert isinstance(delta.text, str)


@ENOUGH
@given(parts=st.one_of(values, objects("text", "reasoning_text", "normal_text", "calls")))
def test_any_json_for_the_parsers(parts: Any) -> None:
    typed(
        HostileServer(
            {
                "/model_info": answer({**MODEL, "reasoning_parser": "x", "tool_call_parser": "y"}),
                "/generate": stream(END),
                "/separate_reasoning": answer({"text": "a", "reasoning_text": None}),
                "/parse_function_call": answer(parts),
            }
        ),
        format=FORMAT,
    )
    typed(
        HostileServer(
            {
                "/model_info": answer({**MODEL, "reasoning_parser": "x"}),
                "/generate": stream(END),
                "/separate_reasoning": answer(parts),
            }
        ),
        format=AnswerFormat(),
    )


def test_a_stream_that_ends_in_the_middle_of_a_line() -> None:
    line = b"data: " + json.dumps(END).encode()
    for cut in range(len(line)):
        error = typed(HostileServer({"/generate": stream(line[:cut], end=b"")}))
        assert isinstance(error, EngineError)


def test_a_connection_that_is_dropped_between_events() -> None:
    piece = {"text": "a", "output_ids": [1], "meta_info": {"finish_reason": None}}
    error = typed(HostileServer({"/generate": stream(piece, piece, end=b"")}))
    assert isinstance(error, EngineDiedError) and "in the middle" in str(error)


# ---- without end


def event(text: str = "", ids: list[int] | None = None) -> bytes:
    meta = {"finish_reason": None}
    output = {"text": text, "output_ids": ids or [], "meta_info": meta}
    return b"data: " + json.dumps(output).encode() + b"\n\n"


ENDLESS = {
    "a line": (b"x" * (1 << 20), "a line of more than 64 MiB"),
    "an event": (b" " * (1 << 20), "a line of more than 64 MiB"),
    "tokens": (event("ab " * 50, list(range(50))), "a longer answer than its context"),
    "text without tokens": (event("ab " * 100_000), "a longer answer than its context"),
}


@pytest.mark.parametrize("what", ENDLESS)
@pytest.mark.parametrize("held", [False, True], ids=["read as it comes", "held back for its parser"])
def test_endless_answers_are_cut_off(what: str, held: bool) -> None:
    piece, words = ENDLESS[what]
    start = [*stream(end=b""), b"data: " if what == "an event" else b""]
    server = HostileServer({"/generate": lambda: itertools.chain(start, itertools.repeat(piece))})
    tracemalloc.start()
    try:
        error = typed(server, **({"format": FORMAT} if held else {}))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert words in str(error)
    assert peak < 4 * MAX_EVENT_BYTES, f"{peak >> 20} MiB"


@pytest.mark.parametrize("path", ["/model_info", "/server_info"])
@pytest.mark.parametrize("status", ["200 OK", "400 Bad Request", "500 Oops"])
def test_endless_bodies_are_cut_off(path: str, status: str) -> None:
    head = f"HTTP/1.1 {status}\r\nConnection: close\r\n\r\n".encode()
    server = HostileServer({path: lambda: itertools.chain([head], itertools.repeat(b" " * (1 << 18)))})
    tracemalloc.start()
    try:
        error = typed(server)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert isinstance(error, EngineStartError)
    assert peak < 4 * MAX_EVENT_BYTES
    if not status.startswith("200"):
        assert server.sent < 32 << 20, "the whole of an error was read"


def test_a_compressed_bomb_is_cut_off() -> None:
    bomb = gzip.compress(b" " * (1 << 28), 9)
    server = HostileServer({"/model_info": answer(bomb, headers="Content-Encoding: gzip\r\n")})
    tracemalloc.start()
    try:
        error = typed(server)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert isinstance(error, EngineStartError)
    assert peak < 4 * MAX_EVENT_BYTES


def test_an_event_reader_takes_a_long_line_in_linear_time() -> None:
    """Small pieces of one line: each byte is looked at once."""
    reader = EventReader()
    for _ in range(20_000):
        assert reader.feed(b"data: x"[:1] * 100) == []
    with pytest.raises(ValueError, match="no event"):
        reader.feed(b"\n")
