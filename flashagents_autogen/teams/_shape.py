"""Whether the installed AutoGen is the one that the teams were written for: checked at import."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from importlib.metadata import version
from types import CodeType
from typing import Any

from flashagents_runtime import FlashAgentsError


class AutoGenShapeError(FlashAgentsError, RuntimeError):
    """An internal of AutoGen that the Flash teams touch is missing or has another shape."""


def _fail(what: str, wanted: str, found: str) -> AutoGenShapeError:
    return AutoGenShapeError(
        f"{what} of the installed autogen-agentchat {version('autogen-agentchat')} (autogen-core "
        f"{version('autogen-core')}) has {found}, and the Flash teams need {wanted}. They are written for "
        "autogen-agentchat 0.7.5: install autogen-agentchat==0.7.5 and autogen-core==0.7.5, or use "
        "AutoGen's own teams"
    )


def check_parameters(function: Callable[..., Any], *wanted: str) -> None:
    """Raise AutoGenShapeError unless the function takes exactly these parameters (besides self)."""
    found = [name for name in inspect.signature(function).parameters if name != "self"]
    if found != list(wanted):
        raise _fail(f"{function.__qualname__}", f"the parameters {list(wanted)}", f"{found}")


def check_attributes(owner: type, *wanted: str) -> None:
    """Raise AutoGenShapeError unless the class has these methods or sets these attributes in `__init__`."""
    names = {name for base in owner.__mro__ for name in (*vars(base), *_stored(base))}
    missing = [name for name in wanted if name not in names]
    if missing:
        raise _fail(owner.__qualname__, f"{missing}", "none of that name")


def _stored(owner: type) -> Sequence[str]:
    """Attribute names that the class's `__init__` and the methods it is split into mention."""
    code = getattr(vars(owner).get("__init__"), "__code__", None)
    if not isinstance(code, CodeType):
        return ()
    names = list(code.co_names)
    for helper in code.co_names:
        inner = getattr(vars(owner).get(helper), "__code__", None)
        if isinstance(inner, CodeType):
            names += inner.co_names
    return names


__all__ = ["AutoGenShapeError", "check_attributes", "check_parameters"]
