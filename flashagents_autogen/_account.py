"""What one request came to: its answer, its figures, its span."""

from __future__ import annotations

from autogen_core.models import CreateResult

from flashagents_runtime import Delta, RequestRejectedError, Usage

from ._answer import Answer
from ._call import Call
from ._events import message_dicts
from ._side_channel import Tap
from ._tracing import ChatSpan


class Account:
    """Opened before the engine is asked, closed however the request ends.

    Attributes:
        answer: what has come so far.
        tap: who follows the request, if anybody.
        usage: the engine's figures, or those so far; known once closed.
        error: what ended the request early.
    """

    def __init__(self, call: Call, streaming: bool, tap: Tap | None = None) -> None:
        self.answer = Answer()
        self.tap = tap
        self.push = self.answer.push if tap is None else self._push
        self.usage = Usage()
        self.error: BaseException | None = None
        self._prompt_tokens = len(call.request.input_ids)
        self._span = ChatSpan(
            call.model, call.request.sampling, lambda: message_dicts(call.messages), streaming
        )

    def finish(self) -> CreateResult:
        """The whole answer; raises as `Answer.result`."""
        result = self.answer.result()
        self._span.finished(result)
        if self.tap is not None:
            self.tap.done(result)
        return result

    def _push(self, delta: Delta) -> str:
        text = self.answer.push(delta)
        assert self.tap is not None
        self.tap.said(delta, text)
        return text

    def close(self) -> None:
        """Note the figures and end the span."""
        # What was refused has cost nothing.
        refused = isinstance(self.error, RequestRejectedError) and not self.answer.tokens
        self.usage = Usage() if refused else self.answer.usage(self._prompt_tokens)
        if self.error is not None and self.tap is not None:
            self.tap.failed(self.error)
        # A consumer who leaves the stream has had enough: no error.
        self._span.end(self.usage, None if isinstance(self.error, GeneratorExit) else self.error)


__all__ = ["Account"]
