"""SGLang's words about an adapter that it does not have, as an error of ours.

They come as text, from the engine's process or from a server, and are SGLang 0.5.18's
(`lora_registry.py`, `tokenizer_manager.py`); other words stay what they are.
"""

from __future__ import annotations

import ast
import re

from .errors import RequestRejectedError, UnknownAdapterError
from .grammar_errors import bad_grammar

# In a server's answer, which is JSON, the line break is written as two characters.
_UNKNOWN = re.compile(
    r"LoRA adapter(?:s are not| that has never been) loaded: (?P<name>.*?)(?:\n|\\n)"
    r"(?:All l|L)oaded adapters: \w*\((?P<loaded>\[.*?\])\)",
    re.DOTALL,
)
_NOT_TO_UNLOAD = re.compile(
    r"LoRA with name (?P<name>.*?) does not exist\. Loaded LoRAs: \w*\((?P<loaded>\[.*?\])\)", re.DOTALL
)
_NONE_AT_ALL = re.compile(r"LoRA adapter '(?P<name>.*?)' was requested, but LoRA is not enabled", re.DOTALL)


def unknown_adapter(message: str) -> UnknownAdapterError | None:
    """The error, where SGLang's message says that an adapter is not loaded; else None."""
    if (found := _UNKNOWN.search(message) or _NOT_TO_UNLOAD.search(message)) is not None:
        try:
            loaded = [str(name) for name in ast.literal_eval(found["loaded"])]
        except (SyntaxError, ValueError, MemoryError, RecursionError):
            loaded = []
        return UnknownAdapterError(found["name"], loaded)
    if (found := _NONE_AT_ALL.search(message)) is not None:
        return UnknownAdapterError(found["name"])
    return None


def rejection(message: str) -> RequestRejectedError:
    """The error for a request that was refused with this message."""
    return unknown_adapter(message) or bad_grammar(message) or RequestRejectedError(message)


__all__ = ["rejection", "unknown_adapter"]
