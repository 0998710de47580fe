"""The conversion from GGUF: exact weights, the right tokenizer, real errors."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from tokenizers import Tokenizer

from flashagents_runtime.errors import ModelIntegrityError, UnsupportedFeatureError
from flashagents_runtime.gguf_convert import STAGE, convert_gguf
from flashagents_runtime.model_check import check_model_folder
from flashagents_runtime.types import Progress
from helpers import tiny_gguf


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tiny_gguf.write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")
    folder = tmp_path_factory.mktemp("converted")
    convert_gguf(source, folder)
    return folder


def bf16(values: np.ndarray) -> np.ndarray:
    """Round to nearest, ties to even, the slow and obvious way."""
    bits = values.astype(np.float32).view(np.uint32).astype(np.uint64)
    low, high = bits & 0xFFFF, bits >> 16
    up = (low > 0x8000) | ((low == 0x8000) & (high & 1 == 1))
    return (high + up).astype(np.uint16)


def test_weights_are_the_rounded_originals(converted: Path) -> None:
    with (converted / "model.safetensors").open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        start = file.tell()
        wanted = tiny_gguf.tensors()
        assert set(header) - {"__metadata__"} == set(wanted)
        for name, values in wanted.items():
            entry = header[name]
            assert entry["dtype"] == "BF16"
            assert entry["shape"] == list(values.shape)
            file.seek(start + entry["data_offsets"][0])
            data = np.frombuffer(file.read(values.size * 2), dtype=np.uint16).reshape(values.shape)
            assert np.array_equal(data, bf16(values)), name


def test_safetensors_itself_reads_the_file(converted: Path) -> None:
    with safe_open(converted / "model.safetensors", framework="numpy") as file:
        assert set(file.keys()) == set(tiny_gguf.tensors())


def test_config_says_what_the_model_is(converted: Path) -> None:
    check_model_folder(converted)
    config = json.loads((converted / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["rms_norm_eps"] == 1e-5
    assert (config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]) == (4, 2, 8)
    assert config["tie_word_embeddings"] is True
    assert config["eos_token_id"] == 2
    assert config["transformers_version"] == "4.51.0"


def test_tokenizer_splits_digits_and_knows_special_tokens(converted: Path) -> None:
    tokenizer = Tokenizer.from_file(str(converted / "tokenizer.json"))
    assert tokenizer.encode("ab a<|im_end|>").tokens == ["a", "b", "Ġa", "<|im_end|>"]
    assert tokenizer.encode("12").tokens == ["1", "2"], "digits stay single, whatever the merges say"
    ids = tokenizer.encode("a<user>b").ids
    assert ids == [4, 3, 5]
    assert tokenizer.decode([1, 4, 9, 2]) == "a a"
    assert tokenizer.decode(ids) == "a<user>b", "a user-defined token is text"


def test_tokenizer_config_has_the_chat_template(converted: Path) -> None:
    config = json.loads((converted / "tokenizer_config.json").read_text())
    assert config["chat_template"] == tiny_gguf.CHAT_TEMPLATE
    assert (config["bos_token"], config["eos_token"]) == ("<|im_start|>", "<|im_end|>")
    assert config["model_max_length"] == 256


def test_progress_grows_to_one(tmp_path: Path) -> None:
    seen: list[Progress] = []
    convert_gguf(tiny_gguf.write_gguf(tmp_path / "tiny.gguf"), tmp_path, progress=seen.append)
    fractions = [progress.fraction for progress in seen if progress.fraction is not None]
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
    assert {progress.stage for progress in seen} == {STAGE}


def test_other_architectures_are_refused(tmp_path: Path) -> None:
    source = tiny_gguf.write_gguf(tmp_path / "tiny.gguf", arch="falcon")
    with pytest.raises(UnsupportedFeatureError, match="architecture llama"):
        convert_gguf(source, tmp_path)


@pytest.mark.parametrize("content", [b"", b"not a gguf file" * 10], ids=["empty", "garbage"])
def test_garbage_is_an_integrity_error(tmp_path: Path, content: bytes) -> None:
    source = tmp_path / "x.gguf"
    source.write_bytes(content)
    with pytest.raises(ModelIntegrityError, match="not a readable GGUF file"):
        convert_gguf(source, tmp_path)


def test_a_full_disk_is_an_os_error(tmp_path: Path) -> None:
    """/dev/full gives the kernel's own ENOSPC; model_store makes a DiskFullError of it."""
    source = tiny_gguf.write_gguf(tmp_path / "tiny.gguf")
    (tmp_path / "model.safetensors").symlink_to("/dev/full")
    with pytest.raises(OSError) as caught:
        convert_gguf(source, tmp_path)
    assert caught.value.errno == errno.ENOSPC
