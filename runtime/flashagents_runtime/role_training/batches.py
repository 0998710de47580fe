"""Examples as the tensors that a causal model and the Trainer take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .pairs import Example

IGNORED = -100
"""The label of what is not to be learnt (transformers')."""


def rows(found: Sequence[Example]) -> list[dict[str, Any]]:
    """What the Trainer takes as a data set; `input_ids` is where it looks for lengths."""
    return [{"input_ids": example.ids, "answer": example.answer} for example in found]


def collate(batch: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Tensors of some examples, filled up on the left, so that all answers end at the right.

    Only the logits of the answers are computed (`logits_to_keep`): with 49k words and long inputs the rest
    would be most of the memory. Labels are as long as the logits.

    Returns:
        `input_ids`, `attention_mask` and `position_ids` `[pairs, longest]`, `labels` `[pairs, keep]`, and
        `logits_to_keep`.
    """
    import torch

    longest = max(len(row["input_ids"]) for row in batch)
    keep = max(row["answer"] for row in batch) + 1  # the token before an answer predicts its first
    ids = torch.zeros(len(batch), longest, dtype=torch.long)
    mask = torch.zeros(len(batch), longest, dtype=torch.long)
    labels = torch.full((len(batch), keep), IGNORED)
    for i, row in enumerate(batch):
        n = len(row["input_ids"])
        ids[i, longest - n :] = torch.tensor(row["input_ids"])
        mask[i, longest - n :] = 1
        labels[i, keep - row["answer"] :] = torch.tensor(row["input_ids"][n - row["answer"] :])
    return {
        "input_ids": ids,
        "attention_mask": mask,
        "position_ids": (mask.cumsum(-1) - 1).clamp(min=0),
        "labels": labels,
        "logits_to_keep": keep,
    }


__all__ = ["IGNORED", "collate", "rows"]
