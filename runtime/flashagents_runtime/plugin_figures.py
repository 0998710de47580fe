"""What our plug-in counts in an engine's scheduler, for those who watch it."""

from __future__ import annotations

from typing import Any

from .engine import Engine

Figures = dict[str, dict[str, float]]


async def plugin_figures(engine: Engine) -> Figures:
    """Feature -> name -> number, of the features that are active; {} where there is no plug-in.

    For example ``{"soft_pins": {"pins": 3, "expired": 0, "evicted_tokens": 0}, ...}``: docs/scheduling.md and
    docs/intra-turn-cache.md name them. Raises as `Engine.state`.
    """
    ask = getattr(engine, "internal_state", None)
    return {} if ask is None else numbers(await ask())


def numbers(server: dict[str, Any]) -> Figures:
    """The plug-in's numbers; whatever has another form is left out.

    `server` is what an engine's `internal_state` gives: a scheduler's state (embedded), or a server's, which
    has its schedulers' in a list.
    """
    states = server.get("internal_states", [server])
    first = states[0] if isinstance(states, list) and states else {}
    ours = first.get("flashagents") if isinstance(first, dict) else None
    features = ours.get("features") if isinstance(ours, dict) else None
    found: Figures = {}
    for feature, figures in (features if isinstance(features, dict) else {}).items():
        if isinstance(figures, dict) and figures.get("active"):
            counted = {
                name: value
                for name, value in figures.items()
                if isinstance(value, int | float) and not isinstance(value, bool)
            }
            if counted:
                found[feature] = counted
    return found


__all__ = ["Figures", "numbers", "plugin_figures"]
