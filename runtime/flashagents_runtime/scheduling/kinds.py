"""Telling a session's requests apart, and finding our state from what SGLang hands to a hook."""

from __future__ import annotations

from typing import Any


def is_warm_up(req: Any) -> bool:
    """A chunk of a prefill session (SGLang's Req): it generates nothing and names its session.

    A request of a session that SGLang itself has opened has `session` set, and is none of ours.
    """
    return (
        req.sampling_params.max_new_tokens == 0
        and req.session_id is not None
        and getattr(req, "session", None) is None
    )


def state_of(tree_cache: Any, name: str) -> Any:
    """An attribute that a feature has put on the tree cache, also inside SGLang's StreamingSession."""
    found = getattr(tree_cache, name, None)
    return getattr(getattr(tree_cache, "inner", None), name, None) if found is None else found


def several_ranks(args: Any) -> str | None:
    """Why decisions by the clock cannot be made with these ServerArgs; None where they can.

    The schedulers of all ranks must admit and evict the same at the same step, and each has its own clock.
    """
    for name, alone in (("tp_size", 1), ("pp_size", 1), ("attn_cp_size", 1), ("enable_dp_attention", False)):
        if getattr(args, name) != alone:
            return f"{name}={getattr(args, name)!r}: its ranks would decide by different clocks"
    if args.disaggregation_mode != "null":
        return f"disaggregation_mode={args.disaggregation_mode!r} has not been tried with it"
    return None
