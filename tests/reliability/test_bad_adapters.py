"""Adapter folders that are broken by accident or on purpose: refused by name, before an engine reads them."""

from __future__ import annotations

import json
import os
import struct
import sys
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save

from flashagents_runtime import FlashAgentsError, GenerateRequest, ModelError, ModelIntegrityError
from flashagents_runtime.adapter_check import adapter_paths, check_adapter, check_adapters
from flashagents_runtime.embedded import EmbeddedEngine, host_process
from helpers import stub_host

ENOUGH = settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
MODEL = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 16,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 24,
}
WIDTHS = {"q_proj": (16, 16), "v_proj": (16, 8), "o_proj": (16, 16), "down_proj": (24, 16)}
CONFIG = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": list(WIDTHS)}

Tensors = dict[str, np.ndarray[Any, Any]]


def sound(dtype: Any = np.float32) -> Tensors:
    tensors: Tensors = {}
    for layer in range(2):
        for module, (taken, given_) in WIDTHS.items():
            name = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            tensors[f"{name}.lora_A.weight"] = np.ones((4, taken), dtype)
            tensors[f"{name}.lora_B.weight"] = np.ones((given_, 4), dtype)
    return tensors


def write(folder: Path, config: Any = CONFIG, weights: bytes | None = None, **files: bytes) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(config))
    (folder / "adapter_model.safetensors").write_bytes(save(sound()) if weights is None else weights)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text(json.dumps(MODEL))
    return folder


def refusal(folder: Any, model: Path | None, name: str = "planner") -> str | None:
    """What is said of the adapter; None where it is sound. Any error but ours fails the test."""
    try:
        check_adapter(name, folder, model)
    except ModelError as e:
        assert name in str(e)
        return str(e)
    return None


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_a_sound_adapter(tmp_path: Path, model: Path, dtype: Any) -> None:
    folder = write(tmp_path / "a", weights=save(sound(dtype)))
    assert refusal(folder, model) is None
    link = tmp_path / "link"  # as in the hub's cache: links to blobs elsewhere
    link.mkdir()
    for file in folder.iterdir():
        (link / file.name).symlink_to(file)
    assert refusal(link, model) is None
    assert refusal(folder, None) is None
    assert refusal(folder, tmp_path / "no model") is None


NAME = "base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight"


def bfloat16(value: float) -> bytes:
    """An adapter of one tensor in bfloat16, its last value `value`."""
    values = np.zeros(4 * 16, np.float32)
    values[-1] = value
    data = (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    header = {NAME: {"dtype": "BF16", "shape": [4, 16], "data_offsets": [0, len(data)]}}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, "bfloat16"])
def test_values_that_are_no_numbers(tmp_path: Path, model: Path, value: float, dtype: Any) -> None:
    if dtype == "bfloat16":
        assert refusal(write(tmp_path / "a", weights=bfloat16(-3.5)), model) is None
        weights = bfloat16(value)
    else:
        tensors = sound(dtype)
        tensors[NAME].flat[-1] = value
        weights = save(tensors)
    said = refusal(write(tmp_path / "a", weights=weights), model)
    assert said is not None and NAME in said and "NaN or infinity" in said


def test_a_bad_value_behind_the_first_million(tmp_path: Path) -> None:
    tensors = {"x.experts.lora_A.weight": np.zeros((3, 500_000), np.float32)}
    assert refusal(write(tmp_path / "a", weights=save(tensors)), None) is not None  # of rank 3
    tensors = {"x.lora_embedding_A": np.zeros((3, 500_000), np.float32)}
    assert refusal(write(tmp_path / "a", weights=save(tensors)), None) is None
    tensors["x.lora_embedding_A"][2, -1] = np.nan
    assert "NaN" in str(refusal(write(tmp_path / "a", weights=save(tensors)), None))


@pytest.mark.parametrize(
    ("tensor", "shape", "why"),
    [
        (NAME, (8, 16), "not of rank 4"),
        (NAME, (4, 17), "the model's width there is 16"),
        (NAME.replace("lora_A", "lora_B"), (17, 4), "the model's width there is 16"),
        (NAME.replace("lora_A", "lora_B"), (16, 5), "not of rank 4"),
        (NAME.replace("q_proj", "v_proj").replace("lora_A", "lora_B"), (16, 4), "width there is 8"),
        (NAME.replace("q_proj", "down_proj"), (4, 16), "width there is 24"),
        (NAME.replace("layers.1", "layers.2"), (4, 16), "of a layer that the model of 2"),
        (NAME.replace("layers.1", "layers." + "9" * 40), (4, 16), "of a layer"),
    ],
)
def test_shapes_that_are_not_the_models(
    tmp_path: Path, model: Path, tensor: str, shape: tuple[int, int], why: str
) -> None:
    """In SGLang they are found by an assertion at the first request, which ends the scheduler."""
    folder = write(tmp_path / "a", weights=save({**sound(), tensor: np.ones(shape, np.float32)}))
    said = refusal(folder, model)
    assert said is not None and why in said and tensor in said


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"peft_type": "IA3"}, "peft_type"),
        ({"peft_type": None}, "peft_type"),
        ({"r": 0}, "rank"),
        ({"r": True}, "rank"),
        ({"r": "8"}, "rank"),
        ({"r": 1 << 40}, "rank"),
        ({"lora_alpha": None}, "lora_alpha"),
        ({"lora_alpha": float("nan")}, "lora_alpha"),
        ({"lora_alpha": 10**400}, "lora_alpha"),
        ({"target_modules": []}, "target_modules"),
        ({"target_modules": {"q_proj": 1}}, "target_modules"),
        ({"target_modules": ["q_proj", 3]}, "target_modules"),
    ],
)
def test_configurations_that_are_none(tmp_path: Path, model: Path, changes: dict[str, Any], why: str) -> None:
    said = refusal(write(tmp_path / "a", config={**CONFIG, **changes}), model)
    assert said is not None and why in said


def test_files_that_are_missing_or_not_read(tmp_path: Path, model: Path) -> None:
    folder = write(tmp_path / "a")
    (folder / "adapter_model.safetensors").rename(folder / "other.txt")
    assert "has no weights" in str(refusal(folder, model))
    (folder / "adapter_model.bin").write_bytes(b"\x80\x04.")
    assert "pickles" in str(refusal(folder, model))
    (folder / "adapter_config.json").unlink()
    assert "no adapter_config.json" in str(refusal(folder, model))
    assert "is not a folder" in str(refusal(tmp_path / "absent", model))
    assert "is not a folder" in str(refusal(folder / "other.txt", model))
    (write(tmp_path / "b") / "adapter_model.safetensors").write_bytes(save({}))
    assert "holds no tensors" in str(refusal(tmp_path / "b", model))


FILES = ["adapter_config.json", "adapter_model.safetensors", "added_tokens.json", "second.safetensors"]


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_loop(path: Path) -> None:
    path.symlink_to(path)


def make_endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def make_foreign(path: Path) -> None:
    path.symlink_to("/etc/passwd")  # its words must not be shown


def make_folder(path: Path) -> None:
    path.mkdir()


def make_huge(path: Path) -> None:
    with path.open("wb") as f:
        f.truncate(1 << 33)


def make_deep(path: Path) -> None:
    path.write_text('{"a":' * 100_000)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    "make", [make_fifo, make_loop, make_endless, make_foreign, make_folder, make_huge, make_deep]
)
def test_files_that_are_no_files(
    tmp_path: Path, model: Path, name: str, make: Callable[[Path], None]
) -> None:
    folder = write(tmp_path / "a")
    (folder / name).unlink(missing_ok=True)
    make(folder / name)
    tracemalloc.start()
    try:
        said = refusal(folder, model)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    dangling = make is make_loop and name == "added_tokens.json"  # to SGLang it is not there
    assert (said is None) == dangling and "root:" not in str(said)
    assert peak < 200 << 20


def test_truncated_anywhere(tmp_path: Path, model: Path) -> None:
    whole = save(sound())
    for end in range(0, len(whole), 37):
        assert refusal(write(tmp_path / "a", weights=whole[:end]), model) is not None


@ENOUGH
@given(
    edits=st.lists(st.tuples(st.integers(0, 4000), st.binary(min_size=1, max_size=8)), min_size=1, max_size=4)
)
def test_weights_with_bytes_changed(edits: list[tuple[int, bytes]]) -> None:
    data = bytearray(save(sound()))
    for at, new in edits:
        data[at : at + len(new)] = new
    with tempfile.TemporaryDirectory() as folder:
        refusal(write(Path(folder) / "a", weights=bytes(data)), None)
        assert os.listdir(folder) == ["a"]


values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=5,
)


@ENOUGH
@given(
    config=st.one_of(values, st.fixed_dictionaries({}, optional=dict.fromkeys(CONFIG, values))),
    model_config=st.fixed_dictionaries({}, optional=dict.fromkeys(MODEL, values)),
)
def test_any_json_for_the_configurations(config: Any, model_config: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder) / "base"
        base.mkdir()
        (base / "config.json").write_text(json.dumps({**MODEL, **model_config}))
        refusal(write(Path(folder) / "a", config=config), base)
        refusal(write(Path(folder) / "b"), base)


@pytest.mark.parametrize(
    "path", ["", "\0", "a" * 5000, "../../../../etc", "/dev/zero", "/proc/self/mem", "~nobody/x", "\ud800"]
)
def test_paths_of_adapters(tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert refusal(path, None) is not None


def test_the_forms_of_lora_paths(tmp_path: Path, model: Path) -> None:
    good, bad = write(tmp_path / "good"), write(tmp_path / "bad", config={})
    both = [("a", str(good)), ("b", str(bad))]
    assert adapter_paths({"a": good, "b": bad}) == both
    assert adapter_paths([f"a={good}", {"lora_name": "b", "lora_path": str(bad)}]) == both
    assert adapter_paths(["org/name"]) == [("org/name", "org/name")]
    assert adapter_paths(None) == []
    with pytest.raises(ModelIntegrityError, match=r"LoRA adapter 'b': its peft_type"):
        check_adapters({"a": str(good), "b": str(bad)}, model)
    check_adapters(["org/name", f"a={good}"], model)  # a hub's is SGLang's to fetch
    with pytest.raises(ModelError, match="'c'"):
        check_adapters({"c": str(tmp_path / "absent")}, model)


# ---- an engine that is asked for one


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch, model: Path) -> Iterator[None]:
    monkeypatch.setattr(
        host_process, "host_command", lambda fd: [sys.executable, stub_host.__file__, str(fd)]
    )
    monkeypatch.setattr("flashagents_runtime.model_store.resolve_model", lambda *a, **k: model)
    yield


@pytest.mark.usefixtures("stub")
async def test_an_engine_starts_with_no_broken_adapter_and_goes_on_after_one(tmp_path: Path) -> None:
    good, bad = write(tmp_path / "good"), write(tmp_path / "bad", weights=save(sound())[:-8])
    engine = EmbeddedEngine("m", lora_paths={"good": str(good), "bad": str(bad)})
    with pytest.raises(ModelIntegrityError, match=r"LoRA adapter 'bad': .*truncated"):
        await engine.start()
    assert engine._host is None, "a process was started for nothing"
    await engine.close()
    engine = EmbeddedEngine("m", lora_paths={"good": str(good)})
    with pytest.raises(ModelIntegrityError, match="LoRA adapter 'late': "):
        await engine.load_lora("late", bad)
    with pytest.raises(FlashAgentsError, match="LoRA adapter 'nowhere': "):
        await engine.load_lora("nowhere", tmp_path / "nowhere")
    stream = engine.generate(GenerateRequest(input_ids=[1]))
    assert (await anext(stream)).token_ids, "the engine goes on"
    await stream.aclose()
    await engine.close()
