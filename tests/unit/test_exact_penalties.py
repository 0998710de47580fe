"""Which token a decode step counts, whatever results have come by then."""

from __future__ import annotations

from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from flashagents_runtime.exact_penalties import _due

TOKENS = list(range(100, 140))


@given(st.lists(st.booleans(), min_size=1, max_size=30))
def test_each_token_is_counted_once_and_in_its_step(caught_up: list[bool]) -> None:
    """`caught_up[i]`: before step i the results of all steps before it have come; else all but the last."""
    counted = []
    for step, complete in enumerate(caught_up):
        come = step + 1 if complete else step  # the prefill gives one token, each step another
        req = SimpleNamespace(
            origin_input_ids=[7, 8, 9],
            output_ids=TOKENS[:come],
            decode_batch_idx=step,
            retracted_stain=False,
        )
        counted.append(_due(req))
    assert counted == [9, *TOKENS][: len(caught_up)]


def test_a_request_that_was_taken_back_goes_on_with_its_last_token() -> None:
    req = SimpleNamespace(origin_input_ids=[7], output_ids=[5, 6], decode_batch_idx=0, retracted_stain=True)
    assert _due(req) == 6
