"""What `check_model_folder` accepts and refuses, and that its message names the file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from flashagents_runtime.errors import ModelError, ModelIntegrityError, ModelNotFoundError
from flashagents_runtime.model_check import check_model_folder

WEIGHTS = "model.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (tmp_path / "tokenizer.json").write_text("{}")
    save_file({"w": np.arange(64, dtype=np.float32)}, tmp_path / WEIGHTS)
    return tmp_path


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def to_adapter(folder: Path) -> None:
    (folder / "config.json").rename(folder / "adapter_config.json")


def to_missing_shard(folder: Path) -> None:
    index = {"weight_map": {"w": WEIGHTS, "v": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def to_empty_bin(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    (folder / "pytorch_model.bin").touch()


DAMAGES: dict[str, tuple[Callable[[Path], object], type[ModelError], str]] = {
    "no config": (lambda f: (f / "config.json").unlink(), ModelNotFoundError, "no config.json"),
    "adapter": (to_adapter, ModelNotFoundError, "LoRA adapter"),
    "broken json": (lambda f: truncate(f / "config.json"), ModelIntegrityError, "cannot be read as JSON"),
    "json list": (lambda f: (f / "config.json").write_text("[]"), ModelIntegrityError, "no JSON object"),
    "nameless": (lambda f: (f / "config.json").write_text("{}"), ModelIntegrityError, "model_type"),
    "no tokenizer": (lambda f: (f / "tokenizer.json").unlink(), ModelIntegrityError, "no tokenizer"),
    "truncated": (lambda f: truncate(f / WEIGHTS), ModelIntegrityError, "model.safetensors is truncated"),
    "header only": (lambda f: (f / WEIGHTS).write_bytes(b"\x01"), ModelIntegrityError, "is truncated"),
    "no weights": (lambda f: (f / WEIGHTS).unlink(), ModelIntegrityError, "no weights"),
    "missing shard": (to_missing_shard, ModelIntegrityError, "model-00002-of-00002.safetensors"),
    "empty bin": (to_empty_bin, ModelIntegrityError, "empty weight files pytorch_model.bin"),
}


def test_a_whole_folder_passes(folder: Path) -> None:
    check_model_folder(folder)


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_named(folder: Path, damage: str) -> None:
    spoil, error, message = DAMAGES[damage]
    spoil(folder)
    with pytest.raises(error, match=message):
        check_model_folder(folder)


def test_dummy_weights_need_no_files(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    check_model_folder(folder, weights=False)


def test_a_file_is_no_model(folder: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="not a folder"):
        check_model_folder(folder / "config.json")
