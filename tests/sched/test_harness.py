from __future__ import annotations

from pathlib import Path

import pytest

from helpers.scheduler_harness import Request, SchedulerHarness

pytestmark = pytest.mark.engine

PROMPT = list(range(10, 90))


@pytest.mark.parametrize("overlap", [False, True], ids=["normal", "overlap"])
@pytest.mark.parametrize("page_size", [1, 16])
def test_greedy_outputs_do_not_depend_on_the_loop_or_page_size(
    model: Path, overlap: bool, page_size: int
) -> None:
    with SchedulerHarness(model, overlap=overlap, page_size=page_size) as s:
        s.submit(Request("a", PROMPT, 6), Request("b", PROMPT[:40], 3))
        s.run()
        outputs = [s.output("a"), s.output("b")]
        s.submit(Request("c", PROMPT, 6))
        first = len(s.steps)
        s.run()
        assert s.output("c") == outputs[0]
        assert s.computed(first) < len(PROMPT)  # the rest came from the cache
        assert plain_outputs(model) == outputs


_plain: list[list[int]] = []


def plain_outputs(model: Path) -> list[list[int]]:
    """What transformers says."""
    if not _plain:
        import torch
        from transformers import AutoModelForCausalLM

        m = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        for ids, n in ((PROMPT, 6), (PROMPT[:40], 3)):
            out = m.generate(torch.tensor([ids]), max_new_tokens=n, do_sample=False, eos_token_id=None)
            _plain.append(out[0, len(ids) :].tolist())
    return _plain


def test_an_abort_ends_a_request_and_a_failure_is_raised(model: Path) -> None:
    with SchedulerHarness(model) as s:
        s.submit(Request("a", PROMPT, 100))
        s.step()
        s.step()
        s.abort("a")
        s.run()
        assert s.reqs["a"].finished()
        assert len(s.output("a")) < 100

        def fail(*args: object, **kwargs: object) -> None:
            raise ZeroDivisionError

        s.scheduler.run_batch = fail
        s.submit(Request("b", PROMPT, 1))
        with pytest.raises(ZeroDivisionError):
            s.run()
