"""What a model folder says about its model: context length, vision, sampling defaults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from .chat_tokenizer import read_json
from .errors import ModelIntegrityError
from .types import SamplingParams

# The names under which configurations hold the longest sequence, in SGLang's order of preference
# (sglang/srt/utils/hf_transformers_utils.py, CONTEXT_LENGTH_KEYS).
_CONTEXT_KEYS = (
    "max_sequence_length",
    "seq_length",
    "max_seq_len",
    "model_max_length",
    "max_position_embeddings",
)

# What SGLang's server takes from generation_config.json (`--sampling-defaults model`).
_SAMPLING_KEYS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """A model, by its configuration files.

    Attributes:
        name: the folder's or the hub's name.
        model_type: transformers' name of the model's kind, such as "qwen3"; "" where unknown.
        architectures: the model classes.
        context_length: longest prompt + answer, tokens; None where the configuration does not say.
        vision: the model has an image encoder.
        sampling: how its makers want it sampled, over SGLang's defaults.
    """

    name: str
    model_type: str = ""
    architectures: list[str] = []
    context_length: int | None = None
    vision: bool = False
    sampling: SamplingParams = SamplingParams()


def read_model_card(folder: str | Path, name: str | None = None) -> ModelCard:
    """The card of a model folder.

    Args:
        folder: holds `config.json` and perhaps `generation_config.json`.
        name: the model's name, where the folder's own name is not it.

    Raises:
        ModelIntegrityError: a configuration file is broken.
    """
    folder = Path(folder)
    try:
        return _card(folder, name)
    except (TypeError, ValueError, AttributeError, ArithmeticError) as e:  # msgspec's error is a ValueError
        raise ModelIntegrityError(
            f"a configuration file of {folder} holds values of the wrong kind ({e}): fetch the model again"
        ) from e


def _card(folder: Path, name: str | None) -> ModelCard:
    config = read_json(folder / "config.json")
    text = config.get("text_config")
    text_config = text if isinstance(text, dict) else config
    return ModelCard(
        name=name or folder.name,
        model_type=str(config.get("model_type") or ""),
        architectures=[str(a) for a in config.get("architectures") or []],
        context_length=_context_length(text_config),
        vision=any(key in config for key in ("vision_config", "visual", "mm_vision_tower")),
        sampling=_sampling(read_json(folder / "generation_config.json")),
    )


def _context_length(config: dict[str, Any]) -> int | None:
    factor = 1.0
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    # Llama-3-style and "original_max_position_embeddings" scalings are in the figure already.
    if "original_max_position_embeddings" not in scaling and scaling.get("rope_type") != "llama3":
        factor = float(scaling.get("factor") or 1.0)
    for key in _CONTEXT_KEYS:
        value = config.get(key)
        if isinstance(value, int) and value > 0:
            return int(value * factor)
    return None


def _sampling(config: dict[str, Any]) -> SamplingParams:
    found = {key: config[key] for key in _SAMPLING_KEYS if config.get(key) is not None}
    return msgspec.convert(found, SamplingParams, strict=False)


__all__ = ["ModelCard", "read_model_card"]
