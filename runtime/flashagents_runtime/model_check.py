"""Is this folder a whole Hugging Face model? Found out without reading the weights.

A truncated weights file is the usual accident (an interrupted copy, a full disk); safetensors' header says
how long its file must be.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .errors import ModelIntegrityError, ModelNotFoundError

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json", "tekken.json")
_MAX_TEXT = 64 << 20  # bytes; the index of a model in a thousand shards has some
WEIGHT_PATTERNS = ("*.safetensors", "*.bin", "*.pt", "*.pth")


def check_model_folder(folder: Path, *, weights: bool = True, tokenizer: bool = True) -> None:
    """Check that `folder` holds a configuration and, unless told otherwise, a tokenizer and whole weights.

    Raises:
        ModelNotFoundError: it is no model folder at all.
        ModelIntegrityError: a file is missing, unreadable or truncated; the message names it.
    """
    if not folder.is_dir():
        raise ModelNotFoundError(f"{folder} is not a folder; a model is a folder in Hugging Face's format")
    if not (folder / "config.json").exists():
        if (folder / "adapter_config.json").exists():
            raise ModelNotFoundError(
                f"{folder} is a LoRA adapter, not a model: pass its base model here and the adapter as `lora`"
            )
        raise ModelNotFoundError(f"{folder} has no config.json, so it is not a Hugging Face model folder")
    config = read_json(folder / "config.json")
    if not config.get("model_type") and not config.get("architectures"):
        raise ModelIntegrityError(f"{folder / 'config.json'} names neither model_type nor architectures")
    if tokenizer and not any((folder / name).exists() for name in TOKENIZER_FILES):
        raise ModelIntegrityError(
            f"{folder} has no tokenizer (one of {', '.join(TOKENIZER_FILES)}): copy the model's own there"
        )
    if weights:
        _check_weights(folder)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; ModelIntegrityError where it is not one, or larger than any model's."""
    try:
        content = json.loads(read_text(path))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelIntegrityError(
            f"{path} cannot be read as JSON ({error}): fetch the model again"
        ) from error
    if not isinstance(content, dict):
        raise ModelIntegrityError(f"{path} holds no JSON object: fetch the model again")
    return content


def read_text(path: Path) -> str:
    """A text file of a model; ModelIntegrityError where it is no ordinary file, or is too large.

    Raises:
        OSError: it cannot be read.
        UnicodeDecodeError: it is no UTF-8.
    """
    if path.exists() and not path.is_file():  # a pipe or a device would never end
        raise ModelIntegrityError(f"{path} is not an ordinary file: fetch the model again")
    with path.open("rb") as file:
        content = file.read(_MAX_TEXT + 1)
    if len(content) > _MAX_TEXT:
        raise ModelIntegrityError(f"{path} is larger than {_MAX_TEXT >> 20} MiB: fetch the model again")
    return content.decode("utf-8")


def check_safetensors(path: Path) -> None:
    """Compare a safetensors file's length with what its header says; ModelIntegrityError on a mismatch."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy"):
            pass
    except (SafetensorError, OSError, ValueError) as error:
        raise ModelIntegrityError(
            f"{path} is truncated or no safetensors file ({error}): fetch the model again"
        ) from error


def _check_weights(folder: Path) -> None:
    files = {path for path in folder.glob("*.safetensors")}
    for index in folder.glob("*.safetensors.index.json"):
        shards = read_json(index).get("weight_map")
        if not isinstance(shards, dict):
            raise ModelIntegrityError(f"{index} has no weight_map: fetch the model again")
        for shard in shards.values():
            if not isinstance(shard, str) or Path(shard).name != shard or shard in ("", ".", ".."):
                raise ModelIntegrityError(f"{index} names {shard!r}, which is no file of its folder")
            files.add(folder / shard)
    missing = sorted(path.name for path in files if not path.exists())
    if missing:
        raise ModelIntegrityError(
            f"{folder} lacks the weight files {', '.join(missing)}: fetch the model again"
        )
    for path in sorted(files):
        check_safetensors(path)
    if files:
        return
    others = [path for pattern in WEIGHT_PATTERNS for path in folder.glob(pattern)]
    if not others:
        raise ModelIntegrityError(
            f"{folder} has no weights ({', '.join(WEIGHT_PATTERNS)}): fetch the model again"
        )
    empty = [path.name for path in others if path.stat().st_size == 0]
    if empty:
        raise ModelIntegrityError(
            f"{folder} has empty weight files {', '.join(empty)}: fetch the model again"
        )


__all__ = ["check_model_folder", "check_safetensors", "read_json", "read_text"]
