"""Telling a session's requests apart, and finding our state from what SGLang hands to a hook."""

from __future__ import annotations

from typing import Any


def is_warm_up(req: Any) -> bool:
    """A chunk of a prefill session (SGLang's Req): it generates nothing and names its session.

    A request of a session that SGLang itself has opened has `session` set, and is none of ours.
    """
    return (
        req.session_id is not None  # first, since few have one, and all that wait may be asked
        and req.sampling_params.max_new_tokens == 0
        and getattr(req, "session", None) is None
    )


def state_of(tree_cache: Any, name: str) -> Any:
    """An attribute that a feature has put on the tree cache, also inside SGLang's StreamingSession."""
    found = getattr(tree_cache, name, None)
    return getattr(getattr(tree_cache, "inner", None), name, None) if found is None else found
