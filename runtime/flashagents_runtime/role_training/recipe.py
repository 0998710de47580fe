"""How to train a role."""

from __future__ import annotations

import hashlib

import msgspec

from ..errors import TrainingError

SHARED_MODULE = "v_proj"
"""The module whose `lora_A` the roles share."""


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """What decides an adapter's weights, beside model and pairs; the defaults are LRAgent's where it has any.

    Attributes:
        rank: r of the adapters.
        alpha: `lora_alpha`; what an adapter adds is scaled by alpha / rank.
        targets: modules that get an adapter, by the last part of their name.
        dropout: of the adapters' input, while training.
        epochs: passes over the pairs; may be a fraction.
        batch_size: pairs a step of the optimiser (AdamW).
        micro_batch: pairs in memory at once; a divisor of `batch_size`.
        learning_rate: at its peak; it decays as a cosine.
        warmup: share of the steps in which it rises.
        max_tokens: of a pair; from a longer input the beginning is cut away.
        max_pairs: of a role, the first ones; None takes all.
        chat: the input is what a user says, put into the model's chat template; False takes it as it is.
        seed: each role draws from a stream of its own, made of this and its name.
        dtype: of the backbone: "float32" or "bfloat16"; "auto" is bfloat16 on a GPU. Adapters are float32.
    """

    rank: int = 8
    alpha: int = 16
    targets: tuple[str, ...] = ("q_proj", "v_proj")
    dropout: float = 0.05
    epochs: float = 3.0
    batch_size: int = 32
    micro_batch: int = 4
    learning_rate: float = 5e-4
    warmup: float = 0.05
    max_tokens: int = 2048
    max_pairs: int | None = None
    chat: bool = False
    seed: int = 0
    dtype: str = "auto"

    def __post_init__(self) -> None:
        numbers = ("rank", "alpha", "epochs", "batch_size", "micro_batch", "learning_rate", "max_tokens")
        for name in numbers:
            if getattr(self, name) <= 0:
                raise TrainingError(f"{name} must be more than 0, not {getattr(self, name)}")
        if not self.targets:
            raise TrainingError("targets names no module; q_proj,v_proj is usual")
        if self.batch_size % self.micro_batch:
            raise TrainingError(
                f"micro_batch {self.micro_batch} must divide batch_size {self.batch_size}: "
                "a step of the optimiser is made of whole micro-batches"
            )
        if not 0 <= self.dropout < 1 or not 0 <= self.warmup < 1:
            raise TrainingError("dropout and warmup must be in [0, 1)")
        if self.max_pairs is not None and self.max_pairs < 1:
            raise TrainingError(f"max_pairs must be at least 1, not {self.max_pairs}")
        if self.dtype not in ("auto", "float32", "bfloat16"):
            raise TrainingError(f"dtype must be auto, float32 or bfloat16, not {self.dtype!r}")

    def role_seed(self, role: str) -> int:
        """The seed of one role, the same in every process; another role's initial matrices are others."""
        digest = hashlib.sha256(f"{self.seed} {role}".encode()).hexdigest()
        return int(digest[:8], 16) & 0x7FFFFFFF


__all__ = ["SHARED_MODULE", "Recipe"]
