"""Every SGLang internal that this project touches, in one table (`seam_tables`).

Nothing else in the runtime imports `sglang`. `SEAMS` lists each upstream symbol with the reason and the
shape we rely on; `check()` compares the table with the installed SGLang, and the plug-in refuses to
start where a row does not fit. docs/sglang-hooks.md is generated from the table
(``python -m flashagents_runtime.sglang_seams``), and tests/engine/test_seams.py checks both.

Importing this module imports no SGLang; `symbol()`, `check()` and `installed_version()` do.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import inspect
from collections.abc import Iterable, Iterator
from typing import Any

from packaging.version import Version

from . import seam_tables
from .errors import SeamError
from .seam_tables import Seam

__all__ = [
    "HOST_SEAMS",
    "LORA_SEAMS",
    "SCHEDULER_SEAMS",
    "SEAMS",
    "SGLANG_VERSION",
    "Seam",
    "SeamError",
    "check",
    "installed_version",
    "markdown",
    "require",
    "require_version",
    "symbol",
]

SGLANG_VERSION = "0.5.18"
IMPORT_FAILS = "SGLang is installed and cannot be imported"
"""Marks the line of `check` about an SGLang that a missing driver, say, keeps from being imported."""
"""The one release of SGLang whose internals the table describes."""

SCHEDULER_SEAMS = seam_tables.PLUG_IN + seam_tables.INTRA_TURN + seam_tables.SCHEDULING
"""What the plug-in touches; checked in each scheduler process before anything is wrapped."""

HOST_SEAMS = seam_tables.HOST
"""What the host process and `flashagents serve` touch; some of it only a server imports."""

LORA_SEAMS = seam_tables.LORA
"""What `lora_sharing` touches besides; checked in a scheduler process where it is configured."""

SEAMS = SCHEDULER_SEAMS + LORA_SEAMS + HOST_SEAMS


def installed_version() -> str | None:
    """The version of the installed SGLang distribution, or None."""
    try:
        return importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError:
        return None


def require_version() -> None:
    """Raise SeamError unless the installed SGLang is exactly `SGLANG_VERSION`."""
    version = installed_version()
    if version is None:
        raise SeamError(f"SGLang is not installed; this release needs sglang=={SGLANG_VERSION}")
    if Version(version) != Version(SGLANG_VERSION):
        raise SeamError(f"SGLang {version} is installed; this release extends exactly {SGLANG_VERSION}")


@functools.cache
def symbol(target: str) -> Any:
    """The upstream object at dotted path `target`, which must be a row of the table.

    Functions come back as they are at the first call: call through their module to see later hooks.
    Raises KeyError for a path that is not in the table, ImportError or AttributeError where it is gone.
    """
    if target not in _by_target():
        raise KeyError(f"{target} is not listed in SEAMS")
    return _resolve(target)


@functools.cache
def _by_target() -> dict[str, Seam]:
    return {seam.target: seam for seam in SEAMS}


def check(seams: Iterable[Seam] = SEAMS) -> list[str]:
    """Compare the table with the installed SGLang; one line for each misfit, none if all fit.

    Another release is a misfit in itself; the symbols that do not fit it are named as well.
    """
    lines: list[str] = []
    try:
        require_version()
    except SeamError as e:
        lines.append(str(e))
        if installed_version() is None:
            return lines
    broken: dict[str, list[str]] = {}
    for seam in seams:
        try:
            lines += _misfits(seam)
        except _ImportFailsError as e:  # one cause, such as a missing driver, takes many rows with it
            broken.setdefault(str(e), []).append(seam.target)
    for cause, targets in broken.items():
        more = f" and {len(targets) - 1} more" if len(targets) > 1 else ""
        lines.append(f"{targets[0]}{more}: {IMPORT_FAILS}: {cause}")
    return lines


def require(seams: Iterable[Seam] = SEAMS) -> None:
    """Raise SeamError if any row does not fit the installed SGLang."""
    lines = check(seams)
    if lines:
        raise SeamError("this SGLang does not fit:\n  " + "\n  ".join(lines))


class _ImportFailsError(ImportError):
    """A module is there and fails as it is imported."""


def _resolve(target: str) -> Any:
    """As `pkgutil.resolve_name`, which takes a module that fails to import for one that is not there."""
    first, *rest = target.split(".")
    found: Any = importlib.import_module(first)
    path = first
    for name in rest:
        path = f"{path}.{name}"
        if inspect.ismodule(found) and not hasattr(found, name):
            try:
                importlib.import_module(path)
            except ModuleNotFoundError as e:
                if e.name != path and not path.startswith(f"{e.name}."):
                    raise _ImportFailsError(f"{type(e).__name__}: {e}") from e
            except Exception as e:
                raise _ImportFailsError(f"{type(e).__name__}: {e}") from e
        found = getattr(found, name)
    return found


def _misfits(seam: Seam) -> Iterator[str]:
    try:
        obj = _resolve(seam.target)
    except _ImportFailsError:
        raise
    except (ImportError, AttributeError) as e:
        yield f"{seam.target}: not found ({e})"
        return
    if seam.signature is not None and (found := _signature(obj)) != seam.signature:
        yield f"{seam.target}: expected {seam.signature}, found {found}"
    known = _attribute_names(obj)
    for name in seam.attributes:
        if name not in known and not hasattr(obj, name):
            yield f"{seam.target}: has no attribute {name!r}"


def _signature(obj: Any) -> str:
    signature = inspect.signature(obj)  # follows __wrapped__, so hooks do not hide the original
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    return str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))


def _attribute_names(obj: Any) -> set[str]:
    """Names that the methods of a class mention: its instance attributes are among them."""
    names: set[str] = set()
    for cls in getattr(obj, "__mro__", ()):
        names.update(getattr(cls, "__annotations__", ()))
        for member in vars(cls).values():
            code = getattr(inspect.unwrap(member) if callable(member) else member, "__code__", None)
            if code is not None:
                names.update(code.co_names)
    return names


def markdown() -> str:
    """docs/sglang-hooks.md: the table in words."""
    lines = [
        "# SGLang seams",
        "",
        f"Every symbol of SGLang {SGLANG_VERSION} that this project touches, and why. Generated from",
        "`runtime/flashagents_runtime/seam_tables/` by `python -m flashagents_runtime.sglang_seams`;",
        "`tests/engine/test_seams.py` checks each row against the installed SGLang.",
        "",
        "Symbols marked *hooked* are wrapped by the plug-in, and only in a scheduler that was started with",
        "`--radix-cache-backend flashagents`. All others are called, read or subclassed.",
        "",
    ]
    for hooked, title in ((True, "Hooked"), (False, "Used")):
        lines += [f"## {title}", "", "| symbol | reason | shape |", "|---|---|---|"]
        for seam in SEAMS:
            if seam.hooked is hooked:
                shape = f"`{seam.signature}`" if seam.signature else ""
                if seam.attributes:
                    shape += (" " if shape else "") + ", ".join(f"`{name}`" for name in seam.attributes)
                lines.append(f"| `{seam.target}` | {seam.reason} | {shape} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    import sys

    sys.stdout.write(markdown())
