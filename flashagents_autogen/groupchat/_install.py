"""One line for a whole application: `flashagents_autogen.install()`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import hooks
from .runtime import FlashGroupChatRuntime, check_runtime
from .shapes import check_shapes

_current: FlashGroupChatRuntime | None = None
_default: FlashGroupChatRuntime | None = None


def install(runtime: FlashGroupChatRuntime | None = None, *, mend: bool = False) -> FlashGroupChatRuntime:
    """Let the agents of every AutoGen team in this process overlap; nothing else has to change.

    Teams that exist already are included. A team that was attached to another runtime stays with it.
    Calling it again is fine: without an argument it changes nothing, with one it changes the runtime.

    Args:
        runtime: to use; by default one with the default policy.
        mend: also end a team at once when its run is cancelled (its token, its task, Ctrl-C, a time-out), let
            it go on afterwards, and so on: all of `TeamFixes`, for teams of AutoGen's own classes that have
            not run yet.

    Returns:
        The runtime in use, for its `turns`, `events` and figures.

    Raises:
        AutoGenShapeError: the installed AutoGen is not one that we know how to hook.
        TypeError: a runtime that is none; nothing has changed then.
    """
    global _current
    check_runtime(runtime)
    check_shapes()
    if runtime is None:
        runtime = _current or default_runtime()
    if _current is not None and _current is not runtime:
        _current.stop()
    _current = runtime
    runtime.start()
    hooks.hook_everywhere(runtime, _mender() if mend else None)
    return runtime


def _mender() -> Callable[[Any], object]:
    from ..teams import mend  # the teams are built on this package

    return mend


def uninstall() -> None:
    """Put AutoGen back as it was; calling it again is fine. Teams that were attached stay so."""
    global _current
    hooks.unhook_everywhere()
    if _current is not None:
        _current.stop()
        _current = None


def current_runtime() -> FlashGroupChatRuntime | None:
    """The installed runtime; None where `install` has not been called."""
    return _current


def default_runtime() -> FlashGroupChatRuntime:
    """The installed runtime, else one for the whole process: what `Flash*` teams attach themselves to."""
    global _default
    if _current is not None:
        return _current
    if _default is None:
        _default = FlashGroupChatRuntime()
    return _default


__all__ = ["current_runtime", "default_runtime", "install", "uninstall"]
