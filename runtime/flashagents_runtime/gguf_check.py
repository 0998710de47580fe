"""Is this GGUF file what it says? Found out before and after the `gguf` package reads it.

That package believes the file: an array that says it has 2^60 elements keeps it busy, and fills the memory,
for ever. So the lengths in the header are walked through first; shapes and values are compared afterwards.
"""

from __future__ import annotations

import math
import mmap
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import ModelIntegrityError

if TYPE_CHECKING:
    import numpy as np

_MAX_ENTRIES = 1 << 16  # metadata entries, and tensors
_MAX_ELEMENTS = 1 << 23  # of all arrays together; a vocabulary of 256k tokens has a tenth of that
_MAX_ARRAY_DEPTH = 4
_MAX_DIMENSIONS = 4
_MAX_VALUES = 1 << 40  # of one tensor
_STRING, _ARRAY = 8, 9
_SCALAR_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}


def check_header(path: Path) -> None:
    """Walk through metadata and tensor table of a GGUF file (versions 2 and 3, little-endian).

    Raises:
        ModelIntegrityError: a length points out of the file, or is beyond any reason.
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        if path.stat().st_size < 24:
            raise ModelIntegrityError(
                f"{path} is not a readable GGUF file (it has {path.stat().st_size} bytes)"
            )
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                _Walk(data).whole()
            except _BadError as error:
                raise ModelIntegrityError(f"{path} is not a readable GGUF file ({error})") from None


class _BadError(Exception):
    """What is wrong with the header."""


class _Walk:
    """A position in the file that only goes forward."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = 0
        self._elements = 0

    def whole(self) -> None:
        if self._data[:4] != b"GGUF":
            raise _BadError("it does not begin with GGUF")
        self._at = 4
        version = self._number("<I", 4)
        if version not in (2, 3):
            raise _BadError(f"version {version} is not 2 or 3")
        tensors, entries = self._number("<Q", 8), self._number("<Q", 8)
        if max(tensors, entries) > _MAX_ENTRIES:
            raise _BadError(f"it announces {tensors} tensors and {entries} entries")
        for _ in range(entries):
            self._string()
            self._value(self._number("<I", 4), 0)
        for _ in range(tensors):
            self._tensor()

    def _skip(self, size: int) -> None:
        if size > len(self._data) - self._at:
            raise _BadError(f"at byte {self._at} it announces {size} bytes, and has fewer")
        self._at += size

    def _number(self, form: str, size: int) -> int:
        start = self._at
        self._skip(size)
        return int(struct.unpack_from(form, self._data, start)[0])

    def _string(self) -> None:
        self._skip(self._number("<Q", 8))

    def _value(self, kind: int, depth: int) -> None:
        if kind == _STRING:
            self._string()
        elif kind in _SCALAR_BYTES:
            self._skip(_SCALAR_BYTES[kind])
        elif kind == _ARRAY and depth < _MAX_ARRAY_DEPTH:
            inner, count = self._number("<I", 4), self._number("<Q", 8)
            self._elements += count
            if self._elements > _MAX_ELEMENTS:
                raise _BadError(f"its arrays have more than {_MAX_ELEMENTS} elements")
            if inner in _SCALAR_BYTES:
                self._skip(_SCALAR_BYTES[inner] * count)
                return
            for _ in range(count):
                self._value(inner, depth + 1)
        else:
            raise _BadError(f"at byte {self._at} is a value of the unknown type {kind}")

    def _tensor(self) -> None:
        self._string()
        dimensions = self._number("<I", 4)
        if not 1 <= dimensions <= _MAX_DIMENSIONS:
            raise _BadError(f"a tensor has {dimensions} dimensions")
        if not 0 < math.prod(self._number("<Q", 8) for _ in range(dimensions)) <= _MAX_VALUES:
            raise _BadError("a tensor is empty, or larger than any model's")
        self._skip(4 + 8)  # type and offset


def check_config(config: dict[str, Any]) -> None:
    """Compare the figures of a Llama's configuration; ModelIntegrityError where they clash."""
    sizes = (
        *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
        *("num_key_value_heads", "head_dim", "max_position_embeddings", "vocab_size"),
    )
    for name in sizes:
        if not isinstance(config[name], int) or not 0 < config[name] < 1 << 31:
            raise ModelIntegrityError(f"the GGUF file's {name} is {config[name]!r}")
    for name in ("rope_theta", "rms_norm_eps"):
        if not isinstance(config[name], (int, float)) or not 0 < config[name] < math.inf:
            raise ModelIntegrityError(f"the GGUF file's {name} is {config[name]!r}")
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    if heads % kv_heads or config["head_dim"] * heads != config["hidden_size"] or config["head_dim"] % 2:
        raise ModelIntegrityError(
            f"the GGUF file has {heads} heads, {kv_heads} of keys, for a width of {config['hidden_size']}"
        )
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        if not isinstance(config[name], int) or not 0 <= config[name] < config["vocab_size"]:
            raise ModelIntegrityError(f"the GGUF file's {name} is {config[name]!r}, which is no token")


def check_shapes(config: dict[str, Any], shapes: dict[str, list[int]]) -> None:
    """Compare the tensors of a Llama, by their names in transformers, with its configuration.

    Raises:
        ModelIntegrityError: a tensor is missing or has another shape; the message names it.
    """
    width, inner, vocabulary = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    layers = config["num_hidden_layers"]
    wanted = {"model.embed_tokens.weight": [vocabulary, width], "model.norm.weight": [width]}
    if not config["tie_word_embeddings"]:
        wanted["lm_head.weight"] = [vocabulary, width]
    of_a_layer = {
        "input_layernorm": [width],
        "post_attention_layernorm": [width],
        "self_attn.q_proj": [width, width],
        "self_attn.k_proj": [keys, width],
        "self_attn.v_proj": [keys, width],
        "self_attn.o_proj": [width, width],
        "mlp.gate_proj": [inner, width],
        "mlp.up_proj": [inner, width],
        "mlp.down_proj": [width, inner],
    }
    if layers * len(of_a_layer) + len(wanted) != len(shapes):
        raise ModelIntegrityError(f"the GGUF file has {len(shapes)} tensors, which are not {layers} layers")
    for i in range(layers):
        wanted |= {f"model.layers.{i}.{name}.weight": shape for name, shape in of_a_layer.items()}
    for name, shape in wanted.items():
        if shapes.get(name) != shape:
            raise ModelIntegrityError(
                f"the GGUF file's tensor {name} has the shape {shapes.get(name)}, by its metadata {shape}"
            )


def check_finite(name: str, values: np.ndarray[Any, Any]) -> None:
    """ModelIntegrityError where a tensor holds a NaN or an infinity."""
    import numpy as np

    if not np.isfinite(values).all():
        raise ModelIntegrityError(
            f"the GGUF file's tensor {name} holds values that are no numbers (NaN, Inf)"
        )


__all__ = ["check_config", "check_finite", "check_header", "check_shapes"]
