"""What a client's constructor and calls are given, checked by kind before anything is made of it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

_PATH = ((str, os.PathLike), "a text or path")
_TEXT = ((str,), "a text")
_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "model": (_PATH[0], "a model folder or hub id, a text or path"),
    "engine_args": ((Mapping,), "SGLang's arguments by name, such as {'tp_size': 2}"),
    "engine_url": ((str,), "the address of a server, such as 'http://127.0.0.1:30000'"),
    "api_key": _TEXT,
    "tls_ca_file": _PATH,
    "model_info": ((Mapping,), "a ModelInfo"),
    "lora": _TEXT,
    "cache_salt": _TEXT,
}
_METHODS = {"engine": ("start", "generate"), "tokenizer": ("render", "encode")}


def check_kinds(**given: Any) -> None:
    """TypeError where an argument is of the wrong kind; says its type alone, for it may be a secret."""
    for name, value in given.items():
        if value is None:
            continue
        if name in _METHODS:
            wanted = "an Engine" if name == "engine" else "a ChatTokenizer"
            fits = all(callable(getattr(value, method, None)) for method in _METHODS[name])
        else:
            kinds, wanted = _KINDS[name]
            fits = isinstance(value, kinds)
        if not fits:
            raise TypeError(f"{name} takes {wanted}, not a value of type {type(value).__name__}")


def check_progress(progress: Any) -> None:
    """TypeError where nobody can be told of progress."""
    if progress is not None and not callable(progress):
        raise TypeError(
            f"progress takes a function that is told of each step, such as that of show_progress(), not "
            f"{progress!r:.80}"
        )


def check_json_output(json_output: Any) -> None:
    """TypeError where it is none of AutoGen's."""
    known = json_output is None or isinstance(json_output, bool)
    if not known and not (isinstance(json_output, type) and issubclass(json_output, BaseModel)):
        raise TypeError(f"json_output takes True, False, None or a pydantic class, not {json_output!r:.80}")


__all__ = ["check_json_output", "check_kinds", "check_progress"]
