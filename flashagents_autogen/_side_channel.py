"""What a client tells others in its process while it answers: no event bus, no copies.

A client asks every listener about each of its calls, once, before the engine is asked. The first that
answers with a `Tap` gets the call: the engine's deltas come by way of it, and it is told what was said.
Without listeners a call costs one look at an empty tuple.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from autogen_core.models import CreateResult, LLMMessage

from flashagents_runtime import Delta, GenerateRequest
from flashagents_runtime.chat import ChatTokenizer

from ._call import Call

if TYPE_CHECKING:
    from ._client import FlashAgentsChatCompletionClient

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ClientCall:
    """A call that is about to be answered.

    Attributes:
        client: whose call it is.
        messages: as the caller passed them: the very same objects.
        call: what was made of it.
    """

    client: FlashAgentsChatCompletionClient
    messages: Sequence[LLMMessage]
    call: Call


class Tap(Protocol):
    """Follows one call. No method but `answer` may raise; none but `answer` may wait."""

    def answer(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        """The engine's answer to the request, which is an ordinary one."""
        ...

    def said(self, delta: Delta, text: str) -> None:
        """A delta has come; `text` is what the caller of the client sees of it."""
        ...

    def done(self, result: CreateResult) -> None:
        """The call has ended well."""
        ...

    def failed(self, error: BaseException) -> None:
        """The call has ended in any other way: an error, a cancellation, a reader who left."""
        ...


class Listener(Protocol):
    """Wants to know of calls."""

    def on_call(self, call: ClientCall) -> Tap | None:
        """A call is about to be sent; None where it is of no interest."""
        ...

    def on_stranger(self, call: ClientCall) -> Tap | None:
        """A call that no listener knows is about to be sent; None where it is of no interest either."""
        ...


_listeners: tuple[Listener, ...] = ()


def listen(listener: Listener, *, first: bool = False) -> None:
    """Add a listener; twice is once. `first`: it is asked before those that are there."""
    global _listeners
    if listener not in _listeners:
        _listeners = (listener, *_listeners) if first else (*_listeners, listener)


def unlisten(listener: Listener) -> None:
    """Remove a listener; fine where it is not there."""
    global _listeners
    _listeners = tuple(other for other in _listeners if other is not listener)


def known_tokens(tokenizer: ChatTokenizer, prompt: str) -> list[int] | None:
    """The canonical tokens of a prompt that is about to be sent, where a listener has them already.

    A long prompt takes milliseconds to tokenise, at the very moment of a hand-off. A listener may have a
    method `tokens_of(tokenizer, prompt)`; one that raises is logged and passed over.
    """
    for listener in _listeners:
        tokens_of = getattr(listener, "tokens_of", None)
        if tokens_of is None:
            continue
        try:
            found: list[int] | None = tokens_of(tokenizer, prompt)
        except Exception:
            _log.exception("a listener of the model client failed; the call goes on without it")
            continue
        if found is not None:
            return found
    return None


def open_tap(
    client: FlashAgentsChatCompletionClient, messages: Sequence[LLMMessage], call: Call
) -> Tap | None:
    """Ask the listeners; one that raises is logged and passed over."""
    if not _listeners:
        return None
    told = ClientCall(client, messages, call)
    for ask in (*(each.on_call for each in _listeners), *(each.on_stranger for each in _listeners)):
        try:
            tap = ask(told)
        except Exception:
            _log.exception("a listener of the model client failed; the call goes on without it")
            continue
        if tap is not None:
            return tap
    return None


__all__ = ["ClientCall", "Listener", "Tap", "known_tokens", "listen", "open_tap", "unlisten"]
