"""An answer in the making: deltas in, AutoGen's `CreateResult` out."""

from __future__ import annotations

from autogen_core.models import ChatCompletionTokenLogprob, CreateResult, FinishReasons, TopLogprob

from flashagents_runtime import Delta, EngineError, GenerateResult, TokenLogprob, Usage

# "abort" that is not our own: somebody aborted the request in the engine, the text is a part.
_FINISH: dict[str, FinishReasons] = {"stop": "stop", "length": "length", "abort": "unknown"}


class Answer:
    """Collects the deltas of one request. On the hot path: once a token."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._logprobs: list[TokenLogprob] | None = None
        self._tokens = 0
        self._end: GenerateResult | None = None

    def push(self, delta: Delta) -> str:
        """Take a delta; returns the text to show now, maybe ""."""
        text, token_ids, end, logprobs = delta.text, delta.token_ids, delta.result, delta.logprobs
        if text:
            self._texts.append(text)
        self._tokens += len(token_ids)
        if logprobs is not None:
            if self._logprobs is None:
                self._logprobs = []
            self._logprobs += logprobs
        if end is not None:
            self._end = end
        return text

    def usage(self, prompt_tokens: int) -> Usage:
        """The engine's figures; those seen so far where the request did not come to its end."""
        if self._end is not None:
            return self._end.usage
        return Usage(prompt_tokens=prompt_tokens, completion_tokens=self._tokens)

    def result(self) -> CreateResult:
        """The whole answer, `usage` left at zero for the caller to fill in."""
        if self._end is None:
            raise EngineError("the engine ended the stream without a result")
        from ._usage import FlashRequestUsage

        return CreateResult(
            finish_reason=_FINISH[self._end.finish_reason],
            content="".join(self._texts),
            usage=FlashRequestUsage.of(self._end.usage),
            cached=False,
            logprobs=None if self._logprobs is None else [_logprob(entry) for entry in self._logprobs],
        )


def _logprob(entry: TokenLogprob) -> ChatCompletionTokenLogprob:
    return ChatCompletionTokenLogprob(
        token=entry.token,
        logprob=entry.logprob,
        bytes=list(entry.token.encode()),
        top_logprobs=[TopLogprob(logprob=p, bytes=list(text.encode())) for text, p in entry.top] or None,
    )


__all__ = ["Answer"]
