"""A tiny model with a tokenizer, and pairs for roles that it can learn something of in a second."""

from __future__ import annotations

from pathlib import Path

from flashagents_runtime.role_training import Pair
from helpers.scheduler_harness import tiny_model
from helpers.tiny_tokenizer import tiny_tokenizer


def tiny_text_model(folder: Path) -> Path:
    """`tiny_model` with the tokenizer of `tiny_tokenizer`, made once."""
    path = tiny_model(folder)
    if not (path / "tokenizer.json").exists():
        tiny_tokenizer().save(str(path / "tokenizer.json"))
        (path / "tokenizer_config.json").write_text("{}")
    return path


def tiny_pairs(role: str, n: int = 8) -> list[Pair]:
    """Each role says a word of its own, after inputs of all lengths."""
    words = {"plan": " the river", "action": " the cat", "reflect": " the dog"}
    return [Pair("the sea and the mat. " * (1 + i % 3) + role, words[role]) for i in range(n)]
