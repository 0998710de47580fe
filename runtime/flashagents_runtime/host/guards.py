"""Requests that would end SGLang's scheduler, refused where they come in.

SGLang 0.5.18 checks the ranges of most arguments, and not of these: the scheduler then fails while it makes
a tensor of them, looks them up, or samples, and with it all that runs. Whoever may send a request, to an
embedded engine or to `flashagents serve`, could end it so.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from .. import sglang_seams as seams

_MEDIA = ("image_data", "video_data", "audio_data")
"""Their places in a prompt may be any number."""
_MOST = {"top_k": 2**31 - 1, "min_new_tokens": 2**31 - 1, "sampling_seed": 2**63 - 1}


def install() -> None:
    """Look at every request before SGLang's tokenizer manager takes it; twice is once."""
    manager = seams.symbol("sglang.srt.managers.tokenizer_manager.TokenizerManager")
    original = manager.generate_request
    if hasattr(original, "_flashagents_guarded"):
        return

    @functools.wraps(original)
    async def generate_request(self: Any, obj: Any, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
        check(obj, self.model_config.vocab_size)
        async with contextlib.aclosing(original(self, obj, *args, **kwargs)) as outputs:
            async for out in outputs:
                yield out

    generate_request._flashagents_guarded = True  # type: ignore[attr-defined]
    manager.generate_request = generate_request


def check(obj: Any, vocab_size: int) -> None:
    """Raise ValueError for a GenerateReqInput, of one prompt or several, that the scheduler cannot stand.

    What has another type than it should is left to SGLang, which refuses it.
    """
    if not any(getattr(obj, name, None) for name in _MEDIA):
        ids = getattr(obj, "input_ids", None)
        for each in ids if isinstance(ids, list) and ids and isinstance(ids[0], list) else [ids]:
            _check_ids(each, vocab_size)
    params = getattr(obj, "sampling_params", None)
    for each in params if isinstance(params, list) else [params]:
        if isinstance(each, Mapping):
            _check_sampling(each, vocab_size)


def _check_ids(ids: Any, vocab_size: int) -> None:
    try:
        low, high = min(ids, default=0), max(ids, default=0)
        fit = 0 <= low <= high < vocab_size
    except TypeError:
        return
    if not fit:
        raise ValueError(f"input_ids must be in [0, {vocab_size - 1}], got {low} to {high}")


def _check_sampling(params: Mapping[str, Any], vocab_size: int) -> None:
    for token in params.get("stop_token_ids") or ():
        # With min_new_tokens they are places in a tensor of the vocabulary's size.
        if isinstance(token, int) and not 0 <= token < vocab_size:
            raise ValueError(f"stop_token_ids must be in [0, {vocab_size - 1}], got {token}")
    for name, most in _MOST.items():
        value = params.get(name)
        if isinstance(value, int) and not -most - 1 <= value <= most:
            raise ValueError(f"{name} is at most {most}, got {value}")
    bias = params.get("logit_bias")
    for token, value in bias.items() if isinstance(bias, Mapping) else ():
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"logit_bias must be finite, got {value} for token {token}")


__all__ = ["check", "install"]
