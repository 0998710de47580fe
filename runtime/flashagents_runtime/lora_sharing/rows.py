"""The low-rank rows beside the KV pool, and the members' projections on the device."""

from __future__ import annotations

from typing import Any

from .adapters import ValueLora


class Projections:
    """`A_v` and `B_v` of all members, resident on the device.

    They take little (a member of an 8B model, r = 8: 0.5 MB for `up`), so unlike the rest of an adapter
    they stay while SGLang's buffer slots come and go.

    Attributes:
        up: `[layers, members + 1, kv_heads, r, head_dim]`, scaled, of this rank's KV heads; zeros where
            no member is loaded, and for number 0.
        down: `[layers, r, hidden]`, or `[layers, members, r, hidden]` where each member has rows of its
            own. An adapter of smaller rank is padded with zeros. The same in all ranks.
    """

    def __init__(
        self, layers: int, members: int, kv_heads: int, head_dim: int, hidden: int, rank: int,
        *, row_per_member: bool, dtype: Any, device: Any,
    ) -> None:  # fmt: skip
        import torch

        self.row_per_member = row_per_member
        self.rank = rank
        self.up = torch.zeros(layers, members + 1, kv_heads, rank, head_dim, dtype=dtype, device=device)
        sets = (members,) if row_per_member else ()
        self.down = torch.zeros(layers, *sets, rank, hidden, dtype=dtype, device=device)

    def put(self, number: int, value: ValueLora) -> None:
        """Take in a member's projections (`heads.local`), on the current stream."""
        layers, _, kv_heads, _, head_dim = self.up.shape
        r = value.rank
        self.clear(number)
        for i in range(layers):
            up = (value.up[i].float() * value.scaling).view(kv_heads, head_dim, r).transpose(1, 2)
            self.up[i, number, :, :r] = up.to(self.up)
            down = self.down[i, number - 1] if self.row_per_member else self.down[i]
            down[:r] = value.down[i].to(down)

    def clear(self, number: int) -> None:
        """A member is gone. A projection that members share stays."""
        self.up[:, number] = 0
        if self.row_per_member:
            self.down[:, number - 1] = 0


def row_bytes(layers: int, sets: int, rank: int, itemsize: int) -> int:
    """Bytes that the rows of one token take in all layers: what a slot of the pool costs more."""
    return layers * sets * rank * itemsize


__all__ = ["Projections", "row_bytes"]
