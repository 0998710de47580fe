"""The state of one scheduler: members, projections, rows, and which request is whose."""

from __future__ import annotations

import logging
from typing import Any

from ..errors import SeamError
from .adapters import Misfit
from .config import SharingConfig
from .heads import Heads, local
from .members import Group, Members
from .rows import Projections, row_bytes

logger = logging.getLogger(__name__)


class Sharing:
    """What the hooks of one scheduler process share.

    It comes into being with SGLang's LoRAManager, is given its tables when that knows the adapters'
    ranks (`open_tables`), its rows when the KV pool is there (`open_rows`), and its tree at the end.
    """

    def __init__(self, config: SharingConfig) -> None:
        self.config = config
        self.members = Members(config)
        self.manager: Any = None
        self.projections: Projections | None = None
        self.heads: Heads | None = None
        """Those of this rank, once the tables are open."""
        self.rows: Any = None
        """`[layers, slots, r]` or `[layers, slots, members, r]`: the slots are those of the KV pool."""
        self.numbers: Any = None
        """int32 `[request slots]`: the member's number of the request at each `req_pool_idx`."""
        self.backend: Any = None
        """Our attention backend, once it is built."""
        self.tree: Any = None
        self.again: list[int] = []
        """`base`: of each request of the next pass, how many of its new tokens the tree holds already."""

    # ---- sizes

    def sizes(self) -> tuple[int, int]:
        """Rows of Q's and of K's (or V's) part of a stacked `lora_B`, for all ranks' heads together."""
        config = self.manager.base_hf_config
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        kv_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        return config.num_attention_heads * head_dim, kv_heads * head_dim

    @property
    def sets(self) -> int:
        """Rows at each slot and layer."""
        if not self.config.keeps_rows:
            return 0
        return len(self.config.members) if self.config.row_per_member else 1

    def row_bytes(self, itemsize: int) -> int:
        """Bytes of a token's rows in all layers; every rank keeps all of them."""
        if self.projections is None:
            return 0
        return row_bytes(self.projections.up.shape[0], self.sets, self.projections.rank, itemsize)

    # ---- the life of a scheduler

    def open_tables(self) -> None:
        """The ranks are known: put all projections on the device.

        Rows are as wide as the largest rank of the members; where some are to be loaded later, as wide as
        SGLang's `max_lora_rank`.
        """
        if not self.config.keeps_rows or self.projections is not None:
            return
        values = self.members.values
        complete = len(values) == len(self.config.members)
        rank = max(value.rank for value in values.values()) if complete else self.manager.max_lora_rank
        self.heads = Heads.of(self._projection(0))
        hf = self.manager.base_hf_config
        self.projections = Projections(
            hf.num_hidden_layers, len(self.config.members), self.heads.kv, self.heads.size, hf.hidden_size,
            rank, row_per_member=self.config.row_per_member, dtype=self.manager.dtype,
            device=self.manager.device,
        )  # fmt: skip
        for name in values:
            self._put(name)

    def _projection(self, layer: int) -> Any:
        """A layer's QKVParallelLinearWithLoRA."""
        for name, module in self.manager.lora_modules[layer].items():
            if name.endswith("qkv_proj"):
                return module
        raise SeamError(
            f"lora_sharing={self.config.scheme!r} cannot run: adapters reach no q_proj and v_proj of layer "
            f"{layer}; lora_target_modules must name both"
        )

    def _put(self, name: str) -> None:
        """A member's projections go to the device, those of this rank's heads."""
        assert self.projections is not None
        value, layers = self.members.values[name], range(self.projections.up.shape[0])
        modules = [self._projection(i) for i in layers]
        self.projections.put(self.members.numbers[name], local(value, modules, *self.sizes()))

    def open_rows(self, pool: Any, request_slots: int) -> None:
        """The KV pool is there: allocate a row for each of its slots.

        Args:
            pool: SGLang's MHATokenToKVPool.
            request_slots: rows of `req_to_token`.
        """
        import torch

        if self.projections is None:
            raise SeamError("lora_sharing: the KV pool was built before the LoRA manager")
        keys = pool.get_key_buffer(0)
        layers, _, kv_heads, rank, head_dim = self.projections.up.shape
        if tuple(keys.shape[1:]) != (kv_heads, head_dim):
            raise SeamError(
                f"lora_sharing: the KV pool keeps {keys.shape[1]} heads of {keys.shape[2]}, the adapters of "
                f"this rank have {kv_heads} of {head_dim}"
            )
        sets = (self.sets,) if self.config.row_per_member else ()
        self.rows = torch.zeros(layers, keys.shape[0], *sets, rank, dtype=keys.dtype, device=keys.device)
        self.numbers = torch.zeros(request_slots, dtype=torch.int32, device=keys.device)
        for layer in range(layers):
            self._projection(layer).flashagents_layer = layer

    # ---- adapters

    def loaded(self, ref: Any) -> None:
        """SGLang has loaded the adapter of `ref` (LoRARef) to the CPU.

        Raises:
            Misfit: it belongs to a group and does not fit.
        """
        name = ref.lora_name
        if name not in self.members.numbers:
            return
        width = self.projections.rank if self.projections is not None else None
        try:
            self.members.admit(
                name, ref.lora_id, self.manager.loras[ref.lora_id], *self.sizes(), max_rank=width
            )
        except Misfit as e:
            message = (
                f"LoRA adapter {name!r} does not fit its sharing group {self.config.group_of(name)!r} "
                f"(lora_sharing={self.config.scheme!r}): {e}"
            )
            self.members.refused[name] = message
            raise Misfit(message) from None
        if self.projections is not None:
            self._put(name)
        group = self.members.group(ref.lora_id)
        if self.config.scheme == "precomputed" and group is not None and self.tree is not None:
            # What is cached holds no rows of this member.
            self.tree.drop_group(group)

    def unloaded(self, lora_id: str) -> None:
        """SGLang has unloaded an adapter."""
        group = self.members.group(lora_id)
        name = self.members.forget(lora_id)
        if name is None or group is None:
            return
        number = self.members.numbers[name]
        if self.projections is not None:
            self.projections.clear(number)
        if self.tree is None:
            return
        # Under base_lr the next group of adapters may bring another A.
        last = not any(other in self.members.loaded for other in self.config.groups[group.name])
        if self.config.scheme == "precomputed" or (self.config.scheme == "base_lr" and last):
            self.tree.drop_group(group)
        else:
            self.tree.drop_writer(group, number)

    # ---- requests

    def group_of(self, lora_id: str | None) -> Group | None:
        """The group of a request with this adapter."""
        return self.members.group(lora_id)

    def figures(self) -> dict[str, Any]:
        """For the handshake; sizes in bytes, those of one rank."""
        out: dict[str, Any] = {
            "scheme": self.config.scheme,
            "groups": {name: list(names) for name, names in self.config.groups.items()},
            "loaded": self.members.loaded,
            "refused": dict(self.members.refused),
        }
        if self.rows is not None and self.projections is not None:
            keys = self.backend.pool.get_key_buffer(0)
            token = 2 * keys.shape[1] * keys.shape[2] * keys.element_size() * self.rows.shape[0]
            out |= {
                **self.backend.figures,
                "rank": self.projections.rank,
                "sets": self.sets,
                "ranks": int(self.manager.attn_tp_size),
                "token_bytes_kv": token,
                "token_bytes_rows": self.row_bytes(self.rows.element_size()),
                "rows_bytes": self.rows.numel() * self.rows.element_size(),
                "projection_bytes": sum(
                    t.numel() * t.element_size() for t in (self.projections.up, self.projections.down)
                ),
            }
        if self.tree is not None:
            out |= self.tree.drop_figures()
        return out


current: Sharing | None = None
"""The state of this process's scheduler; None where it shares nothing."""


__all__ = ["Sharing"]
