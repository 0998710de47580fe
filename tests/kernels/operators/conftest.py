"""Run by test_operators.py in a process of its own, where Triton interprets its kernels; on a CUDA
machine run directly: `python -m pytest tests/kernels/operators/operator_*.py`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))


def _let_scalars_be_indices() -> None:
    """Triton 3.9's interpreter calls `int()` on arrays of one element, which numpy 2.4 refuses."""
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    class Scope:
        def __init__(self, scope: Any) -> None:
            self.scope = scope

        def set_attr(self, obj: Any, name: str, value: Any) -> None:
            if name == "__index__":
                value = lambda self: int(self.handle.data.item())  # noqa: E731
            self.scope.set_attr(obj, name, value)

    interpreter._patch_lang_tensor = lambda tensor, scope: patch(tensor, Scope(scope))


if os.environ.get("TRITON_INTERPRET") == "1":
    import numpy as np

    np.seterr(all="ignore")  # a GPU does not warn of log2(0)
    _let_scalars_be_indices()
