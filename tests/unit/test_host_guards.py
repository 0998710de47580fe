"""Requests that SGLang's scheduler cannot stand; on a real engine in tests/engine/test_embedded_real.py."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from flashagents_runtime.host.guards import check

VOCAB = 100


def request(ids: Any = (1, 2), media: Any = None, **sampling: Any) -> Any:
    ids = list(ids) if isinstance(ids, tuple) else ids
    return SimpleNamespace(input_ids=ids, sampling_params=sampling or None, image_data=media)


DEADLY = {
    "a token below 0": request((5, -1)),
    "a token beyond the vocabulary": request((5, 100)),
    "one of a batch": request([[1], [2, 10**12]]),
    "a stop token beyond it": request(stop_token_ids=[100], min_new_tokens=2),
    "a stop token below 0": request(stop_token_ids=[-7]),
    "top_k of 40 bits": request(top_k=2**40),
    "min_new_tokens of 40 bits": request(min_new_tokens=2**40),
    "a seed of 70 bits": request(sampling_seed=-(2**70)),
    "a bias that is no number": request(logit_bias={"3": float("nan")}),
    "an endless bias": request(logit_bias={"3": float("inf")}),
}


@pytest.mark.parametrize("what", DEADLY)
def test_what_would_end_the_scheduler_is_refused(what: str) -> None:
    with pytest.raises(ValueError, match=r"must be|at most"):
        check(DEADLY[what], VOCAB)


def test_so_is_one_of_several_sampling_parameters() -> None:
    batch = request([[1], [2]])
    batch.sampling_params = [{"top_k": 5}, {"top_k": 2**31}]
    with pytest.raises(ValueError, match="top_k"):
        check(batch, VOCAB)


SOUND = {
    "plain": request(
        temperature=0.5, top_k=-1, min_new_tokens=3, stop_token_ids=[0, 99], sampling_seed=2**62
    ),
    "text": SimpleNamespace(text="hello", sampling_params={"max_new_tokens": 5}),
    "an image, whose places may be any number": request((1, -200, 10**6), media=["data:"]),
    "a batch": request([[1], [99]]),
    "nothing": request([]),
    "left to SGLang: other types": request(["a", 1], stop_token_ids=["x"], top_k="many", logit_bias=[1]),
    "a bias": request(logit_bias={"3": -100.0, "4": 5}),
}


@pytest.mark.parametrize("what", SOUND)
def test_all_else_is_left_to_sglang(what: str) -> None:
    check(SOUND[what], VOCAB)
