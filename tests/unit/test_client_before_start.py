"""What a model's own files refuse takes no start of an engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from autogen_core import Image
from autogen_core.models import UserMessage
from PIL import Image as PILImage

from flashagents_autogen import FlashAgentsChatCompletionClient
from flashagents_runtime import ContextLengthError, UnknownAdapterError, UnsupportedFeatureError
from flashagents_runtime.embedded import EmbeddedEngine
from helpers.clients import user
from helpers.notebooks import tiny_model

PICTURE = UserMessage(content=["Look:", Image(PILImage.new("RGB", (2, 2)))], source="user")


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of 256 tokens of context; an engine of it must not start."""

    async def start(self: EmbeddedEngine, progress: Any = None) -> Any:
        raise AssertionError("an engine was started")

    monkeypatch.setattr(EmbeddedEngine, "start", start)
    folder = tiny_model(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 256}))
    return folder


@pytest.mark.parametrize(
    ("arguments", "message", "error"),
    [
        ({}, user("hello " * 400), ContextLengthError),
        ({"max_tokens": 300}, user(), ContextLengthError),
        ({"engine_args": {"context_length": 40}}, user("hello " * 40), ContextLengthError),
        ({}, PICTURE, UnsupportedFeatureError),
        ({"lora": "act"}, user(), UnknownAdapterError),
    ],
    ids=["a long prompt", "a long answer", "a short context", "an image", "an adapter"],
)
async def test_it_is_refused_before(
    model: Path, arguments: dict[str, Any], message: UserMessage, error: type[Exception]
) -> None:
    client = FlashAgentsChatCompletionClient(model, **arguments)
    with pytest.raises(error):
        await client.create([message])
    assert client.usage.prompt_tokens == 0
    await client.close()


@pytest.mark.parametrize("more", [{"engine_args": {"enable_lora": True}}, {}])
async def test_what_the_engine_may_take_is_left_to_it(model: Path, more: dict[str, Any]) -> None:
    lora = "late" if more else None
    client = FlashAgentsChatCompletionClient(model, lora=lora, **more)
    with pytest.raises(AssertionError, match="an engine was started"):
        await client.create([user()])
    await client.close()
