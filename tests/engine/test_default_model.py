"""The real default model, from the package index or the cache of an earlier run."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from flashagents_runtime import cpu_shims
from flashagents_runtime.model_store import DEFAULT_MODEL, default_model_folder, resolve_model

pytestmark = pytest.mark.engine

# transformers' own GGUF loader gives these very weights (compared bit by bit, rounded to bf16).
WEIGHTS_SHA256 = "7ef915c9bf9d94d8d70211970476878352a5b95855c589ae987916d7a455242b"


@pytest.fixture(scope="module")
def folder() -> Path:
    return resolve_model()


def test_the_weights_are_exact(folder: Path) -> None:
    assert folder == default_model_folder()
    assert folder.name == DEFAULT_MODEL.folder
    with (folder / "model.safetensors").open("rb") as weights:
        assert hashlib.file_digest(weights, "sha256").hexdigest() == WEIGHTS_SHA256


def test_the_tokenizer_and_its_template_work(folder: Path) -> None:
    cpu_shims.install()  # transformers imports torchvision
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.model_max_length == 8192
    text = "In 2024, naïve cafés cost 12.50 €;\n\tdef f(x): return x  # 日本"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.tokenize("2024") == ["2", "0", "2", "4"]
    prompt = tokenizer.apply_chat_template(
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
        add_generation_prompt=True,
        tokenize=False,
    )
    assert prompt == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
