"""A model folder without weights (SGLang's `load_format=dummy`), with a tokenizer and texts of its own."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from benchmarks.model_config import LLAMA31_8B, QWEN3_235B, QWEN25_7B, QWEN25_32B, write_config

_ROOT = Path(__file__).parents[2]

SHAPES: dict[str, dict[str, Any]] = {
    "qwen2.5-7b": QWEN25_7B,
    "qwen2.5-32b": QWEN25_32B,
    "qwen3-235b-a22b": QWEN3_235B,
    "llama-3.1-8b": LLAMA31_8B,
    "smollm2-135m": {
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_attention_heads": 9,
        "num_hidden_layers": 30,
        "num_key_value_heads": 3,
        "vocab_size": 49152,
    },
    "tiny": {  # to try the benchmark
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "vocab_size": 8192,
    },
}

_QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_model(folder: Path, shape: str) -> Path:
    """A Qwen of this shape below `folder`: configuration, tokenizer, chat template, no weights.

    The tokenizer is a byte-level BPE with Qwen's pre-tokenizer, trained on this project's own pages and
    sources, so that a token is about as long as it would be in English prose and nothing is fetched.
    """
    family = "qwen3_moe" if "num_experts" in SHAPES[shape] else "qwen2"
    path = write_config(folder / shape, family, SHAPES[shape])
    write_tokenizer(path)
    return path


def write_tokenizer(path: Path) -> None:
    """The tokenizer and its chat template, into a model's folder."""
    _train().save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "eos_token": "<|im_end|>",
                "pad_token": "<|endoftext|>",
                "chat_template": _TEMPLATE,
                "clean_up_tokenization_spaces": False,
            }
        )
    )


def _train() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_QWEN_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=8000,
        show_progress=False,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(_pages(), trainer)
    return tokenizer


def _pages() -> list[str]:
    found = [_ROOT / "README.md", *sorted((_ROOT / "docs").glob("*.md"))]
    found += sorted((_ROOT / "runtime").rglob("*.py"))
    return [path.read_text(encoding="utf-8") for path in found]


class Texts:
    """Endless, reproducible texts of words from this project's pages, each unlike the others."""

    def __init__(self, tokenizer: Tokenizer, seed: int) -> None:
        self._tokenizer = tokenizer
        self._rng = random.Random(seed)
        self._words = sorted({w for page in _pages() for w in re.findall(r"\b[a-z]{2,9}\b", page)})

    def of(self, tokens: int) -> str:
        """A text of at least `tokens` tokens, by no more than one word; "" for 0."""
        return "".join(self.pieces(tokens))

    def pieces(self, tokens: int) -> list[str]:
        """A text in pieces, as a model streams it: `tokens` of them, one token each (the last: one word)."""
        if tokens == 0:
            return []
        text = self._prose(tokens)
        encoded = self._tokenizer.encode(text, add_special_tokens=False)
        ends = [end for _, end in encoded.offsets]
        cut = ends[tokens - 1]
        while text[cut].isalpha():
            cut += 1
        starts = [0, *ends[: tokens - 1]]
        return [text[a:b] for a, b in zip(starts, [*starts[1:], cut], strict=True)]

    def _prose(self, words: int) -> str:
        out: list[str] = []
        while len(out) < words + 8:
            sentence = self._rng.choices(self._words, k=self._rng.randint(6, 14))
            out += [sentence[0].capitalize(), *sentence[1:-1], sentence[-1] + "."]
        return " ".join(out)
