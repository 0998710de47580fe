"""Adapters for a model of random weights (`load_format=dummy`), and those that are sent, go as tensors."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.random_adapters import config, write_adapter
from flashagents_runtime import sglang_seams as seams
from flashagents_runtime.host.server import Server

pytestmark = pytest.mark.long  # imports torch
TINY = '{"hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 1}'


class Manager:
    """Takes what the real one takes."""

    def __init__(self) -> None:
        self.got: Any = None

    async def load_lora_adapter_from_tensors(self, request: Any, _: object) -> Any:
        self.got = request
        return SimpleNamespace(success=True)


@pytest.fixture
def manager() -> Manager:
    return Manager()


@pytest.fixture
def server(manager: Manager, monkeypatch: pytest.MonkeyPatch) -> Server:
    monkeypatch.setattr(seams, "symbol", lambda name: SimpleNamespace)
    made = Server.__new__(Server)
    made._manager = manager
    made._engine = SimpleNamespace(
        server_args=SimpleNamespace(load_format="dummy"),
        _serialize_tensors_per_rank=lambda tensors, load_format: [tensors],
    )
    return made


@pytest.mark.parametrize(("load_format", "sent"), [("dummy", {}), ("auto", {"sent": True})])
async def test_the_tensors_and_the_configuration_are_the_folders(
    server: Server, manager: Manager, tmp_path: Path, load_format: str, sent: dict[str, bool]
) -> None:
    server._engine.server_args.load_format = load_format
    model = tmp_path / "tiny"
    model.mkdir()
    (model / "config.json").write_text(TINY)
    folder = write_adapter(model, 3)
    assert await server._load_lora(lora_name="role", lora_path=str(folder), pinned=True, **sent) is None
    assert manager.got.lora_name == "role" and manager.got.pinned is True
    assert manager.got.config_dict == config("tiny", 8)
    [tensors] = manager.got.serialized_named_tensors
    assert sorted(name.rsplit("self_attn.")[1] for name in tensors) == [
        "q_proj.lora_A.weight",
        "q_proj.lora_B.weight",
        "v_proj.lora_A.weight",
        "v_proj.lora_B.weight",
    ]


async def test_a_folder_without_tensors_is_refused_with_the_reason(
    server: Server, manager: Manager, tmp_path: Path
) -> None:
    refusal = await server._load_lora(lora_name="role", lora_path=str(tmp_path), pinned=False)
    assert refusal is not None and "adapter_model.safetensors" in refusal
    assert manager.got is None
