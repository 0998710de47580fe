"""`base`: a pass in which members catch up, as the attention backend runs it.

The QKV layers put the rows of all members into scratch, and attention keeps of each token the row of its own
member: the slot of a token that the tree holds has other members' rows too. Such a token's K and V go to
slot 0, which nobody reads, and it attends, as do those after it, to the K and V that the pool holds. In
decode all rows go to the pool at once: the slot is the request's own, and `seen` says whose row is valid.
"""

from __future__ import annotations

from typing import Any

from ..errors import SeamError
from . import sharing


class CatchUp:
    """The state of one pass; `note` and `begin` come first, then each layer calls the rest."""

    def __init__(self, state: sharing.Sharing, runner: Any) -> None:
        import torch

        assert state.projections is not None
        args = runner.server_args
        tokens = max(
            args.chunked_prefill_size or 0, args.max_prefill_tokens or 0, runner.model_config.context_len
        )
        self.state = state
        self.device = state.rows.device
        self.scratch = torch.zeros(tokens, *state.rows.shape[2:], dtype=state.rows.dtype, device=self.device)
        """`[tokens, members, r]`: rows of a prefill pass. Of a fixed place, for captured graphs."""
        self.places = torch.arange(tokens, device=self.device)
        self.in_extend = False
        self._numbers: list[int] = []
        self._again: Any = None
        """Places of the pass's tokens that the tree holds; None where there are none."""
        self._own: Any = None
        """Places of the pass's tokens that are a member's, and those members' numbers, less one."""

    def note(self, numbers: list[int]) -> None:
        """The member's number of each request of the batch to come."""
        self._numbers = numbers

    def begin(self, batch: Any) -> None:
        """A pass over `batch` (ForwardBatch) begins."""
        import torch

        self.in_extend = not batch.forward_mode.is_decode_or_idle()
        again, self.state.again = self.state.again, []
        if not self.in_extend:
            return
        lens = list(batch.extend_seq_lens_cpu)
        if sum(lens) > len(self.places):
            raise SeamError(f"a pass of {sum(lens)} tokens is longer than the {len(self.places)} foreseen")
        held: list[int] = []
        places: list[int] = []
        members: list[int] = []
        at = 0
        for i, n in enumerate(lens):
            held += range(at, at + (again[i] if i < len(again) else 0))
            if i < len(self._numbers) and self._numbers[i]:
                places += range(at, at + n)
                members += [self._numbers[i] - 1] * n
            at += n
        self._again = torch.tensor(held, device=self.device) if held else None
        self._own = torch.tensor([places, members], dtype=torch.int64, device=self.device)

    def kv_loc(self, loc: Any) -> Any:
        """Where K and V of the pass's tokens are written; `loc` are their slots."""
        return loc if self._again is None else loc.index_fill(0, self._again, 0)

    def held(self, k: Any, v: Any, loc: Any, k_cache: Any, v_cache: Any) -> tuple[Any, Any]:
        """K and V of the pass's tokens, those of held tokens from the pool."""
        if self._again is None:
            return k, v
        slots = loc[self._again]
        return (
            k.index_copy(0, self._again, k_cache[slots]),
            v.index_copy(0, self._again, v_cache[slots]),
        )

    def keep_rows(self, rows: Any, loc: Any) -> Any:
        """Write each token's own row to `rows` (of a layer); returns all rows of the pass."""
        places, members = self._own
        rows[loc[places], members] = self.scratch[places, members]
        return self.scratch[: len(loc)]


__all__ = ["CatchUp"]
