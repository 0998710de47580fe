"""`scripts/soak.py` as a module."""

from __future__ import annotations

import importlib.util
import sys
import types
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "soak.py"


def load() -> types.ModuleType:
    """The module; loaded once."""
    if "soak" in sys.modules:
        return sys.modules["soak"]
    path = list(sys.path)
    spec = importlib.util.spec_from_file_location("soak", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    sys.path[:] = path
    return module
