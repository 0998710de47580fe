"""GGUF files and model folders that are broken by accident or on purpose: a typed error each time."""

from __future__ import annotations

import json
import math
import os
import random
import resource
import struct
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flashagents_runtime import FlashAgentsError, ModelError, ModelIntegrityError
from flashagents_runtime.chat import ChatMessage
from flashagents_runtime.chat_tokenizer import HFChatTokenizer
from flashagents_runtime.gguf_check import check_header
from flashagents_runtime.gguf_convert import convert_gguf
from flashagents_runtime.model_card import read_model_card
from flashagents_runtime.model_check import check_model_folder
from flashagents_runtime.model_store import resolve_model
from helpers.tiny_gguf import write_gguf

ENOUGH = settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)


@cache
def whole() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        return write_gguf(Path(folder) / "a.gguf").read_bytes()


HEADER = 2000  # bytes of the tiny model before its tensors' data, about


@pytest.fixture
def out(tmp_path: Path) -> Iterator[Path]:
    """Where to convert to; nothing is written beside it."""
    folder = tmp_path / "inner" / "out"
    folder.mkdir(parents=True)
    yield folder
    assert os.listdir(tmp_path / "inner") == ["out"]


def convert(data: bytes) -> FlashAgentsError | None:
    """Convert a file with these bytes; any error but ours fails the test."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "x.gguf", Path(folder) / "out"
        source.write_bytes(data)
        target.mkdir()
        try:
            convert_gguf(source, target)
        except FlashAgentsError as e:
            assert str(e)
            return e
        finally:
            assert sorted(os.listdir(folder)) == ["out", "x.gguf"]
        check_model_folder(target)
        return None


def test_the_seed_is_sound() -> None:
    assert convert(whole()) is None


# ---- GGUF


@pytest.mark.parametrize("part", ["header", "data"])
def test_truncated_gguf(part: str) -> None:
    rng = random.Random(3)
    data = whole()
    low, high = (0, HEADER) if part == "header" else (HEADER, len(data))
    for _ in range(60):
        error = convert(data[: rng.randrange(low, high)])
        assert isinstance(error, ModelIntegrityError)


@ENOUGH
@given(
    edits=st.lists(
        st.tuples(
            st.integers(0, HEADER),
            st.one_of(
                st.sampled_from(
                    [b"\xff" * 8, b"\0" * 8, struct.pack("<Q", 1 << 62), struct.pack("<I", 1 << 31)]
                ),
                st.binary(min_size=1, max_size=8),
            ),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_gguf_with_bytes_changed(edits: list[tuple[int, bytes]]) -> None:
    data = bytearray(whole())
    for at, new in edits:
        data[at : at + len(new)] = new
    convert(bytes(data))


@ENOUGH
@given(data=st.binary(max_size=300), magic=st.booleans())
def test_bytes_that_are_no_gguf(data: bytes, magic: bool) -> None:
    assert isinstance(convert((b"GGUF" if magic else b"") + data), ModelIntegrityError)


def entry(name: str, kind: int, value: bytes) -> bytes:
    key = name.encode()
    return struct.pack("<Q", len(key)) + key + struct.pack("<I", kind) + value


def file(*entries: bytes, tensors: int = 0, tail: bytes = b"") -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, len(entries)) + b"".join(entries) + tail


def array(kind: int, count: int, content: bytes = b"") -> bytes:
    return struct.pack("<IQ", kind, count) + content


BOMBS = {
    "an array of 2^60 bytes": file(entry("a", 9, array(0, 1 << 60))),
    "an array of 2^22 numbers that are not there": file(entry("a", 9, array(4, 1 << 22))),
    "many arrays": file(*[entry(f"a{i}", 9, array(0, 1 << 21, b"\0" * (1 << 21))) for i in range(5)]),
    "arrays of arrays of arrays": file(entry("a", 9, array(9, 1) * 100)),
    "arrays without elements, nested": file(entry("a", 9, array(9, 1 << 22, array(0, 0) * 100))),
    "a text of 2^63 bytes": file(entry("a", 8, struct.pack("<Q", 1 << 63))),
    "a name of 2^64 - 1 bytes": file(struct.pack("<Q", (1 << 64) - 1)),
    "2^64 - 1 entries": b"GGUF" + struct.pack("<IQQ", 3, 0, (1 << 64) - 1),
    "2^64 - 1 tensors": b"GGUF" + struct.pack("<IQQ", 3, (1 << 64) - 1, 0),
    "an unknown type": file(entry("a", 99, b"\0" * 8)),
    "a tensor of 2^32 dimensions": file(tensors=1, tail=struct.pack("<QI", 0, (1 << 32) - 1)),
    "a tensor of 2^256 values": file(tensors=1, tail=struct.pack("<QI4QIQ", 0, 4, *[1 << 62] * 4, 0, 0)),
    "an empty tensor": file(tensors=1, tail=struct.pack("<QIQIQ", 0, 1, 0, 0, 0)),
    "big-endian": b"GGUF" + struct.pack(">IQQ", 3, 0, 0),
    "version 1": b"GGUF" + struct.pack("<IQQ", 1, 0, 0),
}


@pytest.mark.parametrize("what", BOMBS)
def test_gguf_bombs(what: str) -> None:
    """The `gguf` package would be busy with some of these for ever, and fill the memory."""
    data = BOMBS[what]
    tracemalloc.start()
    try:
        assert isinstance(convert(data), ModelIntegrityError)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 * len(data) + (4 << 20)


def edited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> bytes:
    """The tiny model with some of the writer's calls made with other arguments."""
    for name, value in changes.items():
        original = getattr(gguf.GGUFWriter, name)
        monkeypatch.setattr(gguf.GGUFWriter, name, lambda self, _, o=original, v=value: o(self, v))
    return write_gguf(tmp_path / "edited.gguf").read_bytes()


@pytest.mark.parametrize(
    ("method", "value"),
    [
        ("add_head_count", 0),
        ("add_head_count", 3),
        ("add_head_count", 1 << 31),
        ("add_head_count_kv", 0),
        ("add_head_count_kv", 3),
        ("add_head_count_kv", 4),
        ("add_embedding_length", 0),
        ("add_embedding_length", 64),
        ("add_feed_forward_length", 47),
        ("add_block_count", 0),
        ("add_block_count", 2),
        ("add_block_count", (1 << 31) - 1),
        ("add_context_length", 0),
        ("add_layer_norm_rms_eps", math.nan),
        ("add_layer_norm_rms_eps", -1.0),
        ("add_rope_freq_base", math.inf),
        ("add_rope_freq_base", 0.0),
        ("add_bos_token_id", 10_000),
        ("add_eos_token_id", 11),
        ("add_pad_token_id", (1 << 32) - 1),
        ("add_token_list", ["a"]),
        ("add_token_types", [1, 2]),
        ("add_token_merges", ["nospace"]),
        ("add_token_merges", ["not in vocabulary"]),
        ("add_tokenizer_pre", "other"),
    ],
)
def test_gguf_whose_figures_clash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, value: Any
) -> None:
    error = convert(edited(tmp_path, monkeypatch, **{method: value}))
    assert isinstance(error, FlashAgentsError)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("tensor", ["token_embd.weight", "blk.0.attn_q.weight", "output_norm.weight"])
def test_weights_that_are_no_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tensor: str, bad: float
) -> None:
    add = gguf.GGUFWriter.add_tensor

    def add_bad(self: Any, name: str, values: np.ndarray[Any, Any]) -> None:
        if name == tensor:
            values = values.copy()
            values.flat[-1] = bad
        add(self, name, values)

    monkeypatch.setattr(gguf.GGUFWriter, "add_tensor", add_bad)
    error = convert(write_gguf(tmp_path / "bad.gguf").read_bytes())
    assert isinstance(error, ModelIntegrityError) and tensor in str(error)


@pytest.mark.parametrize(
    "name", ["../../evil.weight", "/etc/evil", "blk.0.evil.weight", "", "blk.-1.attn_q.weight"]
)
def test_tensors_of_other_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    add = gguf.GGUFWriter.add_tensor
    rename = {"output_norm.weight": name}
    monkeypatch.setattr(
        gguf.GGUFWriter, "add_tensor", lambda self, n, values: add(self, rename.get(n, n), values)
    )
    assert isinstance(convert(write_gguf(tmp_path / "bad.gguf").read_bytes()), FlashAgentsError)


def test_a_gguf_file_that_cannot_be_opened(tmp_path: Path, out: Path) -> None:
    with pytest.raises(OSError):
        convert_gguf(tmp_path / "absent.gguf", out)
    with pytest.raises(OSError):
        check_header(tmp_path)


# ---- folders

values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**70), 2**70),
        st.floats(),
        st.text(max_size=5),
        st.sampled_from(["llama3", "default", "content", "{{ x", "{% for %}", "smollm"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.one_of(
                st.text(max_size=4), st.sampled_from(["factor", "rope_type", "name", "template", "content"])
            ),
            inner,
            max_size=3,
        ),
    ),
    max_leaves=6,
)

CONFIG_FIELDS = (
    *("model_type", "architectures", "text_config", "rope_scaling", "rope_parameters", "vision_config"),
    *("max_position_embeddings", "max_sequence_length", "seq_length"),
)


def any_object(*names: str) -> st.SearchStrategy[Any]:
    return st.one_of(values, st.fixed_dictionaries({}, optional={name: values for name in names}))


def fill(folder: Path, **files: Any) -> Path:
    """A small sound model folder, with these files (JSON by name) in place of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = {
        "version": "1.0",
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []},
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": None,
        "truncation": None,
        "padding": None,
    }
    sound = {
        "config": {"model_type": "llama"},
        "generation_config": {},
        "tokenizer_config": {"chat_template": "{{ messages[0]['content'] }}"},
        "special_tokens_map": {},
        "tokenizer": tokenizer,
    }
    for name, content in {**sound, **files}.items():
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


def use(folder: Path) -> FlashAgentsError | None:
    """All that the application does with a model's folder."""
    try:
        resolve_model(folder, weights=False)
        read_model_card(folder)
        tokenizer = HFChatTokenizer(folder)
        tokenizer.render([ChatMessage(role="user", content="a")])
        tokenizer.encode("ab")
    except FlashAgentsError as e:
        assert str(e)
        return e
    return None


def test_the_sound_folder_is_sound(tmp_path: Path) -> None:
    assert use(fill(tmp_path / "m")) is None


@ENOUGH
@given(config=any_object(*CONFIG_FIELDS), generation=any_object("temperature", "top_k", "top_p", "min_p"))
def test_any_json_for_the_configuration(config: Any, generation: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        use(fill(Path(folder) / "m", config=config, generation_config=generation))
        if isinstance(config, dict):
            config.setdefault("model_type", "llama")
            use(fill(Path(folder) / "m", config=config, generation_config=generation))


@ENOUGH
@given(
    config=any_object("chat_template", "bos_token", "eos_token"),
    special=any_object("bos_token", "eos_token"),
    template=any_object("chat_template"),
)
def test_any_json_for_the_tokenizers_configuration(config: Any, special: Any, template: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        use(
            fill(
                Path(folder) / "m",
                tokenizer_config=config,
                special_tokens_map=special,
                chat_template=template,
            )
        )


@settings(max_examples=80, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(tokenizer=any_object("version", "model", "added_tokens", "pre_tokenizer", "normalizer", "decoder"))
def test_any_json_for_the_tokenizer(tokenizer: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        use(fill(Path(folder) / "m", tokenizer=tokenizer))


NAMES = [
    "config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "tokenizer.json",
    "chat_template.jinja",
]


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_loop(path: Path) -> None:
    path.symlink_to(path)


def make_endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def make_folder(path: Path) -> None:
    path.mkdir()


def make_huge(path: Path) -> None:
    with path.open("wb") as f:
        f.truncate(1 << 33)  # a hole: takes no room on the disk


def make_binary(path: Path) -> None:
    path.write_bytes(b"\xff\xfe\x00\x80")


def make_deep(path: Path) -> None:
    path.write_text('{"a":' * 100_000)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "make", [make_fifo, make_loop, make_endless, make_folder, make_huge, make_binary, make_deep]
)
def test_files_that_are_no_files(tmp_path: Path, name: str, make: Callable[[Path], None]) -> None:
    folder = fill(tmp_path / "m")
    (folder / name).unlink(missing_ok=True)
    make(folder / name)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), hard))  # an endless file must not be read
    try:
        use(folder)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@pytest.mark.parametrize(
    "shard",
    ["../outside.safetensors", "/etc/passwd", "sub/x.safetensors", "..", ".", "", 5, None, ["a"], {"a": 1}],
)
def test_shards_outside_of_the_folder(tmp_path: Path, shard: Any) -> None:
    (tmp_path / "outside.safetensors").write_bytes(b"")
    folder = fill(tmp_path / "m", **{"model.safetensors.index": {"weight_map": {"a": shard}}})
    with pytest.raises(ModelIntegrityError, match="no file of its folder"):
        resolve_model(folder)


def safetensors(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0" * 7,
        safetensors({}, length=1 << 62),
        safetensors({"a": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 4]}}, b"\0" * 4),
        safetensors({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 1 << 40]}}, b"\0" * 4),
        safetensors({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}}, b"\0" * 4),
        safetensors({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}, b"\0" * 4),
        safetensors({"a": {"dtype": "F99", "shape": [1], "data_offsets": [0, 4]}}, b"\0" * 4),
        safetensors(b"[" * 100_000),
        safetensors({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, b"\0" * 3),
    ],
    ids=lambda content: repr(content[:24]),
)
def test_weights_that_are_no_safetensors(tmp_path: Path, content: bytes) -> None:
    folder = fill(tmp_path / "m")
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelIntegrityError, match=r"model\.safetensors"):
        resolve_model(folder)


@pytest.mark.parametrize(
    "name",
    [
        "",
        " ",
        ".",
        "..",
        "a" * 5000,
        "a/" * 3000,
        "x\0y",
        "~nosuchuser/model",
        "org/../../etc",
        "org/name/extra",
        "../org/name",
        "C:\\models",
        "http://host/model",
        "\ud800",
        "-rf",
        "/dev/null",
        "/dev/zero",
        "/proc/self/mem",
    ],
    ids=repr,
)
def test_names_of_models(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelError):
        resolve_model(name)
