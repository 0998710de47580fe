"""A model folder without weights whose every token is a word: what it decodes tokenises to what it decoded.

With random weights (`load_format=dummy`) and an ordinary tokenizer, an answer is garbage, whose text has
another number of tokens than were decoded. Here prompts keep their lengths along any path: our client's,
AutoGen's OpenAI client's, a stock server's.
"""

from __future__ import annotations

import json
import random
from itertools import islice, product
from pathlib import Path
from string import ascii_lowercase
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from benchmarks.model_config import QWEN25_7B, QWEN25_32B, write_config

SHAPES: dict[str, dict[str, Any]] = {
    "qwen2.5-7b": QWEN25_7B,
    "qwen2.5-32b": QWEN25_32B,  # the paper's downstream is of Qwen3-32B's size
    "tiny": {  # to try the benchmarks on a CPU
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "vocab_size": 8192,
    },
}
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_SPLIT = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def words(count: int) -> list[str]:
    """The first `count` words: four letters each."""
    return ["".join(letters) for letters in islice(product(ascii_lowercase, repeat=4), count)]


def tokenizer(vocab_size: int) -> Tokenizer:
    """Special tokens, the 256 bytes, and a space with a word for each further id."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    entries = [*SPECIAL, *alphabet]
    entries += [f"\u0120{word}" for word in words(vocab_size - len(entries))]
    # A piece that is in the vocabulary is one token, without merges (as Llama 3's).
    model = models.BPE(vocab={entry: i for i, entry in enumerate(entries)}, merges=[], ignore_merges=True)
    made = Tokenizer(model)
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False),
        ]
    )
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return made


def write_model(folder: Path, shape: str) -> Path:
    """A Qwen2 of this shape below `folder`: configuration, tokenizer and chat template."""
    path = write_config(folder / shape, "qwen2", {**SHAPES[shape], "bos_token_id": 0, "eos_token_id": 2})
    tokenizer(SHAPES[shape]["vocab_size"]).save(str(path / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "chat_template": _TEMPLATE,
        "clean_up_tokenization_spaces": False,
    }
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    return path


class Texts:
    """Endless, reproducible texts, each unlike the others."""

    def __init__(self, shape: str, seed: int) -> None:
        self._words = words(SHAPES[shape]["vocab_size"] - 300)
        self._rng = random.Random(seed)

    def of(self, tokens: int) -> str:
        """A text of exactly `tokens` tokens, wherever a message may begin with a space."""
        return "".join(f" {word}" for word in self._rng.choices(self._words, k=tokens))
