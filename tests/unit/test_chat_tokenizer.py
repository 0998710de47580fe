"""Token ids are the model's own: the same as transformers gives, for the whole rendered text."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashagents_runtime import ModelIntegrityError, ModelNotFoundError, TemplateError
from flashagents_runtime.chat import ChatMessage, ChatTokenizer, encode_chat
from flashagents_runtime.chat_tokenizer import ByteChatTokenizer, HFChatTokenizer, load_chat_tokenizer
from flashagents_runtime.model_card import read_model_card
from helpers.npm_tokenizers import NAMES, fetched, tokenizer_folder_or_skip

CONVERSATION = [
    ChatMessage(role="system", content="You plan trips. Être bref."),
    ChatMessage(role="user", content="  Three days in Kyōto, 日本 🗾?\n\n", source="user"),
    ChatMessage(role="assistant", content="Day 1:\tFushimi Inari — 06:30."),
    ChatMessage(role="user", content="And day 2?", source="user"),
]
FIXTURES = Path(__file__).parent.parent / "fixtures"


@pytest.fixture(scope="module", params=fetched(NAMES))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def folder(name: str) -> Path:
    return tokenizer_folder_or_skip(name)


def test_tokens_are_those_of_transformers(folder: Path, name: str) -> None:
    """The reference is `PreTrainedTokenizerFast.apply_chat_template` of transformers 5.12.1, written down
    because importing it takes longer than all tests here; test_client_engine.py asks it live."""
    theirs = json.loads((FIXTURES / "canonical_ids.json").read_text())[name]
    assert encode_chat(load_chat_tokenizer(folder), CONVERSATION) == theirs


def test_special_tokens_are_one_token_each(folder: Path) -> None:
    tokenizer = load_chat_tokenizer(folder)
    ids = encode_chat(tokenizer, CONVERSATION)
    assert tokenizer.decode(ids, skip_special_tokens=False) == tokenizer.render(CONVERSATION)
    assert len(ids) < len(tokenizer.render(CONVERSATION)) / 2


def test_one_object_a_folder(folder: Path) -> None:
    assert load_chat_tokenizer(folder) is load_chat_tokenizer(str(folder) + "/.")
    assert isinstance(load_chat_tokenizer(folder), ChatTokenizer)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.text())
def test_bytes_go_there_and_back(text: str) -> None:
    tokenizer = ByteChatTokenizer()
    encodable = text.encode(errors="ignore").decode()
    assert tokenizer.decode(tokenizer.encode(encodable)) == encodable
    assert isinstance(tokenizer, ChatTokenizer)


def _model(folder: Path, template: str | None = "{{ messages[0].content }}") -> Path:
    from tokenizers import Tokenizer, models

    Tokenizer(models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]")).save(str(folder / "tokenizer.json"))
    config = {"bos_token": {"content": "<s>", "__type": "AddedToken"}}
    if template is not None:
        config["chat_template"] = template  # type: ignore[assignment]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def test_the_template_may_stand_in_a_file_of_its_own(tmp_path: Path) -> None:
    _model(tmp_path, None)
    (tmp_path / "chat_template.jinja").write_text("{{ bos_token }}{{ messages[0].content }}")
    assert HFChatTokenizer(tmp_path).render(CONVERSATION[:1]).startswith("<s>You plan")


def test_the_template_may_be_one_of_several(tmp_path: Path) -> None:
    named = [{"name": "rag", "template": "no"}, {"name": "default", "template": "yes"}]
    _model(tmp_path, named)  # type: ignore[arg-type]
    assert HFChatTokenizer(tmp_path).chat_template == "yes"


def test_clear_errors(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="no model folder"):
        HFChatTokenizer(tmp_path / "absent")
    with pytest.raises(ModelIntegrityError, match=r"no tokenizer\.json"):
        HFChatTokenizer(tmp_path)
    with pytest.raises(TemplateError, match="no chat template"):
        HFChatTokenizer(_model(tmp_path, None))
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(ModelIntegrityError, match="cannot be read"):
        HFChatTokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelIntegrityError, match="not a tokenizer"):
        HFChatTokenizer(tmp_path)


def test_neither_torch_nor_sglang_is_imported(tmp_path: Path) -> None:
    """Rendering and tokenising happen in the application's process."""
    code = f"""
import sys
from flashagents_runtime.chat import ChatMessage, encode_chat
from flashagents_runtime.chat_tokenizer import load_chat_tokenizer
tokenizer = load_chat_tokenizer({str(_model(tmp_path))!r})
assert encode_chat(tokenizer, [ChatMessage(role="user", content="a")]) == [0]
print([m for m in ("torch", "sglang", "autogen_core") if m in sys.modules])
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert out.stdout.strip() == "[]"


def test_model_card(tmp_path: Path) -> None:
    def write(name: str, content: object) -> None:
        (tmp_path / name).write_text(json.dumps(content))

    text = {"max_position_embeddings": 4096, "rope_scaling": {"factor": 2}}
    write("config.json", {"model_type": "gemma3", "text_config": text, "vision_config": {}})
    write("generation_config.json", {"temperature": 0.6, "top_k": 20, "eos_token_id": 1})
    card = read_model_card(tmp_path, "google/gemma-3")
    assert (card.name, card.context_length, card.vision) == ("google/gemma-3", 8192, True)
    assert (card.sampling.temperature, card.sampling.top_k, card.sampling.top_p) == (0.6, 20, 1.0)
    llama = {"max_position_embeddings": 131072, "rope_scaling": {"factor": 8.0, "rope_type": "llama3"}}
    write("config.json", llama)
    assert read_model_card(tmp_path).context_length == 131072
