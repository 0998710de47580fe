"""`FlashAgentsChatCompletionClient`: AutoGen's model client on an engine of ours."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import warnings
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from autogen_core import CancellationToken, Component
from autogen_core.models import (
    ChatCompletionClient,
    CreateResult,
    LLMMessage,
    ModelCapabilities,
    ModelInfo,
    RequestUsage,
    validate_model_info,
)
from autogen_core.tools import Tool, ToolSchema
from pydantic import BaseModel, SecretStr

from flashagents_runtime import (
    Delta,
    Engine,
    EngineClosedError,
    EngineInfo,
    GenerateRequest,
    ProgressCallback,
    UnknownAdapterError,
    UnsupportedFeatureError,
    Usage,
)
from flashagents_runtime.chat import ChatTokenizer, encode_chat
from flashagents_runtime.limits import check_length
from flashagents_runtime.lora_sharing.arguments import adapter_names

from ._account import Account
from ._call import Call, CheckedCall, ToolChoice, check_call
from ._cancellation import CancelGuard
from ._config import FlashAgentsClientConfig, without_secrets
from ._constructor import check_kinds, check_progress
from ._events import log_call, log_stream_end, log_stream_start
from ._messages import to_chat, to_tools
from ._model import ModelSource
from ._prompt_side import PromptSide
from ._sampling import CreateArgs, parse_create_args
from ._side_channel import known_tokens, open_tap
from ._trace import trace_turn
from ._usage import FlashRequestUsage, add_usage


class FlashAgentsChatCompletionClient(ChatCompletionClient, Component[FlashAgentsClientConfig]):
    """An AutoGen model client on an SGLang engine that it starts and owns.

    The engine starts at `start`, or at the first call. Clients of the same model and engine
    arguments share one engine; it ends when the last of them is closed or garbage-collected.

    Args:
        model: a Hugging Face folder or a hub id; None is the default small model.
        engine: an engine of the caller's instead; it is not closed with the client.
        engine_args: SGLang's `ServerArgs` by name, for the engine that the client starts; `lora_sharing`
            and `lora_groups` besides, for role agents that share one cache (docs/lora-sharing.md).
        engine_url: a running SGLang server instead, such as "http://127.0.0.1:30000"; `model` then names
            the tokenizer where the server's model path is not to be had here. The "/v1" of OpenAI's
            clients at its end is left off.
        api_key: that server's key; refused without `engine_url`.
        tls_ca_file: PEM file of the authority, or of the self-signed certificate, of an https server.
        model_info: overrides what is inferred from the model's configuration and chat template.
        tokenizer: overrides the model's own tokenizer and chat template.
        lora: name of the LoRA adapter that this client speaks through: one of the engine's `lora_paths`.
        cache_salt: namespace of the prefix cache: clients with different salts share no prefix. A secret,
            not empty; give each tenant its own.
        create_args: arguments of every call, see `CreateArgs`: temperature, max_tokens, ...

    Raises:
        ValueError: an unknown or invalid argument.
        TypeError: an argument of another kind; an engine argument that is no plain JSON value.

    Example:
        >>> client = FlashAgentsChatCompletionClient(temperature=0, max_tokens=200)
        >>> agent = AssistantAgent("writer", model_client=client, model_client_stream=True)
    """

    component_type = "model"
    component_config_schema = FlashAgentsClientConfig
    component_provider_override = "flashagents_autogen.FlashAgentsChatCompletionClient"

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        engine: Engine | None = None,
        engine_args: Mapping[str, Any] | None = None,
        engine_url: str | None = None,
        api_key: str | None = None,
        tls_ca_file: str | Path | None = None,
        model_info: ModelInfo | None = None,
        tokenizer: ChatTokenizer | None = None,
        lora: str | None = None,
        cache_salt: str | None = None,
        **create_args: Any,
    ) -> None:
        check_kinds(
            model=model,
            engine=engine,
            engine_args=engine_args,
            engine_url=engine_url,
            api_key=api_key,
            tls_ca_file=tls_ca_file,
            model_info=model_info,
            tokenizer=tokenizer,
            lora=lora,
            cache_salt=cache_salt,
        )
        self._create_args = parse_create_args(create_args)
        if model_info is not None:
            validate_model_info(model_info)
        if cache_salt == "":
            raise ValueError("cache_salt is empty, which keeps nothing apart: give a text, or leave it out")
        if (engine is not None) + bool(engine_args) + (engine_url is not None) > 1:
            raise ValueError(
                "engine is an engine that exists, engine_args are for one that the client starts, and "
                "engine_url is for a server: give one of the three"
            )
        if tls_ca_file is not None and engine_url is None:
            raise ValueError("tls_ca_file is for a server: give its engine_url")
        if api_key is not None and engine_url is None:
            raise ValueError(
                "api_key is the key of a server: give its engine_url, or leave the key out; an engine of the "
                "client's own listens on no port and asks for none"
            )
        self._model = None if model is None else str(model)
        self._engine_args = dict(engine_args or {})
        self._given_engine = engine is not None
        self._engine_url = engine_url
        self._api_key = api_key
        self._tls_ca_file = None if tls_ca_file is None else str(tls_ca_file)
        self._engine = engine or _make_engine(
            model, self._engine_args, engine_url, api_key, self._tls_ca_file
        )
        self._tokenizer = tokenizer
        self._source = ModelSource(model, self._engine if engine_url is not None else engine, tokenizer)
        self._explicit_model_info = model_info
        self._lora = lora
        self._cache_salt = cache_salt
        self._closed = False
        self._usage = Usage()
        self._usage_lock = threading.Lock()

    # ---- life

    @property
    def engine(self) -> Engine:
        """The engine behind this client."""
        return self._engine

    @property
    def usage(self) -> Usage:
        """Tokens of all calls so far, with what the cache gave."""
        return self._usage

    async def start(self, progress: ProgressCallback | None = None) -> EngineInfo:
        """Prepare the model and bring the engine up; returns at once when it is up already.

        Args:
            progress: told of each step; may be called from another thread.

        Raises:
            ModelError: the model cannot be had.
            EngineStartError: the engine did not come up; a later call tries again.
            EngineClosedError: the client was closed.
            TypeError: `progress` is no function.
        """
        check_progress(progress)
        self._check_open()
        if (
            self._starts_engine and self._source.loaded is None
        ):  # before the engine: a wrong path is found at once
            await asyncio.to_thread(self._source.load, progress)
        info = await self._engine.start(progress)
        if self._source.loaded is None:
            await asyncio.to_thread(self._source.load, progress)
        return info

    @property
    def _starts_engine(self) -> bool:
        """The engine is one of this process's own, from `engine_args`."""
        return not self._given_engine and self._engine_url is None

    async def close(self) -> None:
        """Give the engine back: it ends where no other client uses it. Closing twice is fine.

        An engine that was given to the constructor stays as it is.
        """
        self._closed = True
        if not self._given_engine:
            await self._engine.close()

    def _check_open(self) -> None:
        if self._closed:
            raise EngineClosedError("this model client was closed; build a new one")

    # ---- calls

    async def create(
        self,
        messages: Sequence[LLMMessage],
        *,
        tools: Sequence[Tool | ToolSchema] = [],
        tool_choice: ToolChoice = "auto",
        json_output: bool | type[BaseModel] | None = None,
        extra_create_args: Mapping[str, Any] = {},
        cancellation_token: CancellationToken | None = None,
    ) -> CreateResult:
        """See `ChatCompletionClient.create`.

        Raises:
            ValueError: a message, tool or argument that cannot be (`UnsupportedFeatureError`: not here).
            ContextLengthError: the conversation does not fit the model's context.
            EngineDiedError: the engine died; the next call starts a new one.
            asyncio.CancelledError: the token was cancelled; the engine has stopped working on it.
        """
        guard = CancelGuard(cancellation_token)
        try:
            call = await self._prepare(guard, messages, tools, tool_choice, json_output, extra_create_args)
            with self._account(call, messages, streaming=False) as account:
                async for delta in self._deltas(call.request, guard, account):
                    account.push(delta)
                result = account.finish()
        finally:
            guard.close()
        log_call(call.messages, call.tools, result, account.usage)
        return result

    async def create_stream(
        self,
        messages: Sequence[LLMMessage],
        *,
        tools: Sequence[Tool | ToolSchema] = [],
        tool_choice: ToolChoice = "auto",
        json_output: bool | type[BaseModel] | None = None,
        extra_create_args: Mapping[str, Any] = {},
        cancellation_token: CancellationToken | None = None,
    ) -> AsyncGenerator[str | CreateResult, None]:
        """See `ChatCompletionClient.create_stream`: pieces of text, then one CreateResult.

        Leaving the stream early stops the engine's work on it. Raises as `create` does.
        """
        guard = CancelGuard(cancellation_token)
        try:
            call = await self._prepare(guard, messages, tools, tool_choice, json_output, extra_create_args)
            log_stream_start(call.messages, call.tools)
            with self._account(call, messages, streaming=True) as account:
                push = account.push
                async with contextlib.aclosing(self._deltas(call.request, guard, account)) as deltas:
                    async for delta in deltas:
                        if text := push(delta):
                            yield text
                result = account.finish()
        finally:
            guard.close()
        log_stream_end(result, account.usage)
        yield result

    async def _prepare(
        self,
        guard: CancelGuard,
        messages: Sequence[LLMMessage],
        tools: Sequence[Tool | ToolSchema],
        tool_choice: ToolChoice,
        json_output: bool | type[BaseModel] | None,
        extra_create_args: Mapping[str, Any],
    ) -> Call:
        """Check the call, start the engine if need be, and make the engine's request of it."""
        self._check_open()
        checked = check_call(self._create_args, messages, tools, tool_choice, json_output, extra_create_args)
        if self._engine.info is None and self._starts_engine:
            # What the model's own files refuse should not take an engine's start.
            await guard.wait(asyncio.to_thread(self._source.load))
            self._check_before_start(self._make(checked))
        if self._engine.info is None or self._source.loaded is None:
            await guard.wait(self.start())
        return self._make(checked)

    def _make(self, checked: CheckedCall) -> Call:
        return checked.make(
            self._source.load(),
            self.model_info,
            lora=self._lora,
            cache_salt=self._cache_salt,
            known=known_tokens,
        )

    def _check_before_start(self, call: Call) -> None:
        """As the engine will, once it is up."""
        adapters = adapter_names(self._engine_args.get("lora_paths"))
        if self._lora is not None and not adapters and not self._engine_args.get("enable_lora"):
            raise UnknownAdapterError(self._lora)
        with contextlib.suppress(UnsupportedFeatureError):  # the model does not say how much it reads
            check_length(call.request, self._context_length())

    async def _deltas(
        self, request: GenerateRequest, guard: CancelGuard, account: Account
    ) -> AsyncGenerator[Delta, None]:
        """The engine's deltas up to its result, cut off by the guard; aborted however else this ends."""
        send = self._engine.generate if account.tap is None else account.tap.answer
        async with contextlib.aclosing(send(request)) as stream:
            ended = False
            while True:
                try:
                    delta = await guard.wait(anext(stream))
                except StopAsyncIteration:
                    return
                if ended:  # an engine that goes on after its result is not listened to
                    return
                yield delta
                ended = delta.result is not None

    def _prompt_side(self) -> PromptSide | None:
        """How prompts are made here, for the group-chat runtime; None before the model is loaded."""
        model = self._source.loaded
        if model is None or self._closed:
            return None
        return PromptSide(
            self._engine, model.tokenizer, self.model_info, self._create_args, self._lora, self._cache_salt
        )

    async def _load_prompt_side(self) -> None:
        """Load the tokenizer where the engine is up already: the first call would do so."""
        if self._source.loaded is None and self._engine.info is not None and not self._closed:
            await asyncio.to_thread(self._source.load)

    @contextlib.contextmanager
    def _account(self, call: Call, messages: Sequence[LLMMessage], streaming: bool) -> Iterator[Account]:
        """Around a request: its span, who else follows it, and its usage however it ends."""
        account = Account(call, streaming, open_tap(self, messages, call))
        try:
            yield account
        except BaseException as e:
            account.error = e
            raise
        finally:
            account.close()
            trace_turn(self._engine, call, account)
            with self._usage_lock:
                self._usage = add_usage(self._usage, account.usage)

    # ---- counting

    def actual_usage(self) -> RequestUsage:
        """Tokens that this client's calls used."""
        return FlashRequestUsage.of(self._usage)

    def total_usage(self) -> RequestUsage:
        """Tokens of all calls; the same as `actual_usage`, for no answer comes from a store."""
        return FlashRequestUsage.of(self._usage)

    def count_tokens(
        self,
        messages: Sequence[LLMMessage],
        *,
        tools: Sequence[Tool | ToolSchema] = [],
    ) -> int:
        """Length of the prompt that these messages and tools make, by the model's own tokenizer.

        Needs no engine; the first call loads the tokenizer. 0 for no messages and no tools.
        """
        model = self._source.load()
        definitions = to_tools(tools)
        if not messages and not definitions:
            return 0
        return len(encode_chat(model.tokenizer, to_chat(messages, self.model_info), tools=definitions))

    def remaining_tokens(
        self,
        messages: Sequence[LLMMessage],
        *,
        tools: Sequence[Tool | ToolSchema] = [],
    ) -> int:
        """How many tokens of the context are left after the prompt; negative where it is too long.

        Raises:
            UnsupportedFeatureError: the model does not say its context length and has not started.
        """
        return self._context_length() - self.count_tokens(messages, tools=tools)

    def _context_length(self) -> int:
        if self._engine.info is not None:
            return self._engine.info.context_length
        given = self._engine_args.get("context_length")
        length = given or self._source.load().card.context_length
        if length is None:
            raise UnsupportedFeatureError(
                "the model's configuration does not say its context length; start the client first, or "
                "give engine_args={'context_length': ...}"
            )
        return int(length)

    # ---- what it is

    @property
    def model_info(self) -> ModelInfo:
        """What the model can do: as given, else inferred from its configuration and chat template."""
        return self._explicit_model_info or self._source.load().info

    @property
    def capabilities(self) -> ModelCapabilities:
        """Deprecated by AutoGen; see `model_info`."""
        warnings.warn("capabilities is deprecated, use model_info instead", DeprecationWarning, stacklevel=2)
        return ModelCapabilities(
            vision=self.model_info["vision"],
            function_calling=self.model_info["function_calling"],
            json_output=self.model_info["json_output"],
        )

    def _to_config(self) -> FlashAgentsClientConfig:
        if self._given_engine or self._tokenizer is not None:
            raise UnsupportedFeatureError(
                "a client that was given an engine or tokenizer object cannot be written out as a config; "
                "build it from model= and engine_args="
            )
        return FlashAgentsClientConfig(
            model=self._model,
            engine_args=without_secrets(self._engine_args),
            engine_url=self._engine_url,
            api_key=None if self._api_key is None else SecretStr(self._api_key),
            tls_ca_file=self._tls_ca_file,
            model_info=self._explicit_model_info,
            lora=self._lora,
            cache_salt=None if self._cache_salt is None else SecretStr(self._cache_salt),
            **self._create_args.model_dump(exclude_none=True),
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles are clients of the same config: they share the engine, and hold its secrets."""
        return _rebuild, (type(self), self._to_config())

    @classmethod
    def _from_config(cls, config: FlashAgentsClientConfig) -> Self:
        args = {name: getattr(config, name) for name in CreateArgs.model_fields}
        return cls(
            config.model,
            engine_args=config.engine_args,
            engine_url=config.engine_url,
            api_key=config.api_key.get_secret_value() if config.api_key is not None else None,
            tls_ca_file=config.tls_ca_file,
            model_info=config.model_info,
            lora=config.lora,
            cache_salt=config.cache_salt.get_secret_value() if config.cache_salt is not None else None,
            **{name: value for name, value in args.items() if value is not None},
        )


def _rebuild(
    cls: type[FlashAgentsChatCompletionClient], config: FlashAgentsClientConfig
) -> FlashAgentsChatCompletionClient:
    return cls._from_config(config)


def _make_engine(
    model: str | Path | None,
    engine_args: Mapping[str, Any],
    url: str | None,
    api_key: str | None,
    tls_ca_file: str | None,
) -> Engine:
    if url is not None:
        from flashagents_runtime.remote import RemoteEngine

        return RemoteEngine(url, api_key=api_key, tls_ca_file=tls_ca_file)
    from flashagents_runtime.embedded import acquire_engine

    return acquire_engine(model, engine_args)


__all__ = ["FlashAgentsChatCompletionClient"]
