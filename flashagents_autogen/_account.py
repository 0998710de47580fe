"""What one request came to: its answer, its figures, its span."""

from __future__ import annotations

from autogen_core.models import CreateResult

from flashagents_runtime import Usage

from ._answer import Answer
from ._call import Call
from ._events import message_dicts
from ._tracing import ChatSpan


class Account:
    """Opened before the engine is asked, closed however the request ends.

    Attributes:
        answer: what has come so far.
        usage: the engine's figures, or those so far; known once closed.
        error: what ended the request early.
    """

    def __init__(self, call: Call, streaming: bool) -> None:
        self.answer = Answer()
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
        return result

    def close(self) -> None:
        """Note the figures and end the span."""
        self.usage = self.answer.usage(self._prompt_tokens)
        # A consumer who leaves the stream has had enough: no error.
        self._span.end(self.usage, None if isinstance(self.error, GeneratorExit) else self.error)


__all__ = ["Account"]
