"""What the command `flashagents train-roles` makes of its words, and says at the end."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..errors import TrainingError
from ..lora_sharing.adapters import MAX_RANK, Misfit, check_targets
from .recipe import Recipe


def pair_files(words: Sequence[str]) -> dict[str, Path]:
    """`ROLE=FILE` words as a mapping, in order.

    Raises:
        TrainingError: a word has another form, or a role is there twice.
    """
    found: dict[str, Path] = {}
    for word in words:
        role, sign, file = word.partition("=")
        if not sign or not role or not file:
            raise TrainingError(f"{word!r} must be a role's name and its pairs, such as plan=pairs/plan.json")
        if role in found:
            raise TrainingError(f"the role {role!r} is there twice")
        found[role] = Path(file)
    return found


def sharing_note(recipe: Recipe, *, shared_a: bool) -> str | None:
    """Which sharing schemes will refuse adapters of this recipe; None where none will."""
    try:
        check_targets(recipe.targets)
        if not {"q_proj", "v_proj"} <= set(recipe.targets):
            raise Misfit("members need q_proj and v_proj")
        if recipe.rank > MAX_RANK:
            raise Misfit(f"the rank is {recipe.rank}, and members may have {MAX_RANK}")
    except Misfit as e:
        return f"Of the sharing schemes only `full` takes these adapters: {e}."
    if not shared_a:
        return "All sharing schemes but `base_lr` take these adapters; for that one train with --shared-a."
    return None


__all__ = ["pair_files", "sharing_note"]
