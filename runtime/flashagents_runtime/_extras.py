"""Packages that come with an extra: imported by name, and named with their extra where they are missing."""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType

DISTRIBUTION = "flashagents-autogen"
HOW_TO = {
    "gpu": (
        f"install the extra `{DISTRIBUTION}[gpu]` with uv (SGLang's own requirements clash with AutoGen's):"
        f' `uv pip install --overrides requirements/gpu-overrides.txt "{DISTRIBUTION}[gpu]"` (README.md,'
        " Installation); on a machine without a GPU `make demo` installs what is needed"
    ),
    "train": (
        f"install the extra `{DISTRIBUTION}[train]`, or in a checkout `pip install --no-deps -r"
        " requirements/train.txt` beside the engine's packages"
    ),
}


def require(module: str, extra: str) -> ModuleType:
    """Import `module`; where its package is missing, raise an ImportError that names the extra.

    A module that is there and fails for another reason (a missing library of its own) raises its own error.
    """
    missing = find_missing([module])
    if missing:
        raise ImportError(missing_message(missing, extra), name=module)
    return importlib.import_module(module)


def find_missing(modules: list[str]) -> list[str]:
    """Those of the top-level packages of `modules` that are not installed. Imports none of them."""
    packages = {name.partition(".")[0] for name in modules}
    return sorted(name for name in packages if importlib.util.find_spec(name) is None)


def missing_message(modules: list[str], extra: str) -> str:
    """What is missing, and how to get it."""
    advice = HOW_TO.get(extra, f"install the extra `{DISTRIBUTION}[{extra}]`")
    return f"{' and '.join(modules)} {'is' if len(modules) == 1 else 'are'} not installed: {advice}"


__all__ = ["find_missing", "missing_message", "require"]
