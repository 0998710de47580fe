"""What `RemoteEngine` holds back is what the installed SGLang's parsers look for."""

from __future__ import annotations

import pytest

from flashagents_runtime import sglang_seams as seams
from flashagents_runtime.remote.marks import CALLS, THOUGHTS

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module", autouse=True)
def sglang() -> None:
    import warnings

    from flashagents_runtime import cpu_shims

    with warnings.catch_warnings():  # SGLang's and torch's own, at import
        warnings.simplefilter("ignore")
        cpu_shims.install()
        seams.symbol("sglang.srt.parser.reasoning_parser.ReasoningParser")


@pytest.mark.parametrize("name", THOUGHTS)
def test_marks_of_thoughts(name: str) -> None:
    detector = seams.symbol("sglang.srt.parser.reasoning_parser.ReasoningParser")(name).detector
    assert THOUGHTS[name] == (detector.think_start_token, detector.think_end_token, detector.force_reasoning)
    assert detector.think_start_self_label == "", "the mark is all that is taken off"


@pytest.mark.parametrize("name", CALLS)
def test_marks_of_calls(name: str) -> None:
    parser = seams.symbol("sglang.srt.function_call.function_call_parser.FunctionCallParser")([], name)
    assert parser.detector.bot_token.strip().startswith(CALLS[name])
    assert parser.detector.has_tool_call(f"text {parser.detector.bot_token}")
