"""An OpenTelemetry span a call, `chat {model}`, by the conventions for generative AI.

AutoGen's own spans nest around it: the parent is the span that is current at the call. Messages go into
a span only where the environment asks for it, as OpenTelemetry's own instrumentations have it:
`OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT=true`. A span links to the one of the turn before it in
the same team, whose answer is part of its prompt.
"""

from __future__ import annotations

import json
import os
from collections import OrderedDict
from typing import Any

from autogen_core.models import CreateResult
from opentelemetry import trace

from flashagents_runtime import SamplingParams, Usage, __version__

from ._whose_call import whose_call

_MOST_WORKFLOWS = 1024
_last: OrderedDict[str, trace.SpanContext] = OrderedDict()  # of each workflow, the span that ended last

_CAPTURE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"


class ChatSpan:
    """The span of one call; ended by `end`. Costs next to nothing where no SDK is set up."""

    def __init__(self, model: str, sampling: SamplingParams, messages: Any, streaming: bool) -> None:
        tracer = trace.get_tracer("flashagents_autogen", __version__)
        # Not made current: in an async generator the current span would leak into the consumer.
        agent, self._workflow = whose_call()
        before = _last.get(self._workflow)
        links = None if before is None else [trace.Link(before, {"flashagents.link": "upstream_turn"})]
        self._span = tracer.start_span(f"chat {model}", kind=trace.SpanKind.CLIENT, links=links)
        if not self._span.is_recording():
            return
        attributes: dict[str, Any] = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "sglang",
            "gen_ai.system": "sglang",  # the older name, which AutoGen's spans use
            "gen_ai.request.model": model,
            "gen_ai.output.type": "json" if sampling.json_schema is not None else "text",
            "gen_ai.request.temperature": sampling.temperature,
            "gen_ai.request.top_p": sampling.top_p,
            "gen_ai.request.max_tokens": sampling.max_new_tokens,
            "gen_ai.request.seed": sampling.sampling_seed,
            "gen_ai.request.stop_sequences": sampling.stop,
            "flashagents.request.stream": streaming,
            "gen_ai.agent.name": agent or None,
        }
        self._span.set_attributes({name: value for name, value in attributes.items() if value is not None})
        if self._captures():
            self._span.set_attribute("gen_ai.input.messages", json.dumps(messages(), ensure_ascii=False))

    @staticmethod
    def _captures() -> bool:
        return os.environ.get(_CAPTURE, "").lower() in ("true", "1")

    def finished(self, result: CreateResult) -> None:
        """Note the answer."""
        if self._span.is_recording():
            self._span.set_attribute("gen_ai.response.finish_reasons", [result.finish_reason])
            if self._captures():
                content = result.model_dump(mode="json", include={"content", "thought"})
                self._span.set_attribute("gen_ai.output.messages", json.dumps(content, ensure_ascii=False))

    def end(self, usage: Usage, error: BaseException | None) -> None:
        """Note the figures, and the error where there was one, and end the span."""
        if self._span.is_recording():
            self._span.set_attributes(
                {
                    "gen_ai.usage.input_tokens": usage.prompt_tokens,
                    "gen_ai.usage.output_tokens": usage.completion_tokens,
                    "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
                    "flashagents.usage.prewarmed_tokens": usage.prewarmed_tokens,
                    "flashagents.usage.shared_in_turn_tokens": usage.shared_in_turn_tokens,
                }
            )
            if error is not None:
                self._span.set_attribute("error.type", type(error).__qualname__)
                self._span.set_status(trace.StatusCode.ERROR, str(error)[:1000])
            if error is None and self._workflow:
                _last[self._workflow] = self._span.get_span_context()
                _last.move_to_end(self._workflow)
                if len(_last) > _MOST_WORKFLOWS:
                    _last.popitem(last=False)
        self._span.end()


__all__ = ["ChatSpan"]
