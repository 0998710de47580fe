"""What tests of notebooks need: a model folder without weights, and a Jupyter in a folder of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from helpers.tiny_tokenizer import tiny_tokenizer

TEMPLATE = (
    "{% for m in messages %}{{ m.role + ': ' + m.content + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)


def tiny_model(parent: Path) -> Path:
    """A model folder without weights, for stub hosts."""
    folder = parent / "model"
    folder.mkdir()
    tiny_tokenizer().save(str(folder / "tokenizer.json"))
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    return folder


def jupyter_folders(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jupyter, IPython and kernels write into this folder alone."""
    for name in ("JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(folder / name.lower()))


__all__ = ["TEMPLATE", "jupyter_folders", "tiny_model"]
