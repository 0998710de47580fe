"""The client's side channel: listeners see a call, and cannot break it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core import SingleThreadedAgentRuntime

from flashagents_autogen import _side_channel
from flashagents_autogen._side_channel import ClientCall
from flashagents_runtime import Delta, GenerateRequest
from helpers.clients import collect, scripted, user
from helpers.overlap import assistant, both


class Tap:
    """Writes down what it is told."""

    def __init__(self, call: ClientCall) -> None:
        self.call = call
        self.heard: list[str] = []
        self.end: Any = None

    def answer(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        return self.call.client.engine.generate(request)

    def said(self, delta: Delta, text: str) -> None:
        self.heard.append(text)

    def done(self, result: Any) -> None:
        self.end = result

    def failed(self, error: BaseException) -> None:
        self.end = error


class Listener:
    """Follows everything."""

    def __init__(self) -> None:
        self.taps: list[Tap] = []

    def on_call(self, call: ClientCall) -> Tap | None:
        self.taps.append(Tap(call))
        return self.taps[-1]

    def on_stranger(self, call: ClientCall) -> Tap | None:
        return None


@contextmanager
def listening(listener: Any) -> Iterator[Any]:
    _side_channel.listen(listener)
    try:
        yield listener
    finally:
        _side_channel.unlisten(listener)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_listener_hears_what_the_caller_hears(stream: bool) -> None:
    client, engine = scripted("Hello!")
    messages = [user()]
    with listening(Listener()) as listener:
        result = (await collect(client, messages))[1] if stream else await client.create(messages)
    (tap,) = listener.taps
    assert "".join(tap.heard) == "Hello!" and tap.end is result
    assert tap.call.messages is messages
    assert tap.call.call.request.input_ids == engine.requests[0].input_ids


async def test_a_reader_who_leaves_is_told() -> None:
    client, _ = scripted("Hello!")
    with listening(Listener()) as listener:
        stream = client.create_stream([user()])
        await anext(stream)
        await stream.aclose()  # type: ignore[attr-defined]
    assert isinstance(listener.taps[0].end, GeneratorExit)


async def test_a_listener_that_raises_is_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Listener):
        def on_call(self, call: ClientCall) -> Tap | None:
            raise RuntimeError("no")

    client, _ = scripted("Hello!")
    with listening(Broken()), listening(Listener()) as second:
        assert (await client.create([user()])).content == "Hello!"
    assert len(second.taps) == 1
    assert len(caplog.records) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_nothing_goes_over_autogens_bus(stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A team sends and publishes the same messages with the overlap as without it."""
    sent: list[str] = []
    for name in ("send_message", "publish_message"):
        original = getattr(SingleThreadedAgentRuntime, name)

        def counted(self: Any, message: Any, *args: Any, original: Any = original, **more: Any) -> Any:
            sent.append(type(message).__name__)
            return original(self, message, *args, **more)

        monkeypatch.setattr(SingleThreadedAgentRuntime, name, counted)

    def make(client: Any) -> RoundRobinGroupChat:
        agents = [assistant(name, client, model_client_stream=stream) for name in "ab"]
        return RoundRobinGroupChat(agents, max_turns=4)  # type: ignore[arg-type]

    runtime, _ = await both(make, [f"{i}: and so it goes on for a while, word by word." for i in range(4)])
    half = len(sent) // 2
    assert sent[:half] == sent[half:] and half > 4
    assert runtime.hit_rate().right == 3


async def test_nobody_listens() -> None:
    client, _ = scripted("Hello!")
    with listening(Listener()) as listener:
        pass
    await client.create([user()])
    assert not listener.taps
