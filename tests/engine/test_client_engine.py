"""The client end to end on the real engine with the real default model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_core import CancellationToken
from autogen_core.models import RequestUsage

from flashagents_autogen import FlashAgentsChatCompletionClient
from flashagents_runtime import Delta, GenerateRequest
from flashagents_runtime.embedded import EmbeddedEngine
from helpers.clients import collect, system, user
from helpers.idle import settle

PROMPTS = [
    f"{task} {thing}."
    for task in ("Name one fact about", "Write a sentence on", "Why do people like", "Explain to a child:")
    for thing in ("gravity", "bread", "the sea", "old maps", "trains")
]
ANSWER_TOKENS = 16


@pytest.fixture
def client(real_engine: EmbeddedEngine) -> FlashAgentsChatCompletionClient:
    return FlashAgentsChatCompletionClient(engine=real_engine, temperature=0, max_tokens=ANSWER_TOKENS)


@pytest.fixture(scope="module")
def transformers_model(model_path: str) -> Any:
    """transformers' own model, in the engine's precision."""
    from flashagents_runtime import cpu_shims

    cpu_shims.install()
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)


def greedy_choices(model: Any, prompt: list[int], answer: list[int]) -> list[int]:
    """What a greedy transformers would say at each place of the answer: one pass instead of many.

    The answer is transformers' own greedy answer exactly when this returns the answer itself.
    """
    import torch

    with torch.no_grad():
        logits = model(torch.tensor([prompt + answer])).logits[0]
    choices: list[int] = logits[len(prompt) - 1 : -1].argmax(-1).tolist()
    return choices


class Recorder:
    """The engine, with the tokens of each answer written down."""

    def __init__(self, engine: EmbeddedEngine) -> None:
        self._engine = engine
        self.answers: dict[tuple[int, ...], list[int]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        ids = self.answers.setdefault(tuple(request.input_ids), [])
        async for delta in self._engine.generate(request):
            ids += delta.token_ids
            yield delta


async def test_greedy_text_is_that_of_transformers(
    real_engine: EmbeddedEngine, transformers_model: Any, model_path: str
) -> None:
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(model_path)
    recorder = Recorder(real_engine)
    client = FlashAgentsChatCompletionClient(engine=recorder, temperature=0, max_tokens=ANSWER_TOKENS)
    results = await asyncio.gather(*(client.create([user(prompt)]) for prompt in PROMPTS))
    for prompt, result in zip(PROMPTS, results, strict=True):
        ids = theirs.apply_chat_template(
            [{"role": "user", "content": prompt}], add_generation_prompt=True, return_dict=False
        )
        answer = recorder.answers[tuple(ids)]  # so the prompt's tokens are transformers' own
        assert client.count_tokens([user(prompt)]) == len(ids)
        assert greedy_choices(transformers_model, ids, answer) == answer
        assert result.content == theirs.decode(answer, skip_special_tokens=True)


async def test_streaming_gives_the_same_text(client: FlashAgentsChatCompletionClient) -> None:
    whole = await client.create([user("Say hello.")])
    chunks, streamed = await collect(client, [user("Say hello.")])
    assert "".join(chunks) == streamed.content == whole.content
    assert len(chunks) > 5
    assert streamed.usage == whole.usage
    assert whole.usage.prompt_tokens == client.count_tokens([user("Say hello.")])


async def test_a_repeated_prompt_comes_from_the_cache(client: FlashAgentsChatCompletionClient) -> None:
    messages = [system("You know many facts. " * 20), user("Tell me one.")]
    first = await client.create(messages)
    again = await client.create(messages)
    assert first.usage.cached_tokens == 0  # type: ignore[attr-defined]
    assert again.usage.cached_tokens == first.usage.prompt_tokens - 1  # type: ignore[attr-defined]
    assert again.content == first.content


async def test_finish_reasons_and_stop_texts(client: FlashAgentsChatCompletionClient) -> None:
    cut = await client.create([user("Count from one to a hundred.")])
    assert cut.finish_reason == "length"
    assert cut.usage.completion_tokens == ANSWER_TOKENS
    assert isinstance(cut.content, str)
    stop = cut.content.split()[3]
    stopped = await client.create(
        [user("Count from one to a hundred.")], extra_create_args={"stop": stop, "max_tokens": 200}
    )
    assert stopped.finish_reason == "stop"
    assert stopped.content == cut.content[: cut.content.index(stop)]


async def test_logprobs(client: FlashAgentsChatCompletionClient) -> None:
    args = {"logprobs": True, "top_logprobs": 2}
    _, result = await collect(client, [user("Hi.")], extra_create_args=args)
    assert result.logprobs is not None
    assert len(result.logprobs) == result.usage.completion_tokens
    assert "".join(entry.token for entry in result.logprobs).startswith(str(result.content)[:10])
    for entry in result.logprobs:
        assert entry.top_logprobs is not None and len(entry.top_logprobs) == 2
        assert entry.logprob == pytest.approx(entry.top_logprobs[0].logprob, abs=1e-3)  # greedy


@pytest.mark.parametrize("how", ["token", "break", "task"])
async def test_stopping_frees_the_kv(
    client: FlashAgentsChatCompletionClient, real_engine: EmbeddedEngine, how: str
) -> None:
    endless = {"ignore_eos": True, "max_tokens": 2000}
    token = CancellationToken()
    stream = client.create_stream(
        [user("Go on forever.")], extra_create_args=endless, cancellation_token=token
    )

    async def read() -> None:
        async for _ in stream:
            pass

    await anext(stream)
    assert (await real_engine.state()).running == 1
    if how == "break":
        await stream.aclose()
    else:
        task = asyncio.ensure_future(read())
        await asyncio.sleep(0.05)
        _ = token.cancel() if how == "token" else task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, 5)
    await settle(real_engine)
    assert client.total_usage().completion_tokens < 500


async def test_cancelled_during_prefill(
    client: FlashAgentsChatCompletionClient, real_engine: EmbeddedEngine
) -> None:
    token = CancellationToken()
    call = client.create([user("word " * 2000)], cancellation_token=token)
    task = asyncio.ensure_future(call)
    await asyncio.sleep(0.2)
    token.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 5)
    await settle(real_engine)


async def test_two_agents_share_the_engine(client: FlashAgentsChatCompletionClient) -> None:
    agents = [
        AssistantAgent(name, client, model_client_stream=True, system_message="Be brief.") for name in "ab"
    ]
    results = await asyncio.gather(*(agent.run(task="Greet me.") for agent in agents))
    assert results[0].messages[-1].content == results[1].messages[-1].content  # type: ignore[union-attr]
    assert client.total_usage() != RequestUsage(0, 0)


async def test_a_conversation_of_every_kind_is_taken(client: FlashAgentsChatCompletionClient) -> None:
    messages = [system("A."), user("B."), user("C.", "planner"), system("D."), user("E.", "critic")]
    assert (await client.create(messages)).content
    assert (await client.create(messages[2:])).content


def test_what_is_inferred_of_the_model(client: FlashAgentsChatCompletionClient) -> None:
    assert client.model_info["family"] == "llama"
    assert client.model_info["vision"] is False
    assert client.remaining_tokens([]) == 8192
