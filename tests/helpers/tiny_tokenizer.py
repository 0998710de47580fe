"""A tokenizer with tokens of several characters, trained on the spot: no download, a few milliseconds."""

from __future__ import annotations

from functools import cache

from tokenizers import Tokenizer, decoders, models, trainers
from tokenizers import pre_tokenizers as pre

_CORPUS = [
    "The river Rhine is long: it flows through six countries, from the Alps to the sea.\n",
    "the cat sat on the mat. the dog's day, it's 12 or 1234 o'clock!\n\nassistant user system\n",
    "<|im_start|>user\nHello there!<|im_end|>\n<|im_start|>assistant\n",
]


@cache
def tiny_tokenizer() -> Tokenizer:
    """A byte-level BPE of 400 tokens with GPT-2's splits; the same tokens each time."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=pre.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(_CORPUS * 4, trainer)
    return tokenizer
