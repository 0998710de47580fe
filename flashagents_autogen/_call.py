"""From AutoGen's arguments of a call to the engine's request: checks first, then the prompt."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from autogen_core.models import LLMMessage, ModelInfo
from autogen_core.tools import Tool, ToolSchema
from pydantic import BaseModel

from flashagents_runtime import AnswerFormat, GenerateRequest, UnsupportedFeatureError
from flashagents_runtime.chat import ChatMessage, ChatTokenizer, ToolDefinition
from flashagents_runtime.chat_tools import TOOL_PARSER
from flashagents_runtime.schema_check import check_schema

from ._constructor import check_json_output
from ._messages import check_messages, to_chat, to_tools
from ._model import LoadedModel
from ._sampling import CreateArgs, parse_create_args, to_sampling
from ._structured import chosen_tools, json_schema

_TAIL_TOKENS = 16

ToolChoice = Tool | Literal["auto", "required", "none"]


@dataclass(frozen=True)
class Call:
    """One checked call: what goes to the engine, and what the events say of it."""

    model: str
    messages: list[ChatMessage]
    tools: list[ToolDefinition]
    request: GenerateRequest


@dataclass(frozen=True)
class CheckedCall:
    """A call whose arguments are sound in themselves; needs no model and no engine."""

    messages: Sequence[LLMMessage]
    args: CreateArgs
    offered: list[ToolDefinition]
    callable: list[ToolDefinition]
    call_required: bool
    json_output: bool | type[BaseModel] | None
    schema: str | None

    def make(
        self,
        model: LoadedModel,
        info: ModelInfo,
        *,
        lora: str | None,
        cache_salt: str | None,
        known: Callable[[ChatTokenizer, str], list[int] | None] = lambda tokenizer, prompt: None,
    ) -> Call:
        """Render the prompt and make the request.

        Args:
            model: the model with its tokenizer.
            info: what it can do.
            lora: see `GenerateRequest`.
            cache_salt: the same.
            known: the canonical tokens of a prompt, where somebody has them already.

        Raises:
            ValueError: something that the model, by `info`, cannot do, or an invalid message.
            TemplateError: the chat template cannot render the conversation.
        """
        self._check_skills(info)
        args, chat = self.args, to_chat(self.messages, info)
        # All tools stay in the prompt where one of them is chosen: its beginning stays the same.
        shown = self.offered if self.callable else []
        # A tool that was chosen is called once, as in OpenAI's API.
        once = args.parallel_tool_calls is False or (self.call_required and len(self.callable) == 1)
        prompt = model.tokenizer.render(chat, tools=shown, template_args=args.chat_template_kwargs)
        ids = known(model.tokenizer, prompt) or model.tokenizer.encode(prompt)
        request = GenerateRequest(
            input_ids=ids,
            sampling=to_sampling(args, model.card.sampling, self.schema),
            lora=lora,
            cache_salt=cache_salt,
            priority=args.priority,
            logprobs=bool(args.logprobs),
            top_logprobs=args.top_logprobs or 0,
            image_data=[image.data for message in chat for image in message.images] or None,
            format=AnswerFormat(
                tools=self.callable,
                call_required=self.call_required,
                parallel_tool_calls=not once,
                tool_parser=None if model.tokenizer.capabilities.tools else TOOL_PARSER,
                compact_json=self.schema is not None,
                prompt_end=model.tokenizer.decode(ids[-_TAIL_TOKENS:], skip_special_tokens=False),
            ),
        )
        return Call(model.card.name, chat, shown, request)

    def _check_skills(self, info: ModelInfo) -> None:
        if self.callable and not info["function_calling"]:
            raise UnsupportedFeatureError("the model does not support function calling (model_info)")
        structured = isinstance(self.json_output, type)
        if structured and not info.get("structured_output"):
            raise UnsupportedFeatureError("the model does not support structured output (model_info)")
        if self.schema is not None and not structured and not info["json_output"]:
            raise UnsupportedFeatureError("the model does not support JSON output (model_info)")


def check_call(
    base: CreateArgs,
    messages: Sequence[LLMMessage],
    tools: Sequence[Tool | ToolSchema],
    tool_choice: ToolChoice,
    json_output: bool | type[BaseModel] | None,
    extra_create_args: Mapping[str, Any],
) -> CheckedCall:
    """Check a call's arguments before anything is started for it.

    Raises:
        ValueError: an unknown or invalid argument, tool or choice; no messages.
        SchemaError: a schema that is to be enforced cannot be (also a ValueError).
        TypeError: messages, or a `json_output`, that are none of AutoGen's.
    """
    check_messages(messages)
    check_json_output(json_output)
    args = parse_create_args(extra_create_args, base)
    offered = to_tools(tools)
    callable_tools, call_required = chosen_tools(offered, tool_choice, args.tool_choice)
    _one_class(json_output, extra_create_args)
    schema = json_schema(json_output, args.answer_format)
    if schema is not None:
        check_schema(json.loads(schema), "the schema of the answer")
    for tool in callable_tools:
        # Others are only shown to the model, in whatever form they have.
        if tool.strict or call_required or schema is not None:
            check_schema(tool.parameters, f"the schema of tool {tool.name!r}")
    return CheckedCall(messages, args, offered, callable_tools, call_required, json_output, schema)


def _one_class(json_output: bool | type[BaseModel] | None, extra: Mapping[str, Any]) -> None:
    """As AutoGen's clients: two descriptions of the answer, of which neither can give way, are refused."""
    if isinstance(json_output, type):
        for name in ("response_format", "format"):
            value = extra.get(name)
            if isinstance(value, type) or (name == "format" and value is not None):
                raise ValueError(
                    f"json_output and {name} both say what the answer looks like: use json_output"
                )


__all__ = ["Call", "CheckedCall", "ToolChoice", "check_call"]
