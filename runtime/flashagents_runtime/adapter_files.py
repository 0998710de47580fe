"""An adapter that is on no disk, as the files that PEFT would write."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .errors import ModelIntegrityError


def write_adapter(name: str, folder: Path, tensors: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """Write `adapter_model.safetensors` and `adapter_config.json` into `folder`, which exists.

    Args:
        name: what the adapter is called, for messages.
        tensors: torch tensors on any device, or numpy arrays, by PEFT's names; they are copied.
        config: what `adapter_config.json` says; sets become lists, as PEFT writes them.

    Raises:
        TypeError: a value that is neither tensor nor array, or a configuration that is no JSON.
        ModelIntegrityError: there are no tensors.
    """
    if not tensors:
        raise ModelIntegrityError(f"LoRA adapter {name!r}: it has no tensors")
    try:
        text = json.dumps(dict(config), default=_plain, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"LoRA adapter {name!r}: its config is not what adapter_config.json could say: {error}"
        ) from None
    (folder / "adapter_config.json").write_text(text)
    file = folder / "adapter_model.safetensors"
    torch = sys.modules.get("torch")  # whoever has no torch has no tensors of it
    if torch is not None and any(isinstance(value, torch.Tensor) for value in tensors.values()):
        from safetensors.torch import save_file

        save_file({key: _as_tensor(torch, name, key, value) for key, value in tensors.items()}, file)
    else:
        from safetensors.numpy import save_file as save_arrays

        save_arrays({key: _as_array(name, key, value) for key, value in tensors.items()}, file)


def _plain(value: Any) -> Any:
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    raise TypeError(f"{value!r} is a {type(value).__name__}")


def _as_tensor(torch: Any, name: str, key: str, value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        # A copy: what shares memory cannot be saved, and training may go on.
        return value.detach().to("cpu", copy=True).contiguous()
    return torch.from_numpy(_as_array(name, key, value).copy())


def _as_array(name: str, key: str, value: Any) -> Any:
    import numpy as np

    if not isinstance(value, np.ndarray):
        raise TypeError(
            f"LoRA adapter {name!r}: {key} is a {type(value).__name__}, neither torch tensor nor numpy array"
        )
    return np.ascontiguousarray(value)


__all__ = ["write_adapter"]
