"""Images: their place in the prompt, and their way to the engine."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

from autogen_core import Image
from autogen_core.models import ModelInfo, UserMessage
from PIL import Image as PILImage

from flashagents_autogen import FlashAgentsChatCompletionClient
from flashagents_autogen._model_info import infer_model_info
from flashagents_runtime import ScriptedEngine
from flashagents_runtime.chat_template import JinjaTemplate
from flashagents_runtime.model_card import read_model_card
from helpers import chat_templates
from helpers.clients import prompt

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
    sent = engine.requests[0].image_data
    assert sent is not None
    colours = [
        PILImage.open(io.BytesIO(base64.b64decode(data.split(",")[1]))).getpixel((0, 0)) for data in sent
    ]
    assert colours == [(255, 0, 0), (0, 0, 255)]
    assert isinstance(message.content[1], Image)  # the caller's message is as it was


def test_vision_is_inferred_from_model_and_template_together(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2_5_vl", "vision_config": {}}))
    card = read_model_card(tmp_path)
    assert infer_model_info(card, QwenVL(QWEN_VL).capabilities)["vision"] is True
    assert infer_model_info(card, chat_templates.template("qwen3").capabilities)["vision"] is False
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2"}))
    assert infer_model_info(read_model_card(tmp_path), QwenVL(QWEN_VL).capabilities)["vision"] is False
