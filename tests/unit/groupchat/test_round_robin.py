"""RoundRobinGroupChat: the next agent's prompt fills up while one speaks."""

from __future__ import annotations

from typing import Any

import pytest
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core import FunctionCall
from autogen_core.model_context import (
    BufferedChatCompletionContext,
    ChatCompletionContext,
    HeadAndTailChatCompletionContext,
    TokenLimitedChatCompletionContext,
    UnboundedChatCompletionContext,
)
from autogen_core.models import AssistantMessage, UserMessage

from flashagents_autogen import TranscriptChatCompletionContext, _side_channel
from flashagents_runtime.chat_tokenizer import ByteChatTokenizer
from helpers.overlap import assistant, both, check_covered, client_on, overlapping, prompts

TEXTS = [f"Answer number {i}: " + f"take the train to city {i}, then walk. " * 4 for i in range(7)]
NAMES = ("planner", "local", "language")


def team(client: Any, context: Any = UnboundedChatCompletionContext, **args: Any) -> RoundRobinGroupChat:
    agents = [assistant(name, client, model_context=context(), **args) for name in NAMES]
    return RoundRobinGroupChat(agents, max_turns=7)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    "context",
    [
        UnboundedChatCompletionContext,
        lambda: BufferedChatCompletionContext(3),
        lambda: HeadAndTailChatCompletionContext(1, 2),
        TranscriptChatCompletionContext,
    ],
    ids=["unbounded", "buffered", "head_and_tail", "transcript"],
)
async def test_every_turn_is_foreseen_and_warm(context: Any, stream: bool) -> None:
    runtime, _ = await both(lambda c: team(c, context, model_client_stream=stream), TEXTS)
    check_covered(runtime, turns=6)


async def test_at_a_handoff_the_prompts_tokens_are_there_already(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokenising a long prompt takes milliseconds that the user would wait for."""
    whole: list[list[int]] = []
    encode = ByteChatTokenizer.encode

    def seen(self: ByteChatTokenizer, text: str) -> list[int]:
        ids = encode(self, text)
        whole.append(ids)
        return ids

    client = client_on(*TEXTS)
    chain = team(client)
    async with overlapping(chain):
        monkeypatch.setattr(ByteChatTokenizer, "encode", seen)
        await chain.run(task="Plan a trip to Rome for four people in May.")
    sent = prompts(client.engine)
    assert len(sent) == 7
    assert [prompt in whole for prompt in sent] == [True] + [False] * 6


async def test_a_listener_that_cannot_say_the_tokens_disturbs_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken:
        def tokens_of(self, tokenizer: Any, prompt: str) -> list[int]:
            raise RuntimeError("no")

        def on_call(self, call: Any) -> None: ...

        def on_stranger(self, call: Any) -> None: ...

    broken = Broken()
    _side_channel.listen(broken)
    try:
        client = client_on("Hello.")
        result = await client.create([UserMessage(content="Hi", source="user")])
    finally:
        _side_channel.unlisten(broken)
    assert result.content == "Hello. "
    assert "a listener of the model client failed" in caplog.text


async def test_the_heads_of_all_are_warm_at_the_start() -> None:
    runtime, _ = await both(team, TEXTS)
    first = [e for e in runtime.events if e.kind == "forecast"][:3]
    assert {e.agent for e in first} == {"local", "language"}


async def test_a_second_run_goes_on_where_the_first_ended() -> None:
    runtime, _ = await both(lambda c: team(c), [*TEXTS, *TEXTS], runs=2)
    check_covered(runtime, turns=12)


async def test_the_last_turn_warms_nobody() -> None:
    runtime, _ = await both(team, TEXTS)
    last = max(i for i, e in enumerate(runtime.events) if e.kind == "call")
    assert not [e for e in list(runtime.events)[last:] if e.kind == "forecast"]


class Unknown(UnboundedChatCompletionContext):
    """A context of the user's own."""

    async def get_messages(self) -> Any:
        return [m for m in self._messages if "city 2" not in str(m.content)]


@pytest.mark.parametrize("kind", ["token_limited", "unknown"])
async def test_contexts_that_cannot_be_foreseen_get_their_heads(kind: str) -> None:
    def make(client: Any) -> RoundRobinGroupChat:
        def context() -> ChatCompletionContext:
            if kind == "unknown":
                return Unknown()
            return TokenLimitedChatCompletionContext(client, token_limit=600)

        return team(client, context)

    runtime, _ = await both(make, TEXTS)
    turns = list(runtime.turns)
    assert [turn.forecast for turn in turns[1:]] == ["head"] * 6
    assert all(turn.prewarmed > 60 for turn in turns[1:3])


async def test_in_a_transcript_every_prompt_goes_on_from_the_one_before() -> None:
    """Also where the reader has spoken before: what the others cached is his prompt's beginning."""

    def make(client: Any) -> RoundRobinGroupChat:
        return team(client, TranscriptChatCompletionContext, system_message="You are one of three.")

    runtime, flash = await both(make, TEXTS)
    texts = [bytes(ids).decode() for ids in prompts(flash._participants[0]._model_client.engine)]
    ends = [text.rfind(TEXTS[i]) + len(TEXTS[i]) for i, text in enumerate(texts[1:])]
    for before, after, end in zip(texts[1:], texts[2:], ends, strict=False):
        assert after[:end] == before[:end]
    assert all(turn.right for turn in list(runtime.turns)[1:])


async def test_a_transcript_is_a_component_and_has_a_state() -> None:
    context = TranscriptChatCompletionContext([UserMessage(content="Hello.", source="user")])
    await context.add_message(AssistantMessage(content="Hi.", source="a"))
    call = AssistantMessage(content=[FunctionCall(id="1", name="look", arguments="{}")], source="a")
    await context.add_message(call)
    said = [UserMessage(content="Hello.", source="user"), UserMessage(content="Hi.", source="a"), call]
    assert await context.get_messages() == said
    loaded = ChatCompletionContext.load_component(context.dump_component())
    assert type(loaded) is TranscriptChatCompletionContext
    await loaded.load_state(await context.save_state())
    assert await loaded.get_messages() == said
    await loaded.clear()
    assert await loaded.get_messages() == []


async def test_one_agent_alone() -> None:
    runtime, _ = await both(lambda c: RoundRobinGroupChat([assistant("only", c)], max_turns=3), TEXTS[:3])
    assert runtime.hit_rate().turns == 0
