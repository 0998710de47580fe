"""Pairs of input and output from a JSON file, and as token ids."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from ..chat import ChatMessage, ChatTokenizer, encode_chat
from ..errors import TrainingError


class Pair(msgspec.Struct, frozen=True):
    """What a role reads, and what it should write."""

    input: str
    output: str


class Example(msgspec.Struct, frozen=True):
    """A pair as token ids; the last `answer` of them are to be learnt, the end token included."""

    ids: list[int]
    answer: int


def read_pairs(file: Path) -> list[Pair]:
    """The pairs of a file: a JSON list of `{"input": ..., "output": ...}`, or one such object a line.

    Other fields of an object are passed over.

    Raises:
        TrainingError: the file cannot be read, is no such list, or holds no pair or an empty output.
    """
    try:
        data = file.read_bytes()
    except OSError as e:
        raise TrainingError(f"the pairs {file} cannot be read: {e.strerror or e}") from None
    try:
        if data.lstrip()[:1] == b"[":
            found = msgspec.json.decode(data, type=list[Pair])
        else:
            found = [msgspec.json.decode(line, type=Pair) for line in data.splitlines() if line.strip()]
    except msgspec.DecodeError as e:  # a ValidationError says where in the list
        raise TrainingError(
            f'{file} must be a JSON list of {{"input": text, "output": text}}, or one such object a line: {e}'
        ) from None
    if not found:
        raise TrainingError(f"{file} holds no pair to train on")
    empty = next((i for i, pair in enumerate(found) if not pair.output), None)
    if empty is not None:
        raise TrainingError(f"{file}: the output of pair {empty} is empty")
    return found


def end_token(model: Path, tokenizer: Any) -> int:
    """The id that ends an answer: of the model's generation_config.json, config.json or tokenizer.

    Raises:
        TrainingError: none of them names one.
    """
    for name in ("generation_config.json", "config.json"):
        file = model / name
        found = json.loads(file.read_text()).get("eos_token_id") if file.is_file() else None
        if isinstance(found, list):
            found = found[0] if found else None
        if found is not None:
            return int(found)
    file = model / "tokenizer_config.json"
    token = json.loads(file.read_text()).get("eos_token") if file.is_file() else None
    found = (
        tokenizer.token_to_id(token.get("content") if isinstance(token, dict) else token) if token else None
    )
    if found is None:
        raise TrainingError(f"{model} names no end token: add eos_token_id to its config.json")
    return int(found)


def examples(
    pairs: Sequence[Pair], tokenizer: ChatTokenizer, end: int, *, max_tokens: int, chat: bool = False
) -> list[Example]:
    """Token ids of each pair, `max_tokens` at most: a longer input loses its beginning.

    Raises:
        TrainingError: an output alone is longer than that.
    """
    out = []
    for i, pair in enumerate(pairs):
        answer = [*tokenizer.encode(pair.output), end]
        if len(answer) >= max_tokens:
            raise TrainingError(
                f"the output of pair {i} has {len(answer) - 1} tokens, and max_tokens is {max_tokens}"
            )
        if chat:
            prompt = encode_chat(tokenizer, [ChatMessage(role="user", content=pair.input)])
        else:
            prompt = tokenizer.encode(pair.input)
        if not prompt:
            raise TrainingError(f"the input of pair {i} is empty")
        out.append(Example([*prompt, *answer][-max_tokens:], len(answer)))
    return out


__all__ = ["Example", "Pair", "end_token", "examples", "read_pairs"]
