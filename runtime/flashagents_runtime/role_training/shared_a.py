"""One `v_proj.lora_A` for all roles: that of the first one, copied and frozen for the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import TrainingError
from .recipe import SHARED_MODULE

WEIGHTS = "adapter_model.safetensors"
_IN_FILE = f".{SHARED_MODULE}.lora_A.weight"
_IN_MODEL = f".{SHARED_MODULE}.lora_A.default.weight"


def shared_matrices(adapter: Path) -> dict[str, Any]:
    """Each layer's `v_proj.lora_A` `[r, hidden]` in the folder of an adapter, by its name in the file.

    Raises:
        TrainingError: the adapter has none.
    """
    from safetensors import safe_open

    with safe_open(adapter / WEIGHTS, framework="pt") as file:
        found = {name: file.get_tensor(name) for name in file.keys() if name.endswith(_IN_FILE)}  # noqa: SIM118
    if not found:
        raise TrainingError(f"{adapter} has no {SHARED_MODULE}.lora_A that others could share")
    return found


def copy_and_freeze(model: Any, adapter: Path) -> None:
    """Give a PEFT model the matrices of `adapter`, bit by bit, and let training leave them alone.

    Raises:
        TrainingError: the two do not fit each other.
    """
    import torch

    matrices = shared_matrices(adapter)
    names = {name: parameter for name, parameter in model.named_parameters() if name.endswith(_IN_MODEL)}
    wanted = {name.replace(_IN_MODEL, _IN_FILE): parameter for name, parameter in names.items()}
    if wanted.keys() != matrices.keys():
        raise TrainingError(f"{adapter} was trained on other layers than this model has")
    with torch.no_grad():
        for name, parameter in wanted.items():
            if parameter.shape != matrices[name].shape or parameter.dtype != matrices[name].dtype:
                raise TrainingError(
                    f"{adapter}: {name} is {list(matrices[name].shape)} in {matrices[name].dtype}, "
                    f"here it is {list(parameter.shape)} in {parameter.dtype}"
                )
            parameter.copy_(matrices[name])
            parameter.requires_grad_(False)


def share(one: Path, other: Path) -> bool:
    """Whether two adapters have the same `v_proj.lora_A`, bit by bit, as `lora_sharing="base_lr"` asks."""
    import torch

    a, b = shared_matrices(one), shared_matrices(other)
    return a.keys() == b.keys() and all(a[n].dtype == b[n].dtype and torch.equal(a[n], b[n]) for n in a)


__all__ = ["WEIGHTS", "copy_and_freeze", "share", "shared_matrices"]
