"""Is this folder a sound LoRA adapter? Found out before an engine is asked to load it.

SGLang compares shapes only when an adapter's first request is served, and there by assertions that end the
scheduler; NaN it takes as it is. So a broken adapter is refused here, by its name, and the engine goes on.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from .errors import ModelIntegrityError, ModelNotFoundError
from .model_check import check_safetensors, read_json

#: What a projection takes and gives, as names of `_widths`.
_PROJECTIONS = {
    "q_proj": ("hidden", "q"),
    "k_proj": ("hidden", "kv"),
    "v_proj": ("hidden", "kv"),
    "o_proj": ("q", "hidden"),
    "gate_proj": ("hidden", "inner"),
    "up_proj": ("hidden", "inner"),
    "down_proj": ("inner", "hidden"),
}
#: Models whose projections have the widths of `_widths`; of others only the rank is compared.
_PLAIN = frozenset({"llama", "mistral", "qwen2", "qwen3"})
_LARGEST_RANK = 4096
_TENSOR = re.compile(r"(?:^|\.)(?P<module>\w+)\.lora_(?P<part>[AB])(?:\.\w+)?\.weight$")
_LAYER = re.compile(r"\.layers\.(\d+)\.")
_VALUES = 1 << 20  # looked at in one piece


def check_adapter(name: str, folder: str | Path, model: str | Path | None = None) -> None:
    """Check configuration and weights of a PEFT folder; reads all of its weights, in pieces.

    Links are followed, as in a model's folder (hub caches are made of links), but only to ordinary files.

    Args:
        name: what the adapter is called, for the message.
        folder: where `adapter_config.json` and `*.safetensors` are.
        model: folder of the model that it is for; None compares no shapes with it.

    Raises:
        ModelNotFoundError: there is no such folder.
        ModelIntegrityError: a file is missing, broken, of a kind that is not read, or does not fit the model.
    """
    path = Path(folder).expanduser()
    try:
        if not path.is_dir():
            raise ModelNotFoundError(f"{path} is not a folder")
        if not (path / "adapter_config.json").exists():
            raise ModelNotFoundError(f"{path} has no adapter_config.json, so it is no PEFT folder")
        rank = _rank(read_json(path / "adapter_config.json"))
        if (path / "added_tokens.json").exists():
            read_json(path / "added_tokens.json")
        shape = None if model is None else _Shape.of(Path(model))
        for file in _weights(path):
            check_safetensors(file)
            _check_tensors(file, rank, shape)
    except OSError as error:  # a name that is too long, a folder that must not be read
        raise ModelNotFoundError(f"LoRA adapter {name!r}: {error}") from error
    except ModelNotFoundError as error:
        raise ModelNotFoundError(
            f"LoRA adapter {name!r}: {error}: give the folder that PEFT wrote"
        ) from error
    except ModelIntegrityError as error:
        raise ModelIntegrityError(f"LoRA adapter {name!r}: {error}") from error
    except ValueError as error:  # a null byte in a path
        raise ModelNotFoundError(f"LoRA adapter {name!r}: {folder!r} is no path: {error}") from error


def check_adapters(lora_paths: Any, model: str | Path | None) -> None:
    """`check_adapter` for all of SGLang's `lora_paths` that are on this disk; hub ids are left to SGLang."""
    for name, path in adapter_paths(lora_paths):
        if Path(path).is_absolute() or path.startswith((".", "~")) or Path(path).exists():
            check_adapter(name, path, model)


def adapter_paths(lora_paths: Any) -> list[tuple[str, str]]:
    """Name and path of each of SGLang's `lora_paths`: a mapping, or a list of texts or mappings."""
    if isinstance(lora_paths, Mapping):
        return [(str(name), str(path)) for name, path in lora_paths.items()]
    found = []
    for entry in lora_paths or ():
        if isinstance(entry, Mapping):
            found.append((str(entry.get("lora_name")), str(entry.get("lora_path"))))
        else:
            name, _, path = str(entry).partition("=")
            found.append((name, path or name))
    return found


class _Shape:
    """What an adapter must know of its model."""

    def __init__(self, layers: int, widths: dict[str, int]) -> None:
        self.layers = layers
        self.widths = widths

    @classmethod
    def of(cls, model: Path) -> _Shape | None:
        """None where the model's configuration does not say it in the plain way."""
        if not (model / "config.json").exists():
            return None
        config = read_json(model / "config.json")
        names = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size")
        layers, hidden, heads, inner = (_count(config.get(key)) for key in names)
        if str(config.get("model_type")) not in _PLAIN or not (layers and hidden and heads and inner):
            return None
        head = _count(config.get("head_dim")) or hidden // heads
        kv = (_count(config.get("num_key_value_heads")) or heads) * head
        return cls(layers, {"hidden": hidden, "q": heads * head, "kv": kv, "inner": inner})


def _count(value: Any) -> int:
    """A whole number above 0, else 0."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _rank(config: dict[str, Any]) -> int:
    """The rank that a configuration names; ModelIntegrityError where the configuration is not one."""
    kind, rank, alpha = config.get("peft_type"), config.get("r"), config.get("lora_alpha")
    targets = config.get("target_modules")
    if str(kind).lower() != "lora":
        raise ModelIntegrityError(f"its peft_type is {kind!r}, not 'LORA'")
    if not 0 < _count(rank) <= _LARGEST_RANK:
        raise ModelIntegrityError(f"its rank r is {rank!r}, no number from 1 to {_LARGEST_RANK}")
    if isinstance(alpha, bool) or not isinstance(alpha, (int, float)) or not _is_finite(alpha):
        raise ModelIntegrityError(f"its lora_alpha is {alpha!r}, no number")
    texts = [targets] if isinstance(targets, str) else targets
    if not isinstance(texts, list) or not texts or not all(isinstance(t, str) and t for t in texts):
        raise ModelIntegrityError(f"its target_modules are {targets!r}, no list of names")
    return _count(rank)


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _weights(path: Path) -> list[Path]:
    """The files that SGLang would read."""
    files = sorted(path.glob("*.safetensors"))
    for file in files:
        if not file.is_file():
            raise ModelIntegrityError(f"{file} is not an ordinary file")
    if not files:
        others = sorted(p.name for pattern in ("*.bin", "*.pt") for p in path.glob(pattern))
        if others:
            raise ModelIntegrityError(
                f"its weights are pickles ({', '.join(others)}), which are not read: load it with PEFT once "
                "and save_pretrained it; that writes adapter_model.safetensors"
            )
        raise ModelIntegrityError(f"{path} has no weights (adapter_model.safetensors)")
    return files


def _check_tensors(file: Path, rank: int, shape: _Shape | None) -> None:
    """Ranks, shapes and values of a file whose header `check_safetensors` has found to be sound."""
    with file.open("rb") as f:
        (length,) = struct.unpack("<Q", f.read(8))
        header: dict[str, Any] = json.loads(f.read(length))
    header.pop("__metadata__", None)
    if not header:
        raise ModelIntegrityError(f"{file} holds no tensors")
    for tensor, entry in header.items():
        _check_shape(tensor, entry["shape"], rank, shape)
        _check_values(file, tensor, entry["dtype"], 8 + length, entry["data_offsets"])


def _check_shape(tensor: str, size: list[int], rank: int, shape: _Shape | None) -> None:
    layer = _LAYER.search(tensor)
    if shape is not None and layer is not None and int(layer[1]) >= shape.layers:
        raise ModelIntegrityError(f"tensor {tensor} is of a layer that the model of {shape.layers} has not")
    match = _TENSOR.search(tensor)
    if match is None or len(size) != 2:  # embeddings, experts: their layouts are SGLang's to know
        return
    inner, width = size if match["part"] == "A" else reversed(size)
    if inner != rank:
        raise ModelIntegrityError(f"tensor {tensor} has shape {size}, which is not of rank {rank}")
    if shape is None or match["module"] not in _PROJECTIONS:
        return
    wanted = shape.widths[_PROJECTIONS[match["module"]][match["part"] == "B"]]
    if width != wanted:
        raise ModelIntegrityError(f"tensor {tensor} has shape {size}; the model's width there is {wanted}")


def _check_values(file: Path, tensor: str, dtype: str, start: int, offsets: Iterable[int]) -> None:
    """No NaN and no infinity: one of them in an adapter is one in each answer through it."""
    import numpy as np

    kinds: dict[str, Any] = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": np.uint16}
    if dtype not in kinds:
        raise ModelIntegrityError(f"tensor {tensor} holds {dtype}; adapters hold one of {', '.join(kinds)}")
    begin, end = offsets
    kind = np.dtype(kinds[dtype])
    for at in range(begin, end, _VALUES * kind.itemsize):
        count = min(_VALUES, (end - at) // kind.itemsize)
        values = np.fromfile(file, kind, count, offset=start + at)
        # bfloat16 is unknown to numpy: all bits of its exponent are set in NaN and in infinities.
        bad = (values & 0x7F80) == 0x7F80 if dtype == "BF16" else ~np.isfinite(values)
        if bad.any():
            raise ModelIntegrityError(f"tensor {tensor} holds NaN or infinity")


__all__ = ["adapter_paths", "check_adapter", "check_adapters"]
