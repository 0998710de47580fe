"""Images: their place in the prompt, and their way to the engine."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.messages import MultiModalMessage
from autogen_core import Image
from autogen_core.models import AssistantMessage, ModelInfo, UserMessage
from PIL import Image as PILImage

from flashagents_autogen import FlashAgentsChatCompletionClient
from flashagents_autogen._model_info import infer_model_info
from flashagents_runtime import ScriptedEngine
from flashagents_runtime.chat_template import JinjaTemplate
from flashagents_runtime.model_card import read_model_card
from helpers import chat_templates
from helpers.clients import prompt
from helpers.engine_kinds import Rig

# The parts of Qwen2.5-VL's template that matter here.
QWEN_VL = """{% for m in messages %}<|im_start|>{{ m.role }}
{% if m.content is string %}{{ m.content }}{% else %}{% for c in m.content %}
{%- if c.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>
{%- elif 'text' in c %}{{ c.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


class QwenVL(JinjaTemplate):
    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Any, *, skip_special_tokens: bool = True) -> str:
        return bytes(ids).decode()


def picture(colour: str) -> Image:
    return Image(PILImage.new("RGB", (3, 2), colour))


async def test_images_stand_in_their_place_and_go_to_the_engine_in_order() -> None:
    info = ModelInfo(
        vision=True, function_calling=True, json_output=True, structured_output=True, family="vl"
    )
    engine = ScriptedEngine(["Red and blue."])
    client = FlashAgentsChatCompletionClient(engine=engine, tokenizer=QwenVL(QWEN_VL), model_info=info)
    message = UserMessage(content=["First", picture("red"), "then", picture("blue")], source="planner")
    await client.create([message])
    image = "<|vision_start|><|image_pad|><|vision_end|>"
    assert f"<|im_start|>user\nplanner said:\nFirst{image}then{image}<|im_end|>\n" in prompt(engine)
    assert colours(engine.requests[0].image_data) == [(255, 0, 0), (0, 0, 255)]
    assert isinstance(message.content[1], Image)  # the caller's message is as it was


def test_vision_is_inferred_from_model_and_template_together(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2_5_vl", "vision_config": {}}))
    card = read_model_card(tmp_path)
    assert infer_model_info(card, QwenVL(QWEN_VL).capabilities)["vision"] is True
    assert infer_model_info(card, chat_templates.template("qwen3").capabilities)["vision"] is False
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2"}))
    assert infer_model_info(read_model_card(tmp_path), QwenVL(QWEN_VL).capabilities)["vision"] is False


VISION = ModelInfo(
    vision=True, function_calling=True, json_output=True, structured_output=True, family="qwen2_5_vl"
)
IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"


def colours(data: list[str] | None) -> list[Any]:
    """The first pixel of each image that an engine was sent."""
    return [
        PILImage.open(io.BytesIO(base64.b64decode(uri.split(",")[1]))).getpixel((0, 0)) for uri in data or []
    ]


async def test_images_of_a_conversation_reach_both_kinds_of_engine(rig: Rig) -> None:
    """As Qwen2.5-VL has it: one mark in the text for each image, and the images in the order of the marks."""
    client = await rig.client("Red.", "Blue.", tokenizer=QwenVL(QWEN_VL), model_info=VISION)
    first = UserMessage(content=["What is this?", picture("red")], source="user")
    answer = await client.create([first])
    said = AssistantMessage(content=str(answer.content), source="seer")
    second = UserMessage(content=[picture("blue"), "And this?"], source="planner")
    chunks = [item async for item in client.create_stream([first, said, second])]
    assert chunks[-1].content == "Blue."  # type: ignore[union-attr]
    one, both = rig.scripted.requests
    assert colours(one.image_data) == [(255, 0, 0)]
    assert colours(both.image_data) == [(255, 0, 0), (0, 0, 255)]
    text = prompt(rig.scripted)
    assert text.count(IMAGE) == 2
    assert text.index("What is this?") < text.index(IMAGE) < text.index("Red.") < text.rindex(IMAGE)
    assert all(uri.startswith("data:image/png;base64,") for uri in both.image_data or [])
    if rig.kind == "remote":
        assert rig.fake.bodies[-1]["image_data"] == both.image_data
        assert "image_data" in rig.fake.bodies[0]


async def test_a_conversation_without_images_sends_none(rig: Rig) -> None:
    client = await rig.client("ok", tokenizer=QwenVL(QWEN_VL), model_info=VISION)
    await client.create([UserMessage(content=["only", "text"], source="user")])
    assert rig.scripted.requests[0].image_data is None and IMAGE not in prompt(rig.scripted)


async def test_an_image_for_a_model_without_vision_is_refused_by_both(rig: Rig) -> None:
    client = await rig.client("ok")
    message = UserMessage(content=["What is this?", picture("red")], source="user")
    with pytest.raises(ValueError, match="does not support vision"):
        await client.create([message])
    assert rig.scripted.requests == []


async def test_an_agent_is_shown_an_image(rig: Rig) -> None:
    client = await rig.client("Red.", tokenizer=QwenVL(QWEN_VL), model_info=VISION)
    agent = AssistantAgent("seer", client)
    result = await agent.run(task=MultiModalMessage(content=["Look:", picture("red")], source="user"))
    assert result.messages[-1].content == "Red."  # type: ignore[union-attr]
    assert colours(rig.scripted.requests[0].image_data) == [(255, 0, 0)]


def test_an_image_counts_as_the_mark_that_stands_for_it() -> None:
    """How many tokens an image becomes is the engine's to say, once it has looked at it."""
    client = FlashAgentsChatCompletionClient(
        engine=ScriptedEngine(), tokenizer=QwenVL(QWEN_VL), model_info=VISION
    )
    without = client.count_tokens([UserMessage(content=["Look:", "x"], source="user")])
    assert client.count_tokens([UserMessage(content=["Look:", picture("red")], source="user")]) > without
