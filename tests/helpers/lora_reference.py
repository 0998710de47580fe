"""What each sharing scheme computes, in plain torch: the definition that the engine is tested against.

Llama and Qwen2 (bias on q, k, v), one request at a time, float64, from the folders of model and adapters.
Nothing of SGLang or of the kernels is used. A `Context` is what a group has cached for one prefix; who
extends it, and in which order, is up to the test.

================  =============================================================================
``none``          the agent's own context: K, and V with the agent's low-rank part
``full``          K, V as the agent that wrote them computed them; read as they are by all
``base_lr``       K, V_base and `x A_v` of the agent that wrote them; the reader adds its own `B`
``base_lr_own``   the same of adapters that do not share `A_v`: the row is made by the writer's
``precomputed``   K, V_base and `x A_j` for all members j; the reader takes its own row and `B`
``base``          K and V_base of the agent that wrote them; rows of each agent from its own pass over the
                  context, which reads the shared K and V_base and changes neither (LR prefill)
``droidspeak``    as `full`, but the reader computes the first `recompute` layers of the context anew
================  =============================================================================
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

F = torch.float64


@dataclass
class Context:
    """Cached tokens: by layer K, V, and rows by the name of who reads them ("" where all share one)."""

    tokens: list[int] = field(default_factory=list)
    k: list[Any] = field(default_factory=list)
    v: list[Any] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)

    def cut(self, n: int) -> Context:
        """The first `n` tokens of it."""
        return Context(
            self.tokens[:n],
            [k[:n] for k in self.k],
            [v[:n] for v in self.v],
            [{name: w[:n] for name, w in rows.items()} for rows in self.rows],
        )

    def valid(self, name: str) -> int:
        """Tokens whose rows of `name` are there (`base`)."""
        return len(self.rows[0].get(name, ())) if self.rows else 0


@dataclass
class Scores:
    """Log-probs of the tokens that were fed, but the first, and of a greedy continuation."""

    inputs: list[float]
    ids: list[int]
    outputs: list[float]


class Backbone:
    """A model and its adapters.

    Args:
        model: its folder.
        adapters: folders of PEFT adapters by name.
        scheme: see the table above.
        device: where to compute.
    """

    def __init__(
        self, model: Path, adapters: Mapping[str, Path], scheme: str, *, device: str = "cpu"
    ) -> None:
        self.c = json.loads((model / "config.json").read_text())
        self.w = {name: t.to(device, F) for name, t in load_file(model / "model.safetensors").items()}
        self.device = device
        self.scheme = scheme
        self.layers = self.c["num_hidden_layers"]
        self.q_heads, self.kv_heads = self.c["num_attention_heads"], self.c["num_key_value_heads"]
        self.head = self.c.get("head_dim") or self.c["hidden_size"] // self.q_heads
        theta = self.c.get("rope_theta") or self.c["rope_parameters"]["rope_theta"]
        self.frequencies = theta ** (-torch.arange(0, self.head, 2, dtype=F, device=device) / self.head)
        self.adapters: dict[str, tuple[dict[str, Any], float]] = {}
        for name, path in adapters.items():
            config = json.loads((path / "adapter_config.json").read_text())
            tensors = load_file(path / "adapter_model.safetensors")
            self.adapters[name] = (
                {key.removeprefix("base_model.model."): t.to(device, F) for key, t in tensors.items()},
                config["lora_alpha"] / config["r"],
            )

    # ---- pieces of a layer

    def _norm(self, x: Any, name: str) -> Any:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.c["rms_norm_eps"]) * self.w[name]

    def _linear(self, x: Any, name: str) -> Any:
        y = x @ self.w[name + ".weight"].T
        return y + self.w[name + ".bias"] if name + ".bias" in self.w else y

    def _low(self, x: Any, name: str, agent: str) -> Any:
        """`x A` of one adapter."""
        return x @ self.adapters[agent][0][name + ".lora_A.weight"].T

    def _up(self, low: Any, name: str, agent: str) -> Any:
        """`low B`, scaled."""
        tensors, scaling = self.adapters[agent]
        return scaling * (low @ tensors[name + ".lora_B.weight"].T)

    def _rotate(self, x: Any, first: int) -> Any:
        places = torch.arange(first, first + len(x), dtype=F, device=self.device)
        angle = places[:, None, None] * self.frequencies
        a, b = x.chunk(2, -1)
        cos, sin = angle.cos(), angle.sin()
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def _rows(self, x: Any, name: str, agent: str | None) -> dict[str, Any]:
        """The rows that a token of `agent` leaves behind."""
        if not self.adapters or self.scheme in ("none", "full", "droidspeak"):
            return {}
        if self.scheme == "base_lr":
            return {"": self._low(x, name, next(iter(self.adapters)))}
        if self.scheme == "base_lr_own" and agent is not None:
            return {"": self._low(x, name, agent)}
        if self.scheme == "precomputed":
            return {other: self._low(x, name, other) for other in self.adapters}
        return {agent: self._low(x, name, agent)} if agent is not None else {}

    # ---- passes

    def extend(
        self, context: Context, ids: Sequence[int], agent: str | None, *, start: int | None = None
    ) -> Any:
        """Feed `ids` behind the first `start` tokens of `context`; returns log-probs `[len(ids), vocab]`.

        `start` is the context's length but under `base` and `droidspeak`: tokens from `start` on that
        the context holds already are passed through again, and keep their K and V. The context grows.
        """
        held = len(context.tokens)
        start = held if start is None else start
        again = held - start
        assert list(ids[:again]) == context.tokens[start:]
        x = self.w["model.embed_tokens.weight"][torch.tensor(list(ids), device=self.device)]
        for i in range(self.layers):
            p = f"model.layers.{i}."
            x = x + self._attend(self._norm(x, p + "input_layernorm.weight"), i, context, agent, start, again)
            h = self._norm(x, p + "post_attention_layernorm.weight")
            gate = torch.nn.functional.silu(self._linear(h, p + "mlp.gate_proj"))
            x = x + self._linear(gate * self._linear(h, p + "mlp.up_proj"), p + "mlp.down_proj")
        context.tokens += list(ids[again:])
        head = self.w.get("lm_head.weight", self.w["model.embed_tokens.weight"])
        return (self._norm(x, "model.norm.weight") @ head.T).log_softmax(-1)

    def _attend(self, h: Any, i: int, context: Context, agent: str | None, start: int, again: int) -> Any:
        p = f"model.layers.{i}.self_attn."
        q, k, v = (self._linear(h, f"{p}{name}_proj") for name in "qkv")
        if agent is not None:
            q = q + self._up(self._low(h, p + "q_proj", agent), p + "q_proj", agent)
        if agent is not None and self.scheme in ("none", "full", "droidspeak"):
            v = v + self._up(self._low(h, p + "v_proj", agent), p + "v_proj", agent)
        q = self._rotate(q.view(len(h), self.q_heads, self.head), start)
        k = self._rotate(k.view(len(h), self.kv_heads, self.head), start)
        v = v.view(len(h), self.kv_heads, self.head)
        rows = self._rows(h, p + "v_proj", agent)
        if len(context.k) <= i:
            context.k.append(k[:0])
            context.v.append(v[:0])
            context.rows.append({})
        if self.scheme == "droidspeak" and again and i < self.recompute:
            context.k[i], context.v[i] = context.k[i][:start], context.v[i][:start]
            again = 0
        context.k[i] = torch.cat([context.k[i], k[again:]])
        context.v[i] = torch.cat([context.v[i], v[again:]])
        for name, w in rows.items():
            held = context.rows[i].get(name, w[:0])
            # Rows of an agent that came late to a context begin where they were first computed.
            context.rows[i][name] = torch.cat([held[:start], w])
        value = context.v[i]
        reads = "" if self.scheme.startswith("base_lr") else agent
        if agent is not None and rows:
            up = self._up(context.rows[i][str(reads)], p + "v_proj", agent)
            value = value + up.view(-1, self.kv_heads, self.head)
        group = self.q_heads // self.kv_heads
        s = torch.einsum("nhd,mhd->hnm", q, context.k[i].repeat_interleave(group, 1)) / self.head**0.5
        places = torch.arange(len(value), device=self.device)
        late = places[None] > (start + places[: len(h)])[:, None]
        weights = s.masked_fill(late, float("-inf")).softmax(-1)
        out = torch.einsum("hnm,mhd->nhd", weights, value.repeat_interleave(group, 1))
        return self._linear(out.reshape(len(h), -1), p + "o_proj")

    recompute = 0
    """Layers that a reader computes anew under `droidspeak`."""

    def serve(self, context: Context, ids: Sequence[int], agent: str | None, n: int) -> Scores:
        """Serve the prompt that continues `context` with `ids`, greedily, `n` tokens; the context grows.

        Under `base` the agent first catches up with what it has not seen, in the same pass.
        """
        start = len(context.tokens)
        if self.scheme == "base" and agent is not None:
            start = min(start, context.valid(agent))
        if self.scheme == "droidspeak":
            start = 0
        again = context.tokens[start:]
        found = self.extend(context, [*again, *ids], agent, start=start)[len(again) :]
        inputs = [float(found[j, t]) for j, t in enumerate(ids[1:])]
        out, logprobs, last = [], [], found[-1]
        for j in range(n):
            token = int(last.argmax())
            out.append(token)
            logprobs.append(float(last[token]))
            if j < n - 1:
                last = self.extend(context, [token], agent)[-1]
        return Scores(inputs, out, logprobs)
