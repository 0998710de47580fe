"""Token counts are the model's own, need no engine, and let AutoGen's contexts trim."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from autogen_core.model_context import TokenLimitedChatCompletionContext

from flashagents_autogen import FlashAgentsChatCompletionClient
from flashagents_runtime import ScriptedEngine, UnsupportedFeatureError
from helpers.clients import prompt, scripted, user
from helpers.npm_tokenizers import tokenizer_folder_or_skip


async def test_the_count_is_the_length_of_the_real_prompt() -> None:
    client, engine = scripted("a")
    messages = [user("Hello."), user("Hé!", "planner")]
    n = client.count_tokens(messages)
    assert engine.info is None  # nothing was started for it
    await client.create(messages)
    assert n == len(engine.requests[0].input_ids) == len(prompt(engine).encode())


def test_nothing_counts_nothing() -> None:
    client, _ = scripted()
    assert client.count_tokens([]) == 0
    assert client.remaining_tokens([]) == 8192


def test_remaining_tokens_may_go_below_zero() -> None:
    client, _ = scripted()
    messages = [user("x" * 9000)]
    assert client.remaining_tokens(messages) == 8192 - client.count_tokens(messages) < 0


@pytest.mark.parametrize("limit", [None, 300])
async def test_autogens_context_trims(limit: int | None) -> None:
    client, _ = scripted()
    context = TokenLimitedChatCompletionContext(client, token_limit=limit)
    for i in range(40):
        await context.add_message(user(f"{i} " + "x" * 400 if limit is None else f"{i}"))
    kept = await context.get_messages()
    assert 0 < len(kept) < 40
    assert client.count_tokens(kept) <= (limit or 8192)
    assert kept[0].content.startswith("0") and kept[-1].content.startswith("39")  # type: ignore[union-attr]


@pytest.fixture
def qwen(tmp_path: Path) -> Path:
    for file in tokenizer_folder_or_skip("qwen3").iterdir():
        (tmp_path / file.name).symlink_to(file)
    config = {"model_type": "qwen3", "max_position_embeddings": 40960, "architectures": ["Qwen3ForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


@pytest.mark.fetch
def test_the_models_own_tokenizer_counts(qwen: Path) -> None:
    client = FlashAgentsChatCompletionClient(qwen)
    assert client.count_tokens([user("Hello, world!")]) == 12
    assert client.remaining_tokens([]) == 40960
    assert client.model_info["family"] == "qwen3"
    assert client.model_info["vision"] is False
    capped = FlashAgentsChatCompletionClient(qwen, engine_args={"context_length": 100})
    assert capped.remaining_tokens([]) == 100


@pytest.mark.fetch
def test_an_unknown_context_length_is_said_to_be_unknown(qwen: Path) -> None:
    (qwen / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    with pytest.raises(UnsupportedFeatureError, match="context length"):
        FlashAgentsChatCompletionClient(qwen).remaining_tokens([])


def test_a_running_engine_knows_its_context_length() -> None:
    client = FlashAgentsChatCompletionClient(engine=ScriptedEngine(context_length=50))
    assert client.remaining_tokens([]) == 50
