"""From a GGUF file of a Llama-type model to a bf16 Hugging Face folder, with gguf and numpy alone.

transformers can load GGUF too. For the default model its weights equal ours bit for bit, but it needs
torch and accelerate, takes seven times as long, and its tokenizer is wrong: digits are not split, `eos`
becomes `<|im_start|>`, the context length is lost, and the decoder is not the byte-level one.
"""

from __future__ import annotations

import functools
import json
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import FlashAgentsError, ModelIntegrityError, UnsupportedFeatureError
from .gguf_check import check_config, check_finite, check_header, check_shapes
from .types import Progress, ProgressCallback

if TYPE_CHECKING:
    import numpy as np

STAGE = "Converting the model"
# What the folder says it was written by: newer values make transformers warn of a tokenizer bug it has not.
TRANSFORMERS_VERSION = "4.51.0"

_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
NORMAL, CONTROL, USER_DEFINED = 1, 3, 4  # gguf.TokenType


def convert_gguf(source: Path, folder: Path, *, progress: ProgressCallback | None = None) -> None:
    """Write config, weights (bf16 safetensors), tokenizer and chat template of `source` into `folder`.

    Args:
        source: a GGUF file of architecture `llama` with the `smollm` pre-tokenizer.
        folder: an existing folder.
        progress: told the fraction of tensors that are written.

    Raises:
        UnsupportedFeatureError: another architecture or pre-tokenizer.
        ModelIntegrityError: the file is no GGUF file, lacks something, or contradicts itself.
        OSError: the folder cannot be written, for example because the disk is full.
    """
    check_header(source)
    try:
        _convert(source, folder, progress)
    except (FlashAgentsError, OSError, MemoryError):
        raise
    except Exception as error:  # whatever numpy, gguf or tokenizers say of a file that makes no sense
        raise ModelIntegrityError(f"{source} is not a readable GGUF file ({error!r:.300})") from error


def _convert(source: Path, folder: Path, progress: ProgressCallback | None) -> None:
    import gguf

    reader = gguf.GGUFReader(source)
    meta = _Metadata({name: entry.contents() for name, entry in reader.fields.items()}, source)
    if meta["general.architecture"] != "llama" or meta["tokenizer.ggml.pre"] != "smollm":
        raise UnsupportedFeatureError(
            f"{source}: only GGUF files of architecture llama with the smollm pre-tokenizer are converted;"
            " pass a Hugging Face folder instead"
        )
    tie = not any(tensor.name == "output.weight" for tensor in reader.tensors)
    config = _config(meta, tie)
    check_config(config)
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", _generation_config(meta))
    _write_json(folder / "tokenizer_config.json", _tokenizer_config(meta))
    _write_tokenizer(folder / "tokenizer.json", meta)
    heads = {"attn_q": meta["llama.attention.head_count"], "attn_k": meta["llama.attention.head_count_kv"]}
    _write_weights(folder / "model.safetensors", reader.tensors, config, heads, progress)


class _Metadata:
    """GGUF's key-value part, with an error of ours for a missing key."""

    def __init__(self, values: dict[str, Any], source: Path) -> None:
        self._values = values
        self._source = source

    def __getitem__(self, key: str) -> Any:
        try:
            return self._values[key]
        except KeyError:
            raise ModelIntegrityError(f"{self._source} lacks the entry {key}") from None

    def token(self, role: str) -> str:
        """The text of the special token with a role: `bos`, `eos` or `padding`."""
        return str(self["tokenizer.ggml.tokens"][self[f"tokenizer.ggml.{role}_token_id"]])


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _config(meta: _Metadata, tie_word_embeddings: bool) -> dict[str, Any]:
    heads, width = meta["llama.attention.head_count"], meta["llama.embedding_length"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": width,
        "intermediate_size": meta["llama.feed_forward_length"],
        "num_hidden_layers": meta["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": meta["llama.attention.head_count_kv"],
        "head_dim": width // heads,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "max_position_embeddings": meta["llama.context_length"],
        # GGUF keeps it as float32, where 1e-5 reads 9.999999747378752e-06
        "rms_norm_eps": float(f"{meta['llama.attention.layer_norm_rms_epsilon']:.1e}"),
        "rope_theta": meta["llama.rope.freq_base"],
        "vocab_size": len(meta["tokenizer.ggml.tokens"]),
        "tie_word_embeddings": tie_word_embeddings,
        "bos_token_id": meta["tokenizer.ggml.bos_token_id"],
        "eos_token_id": meta["tokenizer.ggml.eos_token_id"],
        "pad_token_id": meta["tokenizer.ggml.padding_token_id"],
        "initializer_range": 0.02,
        "use_cache": True,
        "torch_dtype": "bfloat16",
        "transformers_version": TRANSFORMERS_VERSION,
    }


def _generation_config(meta: _Metadata) -> dict[str, Any]:
    return {
        "bos_token_id": meta["tokenizer.ggml.bos_token_id"],
        "eos_token_id": [meta["tokenizer.ggml.eos_token_id"]],
        "pad_token_id": meta["tokenizer.ggml.padding_token_id"],
        "do_sample": False,
    }


def _tokenizer_config(meta: _Metadata) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": meta["llama.context_length"],
        "clean_up_tokenization_spaces": False,
        "add_bos_token": False,
        "bos_token": meta.token("bos"),
        "eos_token": meta.token("eos"),
        "pad_token": meta.token("padding"),
        "chat_template": meta["tokenizer.chat_template"],
    }


def _write_tokenizer(path: Path, meta: _Metadata) -> None:
    """Byte-level BPE with single digits, as SmolLM2's own tokenizer.json has it."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens, kinds = meta["tokenizer.ggml.tokens"], meta["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in meta["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({text: i for i, text in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    by_kind = {
        wanted: [text for text, kind in zip(tokens, kinds, strict=True) if kind == wanted]
        for wanted in (CONTROL, USER_DEFINED)
    }
    tokenizer.add_special_tokens(
        [AddedToken(text, special=True, normalized=False) for text in by_kind[CONTROL]]
    )
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in by_kind[USER_DEFINED]])
    # Its own `save` reports a full disk as a plain Exception.
    path.write_text(tokenizer.to_str(pretty=True), encoding="utf-8")


def _write_weights(
    path: Path,
    tensors: list[Any],
    config: dict[str, Any],
    heads: dict[str, int],
    progress: ProgressCallback | None,
) -> None:
    """Stream the tensors into a safetensors file: eight bytes of length, a JSON header, the data.

    safetensors' own writers want torch for bf16, and all tensors in memory at once.
    """
    plan: list[tuple[str, list[int], Callable[[], np.ndarray[Any, Any]]]] = []
    for tensor in tensors:
        shape = [int(n) for n in reversed(tensor.shape)]
        name, permuted_heads = _hugging_face_name(tensor.name, heads)
        plan.append((name, shape, functools.partial(_as_bf16, tensor, shape, permuted_heads)))
    check_shapes(config, {name: shape for name, shape, _ in plan})
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, shape, _ in plan:
        size = 2
        for n in shape:
            size *= n
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for i, (_, _, read) in enumerate(plan):
            if progress is not None:
                progress(Progress(STAGE, i / len(plan)))
            out.write(read().tobytes())
    if progress is not None:
        progress(Progress(STAGE, 1.0))


def _hugging_face_name(name: str, heads: dict[str, int]) -> tuple[str, int]:
    """The tensor's name in transformers, and the number of heads whose rows llama.cpp has permuted (or 0)."""
    base, _, kind = name.rpartition(".")
    match = re.fullmatch(r"blk\.(\d+)\.(\w+)", base)
    try:
        if match is None:
            return f"{_TOP[base]}.{kind}", 0
        return f"model.layers.{match[1]}.{_LAYER[match[2]]}.{kind}", heads.get(match[2], 0)
    except KeyError:
        raise UnsupportedFeatureError(f"the GGUF tensor {name} has no place in a Llama model") from None


def _as_bf16(tensor: Any, shape: list[int], permuted_heads: int) -> np.ndarray[Any, Any]:
    """The tensor's values in bf16, as uint16: dequantised in float32, rounded to nearest, ties to even."""
    import numpy as np
    from gguf.quants import dequantize

    values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32).reshape(shape)
    check_finite(tensor.name, values)
    if permuted_heads:  # llama.cpp keeps the two halves of rotary positions interleaved
        rows = shape[0] // permuted_heads // 2
        values = values.reshape(permuted_heads, rows, 2, *shape[1:]).swapaxes(1, 2).reshape(shape)
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return rounded.astype(np.uint16)


__all__ = ["STAGE", "convert_gguf"]
