"""Whether a model has the modules that are to get an adapter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import TrainingError


def check_modules(model: Any, targets: Sequence[str]) -> None:
    """Raise TrainingError where a target is the last part of no module's name; it lists those that are.

    Args:
        model: a `torch.nn.Module`.
        targets: as `Recipe.targets`.
    """
    modules = list(model.named_modules())
    names = {name.rsplit(".", 1)[-1] for name, _ in modules}
    missing = [target for target in targets if target.rsplit(".", 1)[-1] not in names]
    if missing:
        linear = sorted(
            {name.rsplit(".", 1)[-1] for name, module in modules if hasattr(module, "in_features")}
        )
        raise TrainingError(f"the model has no module {', '.join(missing)}; it has {', '.join(linear)}")


__all__ = ["check_modules"]
