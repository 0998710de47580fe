"""Every error that FlashAgents raises on purpose.

::

    FlashAgentsError
    ├── EngineError
    │   ├── EngineStartError      the engine's host process did not come up
    │   ├── EngineDiedError       it came up and then died; waiting calls raise this
    │   ├── EngineClosedError     the engine was closed by its owner (also a RuntimeError)
    │   └── RequestRejectedError  the engine refused one request (also a ValueError)
    │       ├── UnknownAdapterError   it names a LoRA adapter that the engine does not have
    │       └── ContextLengthError    prompt + answer do not fit the model's context
    ├── ModelError
    │   ├── ModelNotFoundError    no such folder, or the hub has no such model
    │   ├── ModelDownloadError    the package index or the hub could not be reached
    │   ├── ModelIntegrityError   a file is truncated, tampered with, or not a model
    │   └── DiskFullError         not enough room for the download or the conversion
    ├── TemplateError             a chat template cannot render the conversation (also a ValueError)
    ├── SchemaError           a tool's or an answer's JSON schema cannot be followed (also a ValueError)
    ├── ToolCallError         the model began a tool call that cannot be read (also a ValueError)
    ├── UnsupportedFeatureError   asked for what this model or version cannot do (also a ValueError)
    ├── SessionClosedError        a prefill session was used after its end (also a RuntimeError)
    ├── UpstreamFailedError       an upstream agent failed, and what depends on it is aborted
    ├── TraceFileError            a file holds no trace, or one of another version (also a ValueError)
    ├── TrainingError             role adapters cannot be trained from what was given (also a ValueError)
    └── SeamError                 an SGLang symbol that we hook does not fit the installed release

All of them carry a message for the person at the keyboard: what happened, and what to do.
"""

from __future__ import annotations

from collections.abc import Sequence


class FlashAgentsError(Exception):
    """Base class of every error raised on purpose by FlashAgents."""


class EngineError(FlashAgentsError):
    """Something is wrong with an engine as a whole."""


def _with_log(message: str, log_tail: Sequence[str]) -> str:
    if not log_tail:
        return message
    return message + "\nLast lines of the engine's log:\n" + "\n".join(f"  | {line}" for line in log_tail)


class EngineStartError(EngineError):
    """The engine's host process ended, or refused its arguments, before it was ready.

    Attributes:
        log_tail: the last log lines of the host, oldest first (may be empty).
    """

    def __init__(self, message: str, log_tail: Sequence[str] = ()) -> None:
        self.log_tail = tuple(log_tail)
        super().__init__(_with_log(message, self.log_tail))


class EngineDiedError(EngineError):
    """The engine's host process died while the engine was in use.

    Every call that was waiting raises this; the application lives on and may start a new engine.

    Attributes:
        log_tail: the last log lines of the host, oldest first (may be empty).
    """

    def __init__(self, message: str, log_tail: Sequence[str] = ()) -> None:
        self.log_tail = tuple(log_tail)
        super().__init__(_with_log(message, self.log_tail))


class EngineClosedError(EngineError, RuntimeError):
    """The engine was closed, so it takes no more calls; build a new one."""


class RequestRejectedError(EngineError, ValueError):
    """The engine refused one request; the engine itself is well and goes on."""


class ContextLengthError(RequestRejectedError):
    """Prompt and answer together are longer than the model's context or the KV cache."""


class UnknownAdapterError(RequestRejectedError):
    """A request names a LoRA adapter that the engine does not have.

    Attributes:
        name: the adapter.
        loaded: those that it has, sorted; empty where it has none.
    """

    def __init__(self, name: str, loaded: Sequence[str] = ()) -> None:
        self.name = name
        self.loaded = tuple(sorted(loaded))
        if self.loaded:
            there = (
                f"; it has {', '.join(map(repr, self.loaded))}. Name one of these, or load it (`load_lora`)"
            )
        else:
            there = (
                f', and no other: give it some, engine_args={{"lora_paths": {{{name!r}: "its folder"}}}}; '
                f"where it is a server, `flashagents serve --lora-paths {name}=FOLDER`"
            )
        super().__init__(f"the engine has no LoRA adapter {name!r}{there}")


class ModelError(FlashAgentsError):
    """Something is wrong with a model on disk or on its way there."""


class ModelNotFoundError(ModelError):
    """There is no model of that name or at that path."""


class ModelDownloadError(ModelError):
    """A download failed: no network, no such package, or the index refused."""


class ModelIntegrityError(ModelError):
    """A model file is truncated, has another hash than it should, or is no model at all."""


class DiskFullError(ModelError):
    """The disk has not enough room for a model."""


class TemplateError(FlashAgentsError, ValueError):
    """The model's chat template cannot render this conversation."""


class SchemaError(FlashAgentsError, ValueError):
    """No grammar can be made of a JSON schema that was to be enforced; the message names the place."""


class ToolCallError(FlashAgentsError, ValueError):
    """The model began a tool call that is no complete, valid call; often `max_tokens` cut it off."""


class UnsupportedFeatureError(FlashAgentsError, ValueError):
    """The model, the engine or this version cannot do what was asked."""


class SessionClosedError(FlashAgentsError, RuntimeError):
    """A prefill session was used after `generate` or `close`; open a new one."""


class UpstreamFailedError(FlashAgentsError):
    """An upstream agent failed or was cancelled, and the policy is to abort what depends on it.

    Attributes:
        slot: the place of its text in the prompt.
        error: what ended it; None where it was cancelled or aborted.
    """

    def __init__(self, slot: int, error: BaseException | None) -> None:
        self.slot = slot
        self.error = error
        why = "was cancelled" if error is None else f"failed: {error}"
        super().__init__(f"the upstream agent whose answer fills slot {slot} of this prompt {why}")


class TraceFileError(FlashAgentsError, ValueError):
    """A file holds no trace, or one that another version wrote."""


class TrainingError(FlashAgentsError, ValueError):
    """Role adapters cannot be trained: pairs or recipe are unusable, or the folder holds another training."""


class SeamError(FlashAgentsError, RuntimeError):
    """An upstream symbol that we hook is missing or has another shape in the installed SGLang."""


__all__ = [
    "ContextLengthError",
    "DiskFullError",
    "EngineClosedError",
    "EngineDiedError",
    "EngineError",
    "EngineStartError",
    "FlashAgentsError",
    "ModelDownloadError",
    "ModelError",
    "ModelIntegrityError",
    "ModelNotFoundError",
    "RequestRejectedError",
    "SchemaError",
    "SeamError",
    "SessionClosedError",
    "TemplateError",
    "ToolCallError",
    "TraceFileError",
    "TrainingError",
    "UnknownAdapterError",
    "UnsupportedFeatureError",
    "UpstreamFailedError",
]
