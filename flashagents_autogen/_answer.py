"""An answer in the making: deltas in, AutoGen's `CreateResult` out."""

from __future__ import annotations

import secrets
import string
import time

from autogen_core import FunctionCall
from autogen_core.models import ChatCompletionTokenLogprob, CreateResult, FinishReasons, TopLogprob

from flashagents_runtime import Delta, EngineError, GenerateResult, TokenLogprob, ToolCallError, Usage

from ._messages import join_thought
from ._usage import FlashRequestUsage

# "abort" that is not our own: somebody aborted the request in the engine, the text is a part.
_FINISH: dict[str, FinishReasons] = {"stop": "stop", "length": "length", "abort": "unknown"}

# Mistral's templates refuse tool-call ids of any other form; the others take any text.
_ID_LETTERS = string.ascii_letters + string.digits
_ID_LENGTH = 9


class Answer:
    """Collects the deltas of one request. On the hot path: once a token.

    Attributes:
        began: when it was made, by `time.monotonic`.
        first: when its first token came; None before.
        calls: the calls of `result`, with their identities.
    """

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.first: float | None = None
        self.calls: list[FunctionCall] = []
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._logprobs: list[TokenLogprob] | None = None
        self._tokens = 0
        self._end: GenerateResult | None = None

    def push(self, delta: Delta) -> str:
        """Take a delta; returns the text to show now, maybe ""."""
        text, token_ids, end, logprobs = delta.text, delta.token_ids, delta.result, delta.logprobs
        if delta.thought:
            self._thoughts.append(delta.thought)
        if text:
            if self._thoughts and not self._texts:
                text = text.lstrip()  # the blank lines that part the answer from the thought
            if text:
                self._texts.append(text)
        if self.first is None and token_ids:
            self.first = time.monotonic()
        self._tokens += len(token_ids)
        if logprobs is not None:
            if self._logprobs is None:
                self._logprobs = []
            self._logprobs += logprobs
        if end is not None:
            self._end = end
        return text

    @property
    def tokens(self) -> int:
        """How many have come."""
        return self._tokens

    def usage(self, prompt_tokens: int) -> Usage:
        """The engine's figures; those seen so far where the request did not come to its end."""
        if self._end is not None:
            return self._end.usage
        return Usage(prompt_tokens=prompt_tokens, completion_tokens=self._tokens)

    def result(self) -> CreateResult:
        """The whole answer.

        Raises:
            ToolCallError: a tool call was begun, or required, and is not whole.
            EngineError: the engine broke its protocol.
        """
        end = self._end
        if end is None:
            raise EngineError("the engine ended the stream without a result")
        if end.broken_call is not None:
            raise ToolCallError(_broken(end))
        text = "".join(self._texts)
        thought = "".join(self._thoughts).strip() or None
        logprobs = None if self._logprobs is None else [_logprob(entry) for entry in self._logprobs]
        usage = FlashRequestUsage.of(end.usage)
        if end.tool_calls:
            self.calls = [FunctionCall(_new_id(), call.arguments, call.name) for call in end.tool_calls]
            return CreateResult(
                finish_reason="function_calls",
                content=list(self.calls),
                usage=usage,
                cached=False,
                logprobs=logprobs,
                thought=join_thought(thought, text.strip()),
            )
        return CreateResult(
            finish_reason=_FINISH[end.finish_reason],
            content=text,
            usage=usage,
            cached=False,
            logprobs=logprobs,
            thought=thought,
        )


def _broken(end: GenerateResult) -> str:
    why = (
        "max_tokens, or the end of the context, cut it off"
        if end.finish_reason == "length"
        else "it is no call of one of the tools with a JSON object as arguments"
    )
    return f"the model's tool call cannot be used: {why}. It said: {(end.broken_call or '')[:1000]!r}"


def _new_id() -> str:
    return "".join(secrets.choice(_ID_LETTERS) for _ in range(_ID_LENGTH))


def _logprob(entry: TokenLogprob) -> ChatCompletionTokenLogprob:
    return ChatCompletionTokenLogprob(
        token=entry.token,
        logprob=entry.logprob,
        bytes=list(entry.token.encode()),
        top_logprobs=[TopLogprob(logprob=p, bytes=list(text.encode())) for text, p in entry.top] or None,
    )


__all__ = ["Answer"]
