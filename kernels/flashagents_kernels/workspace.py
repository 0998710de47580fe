"""Scratch memory that is allocated once and handed out in pieces."""

from __future__ import annotations

from typing import Any

import torch

from .errors import WorkspaceError

_ALIGN = 256


class Workspace:
    """A flat buffer from which one call at a time takes its scratch tensors.

    Args:
        nbytes: its size.
        device: where it lives.

    Example:
        >>> Workspace.for_extend(64, 0, 4, 2, 64, device="cpu").nbytes >= 0
        True
    """

    def __init__(self, nbytes: int, *, device: Any) -> None:
        self.buffer = torch.empty(nbytes, dtype=torch.uint8, device=device)
        self._used = 0

    @property
    def nbytes(self) -> int:
        return int(self.buffer.numel())

    @classmethod
    def for_extend(
        cls, max_tokens: int, max_prefix: int, q_heads: int, kv_heads: int, head_dim: int,
        *, device: Any, max_splits: int = 1,
    ) -> Workspace:  # fmt: skip
        """Room for `extend` over `max_tokens` new tokens and `max_prefix` prefix tokens in all."""
        gathered = (2 * max_prefix + max_tokens) * 2 * kv_heads * head_dim
        partial = max_splits * max_tokens * q_heads * 4 * (head_dim + 1) if max_splits > 1 else 0
        return cls(gathered + partial + 5 * _ALIGN, device=device)

    def reset(self) -> None:
        """Take everything back; called at the start of each operator call."""
        self._used = 0

    def take(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """A tensor of the buffer's next bytes.

        Raises:
            WorkspaceError: the buffer is too small.
        """
        count = 1
        for n in shape:
            count *= n
        start = -(-self._used // _ALIGN) * _ALIGN
        end = start + count * torch.empty((), dtype=dtype).element_size()
        if end > self.nbytes:
            raise WorkspaceError(
                f"the workspace has {self.nbytes} bytes and the call needs {end}: make it larger"
            )
        self._used = end
        return self.buffer[start:end].view(dtype).view(shape)
