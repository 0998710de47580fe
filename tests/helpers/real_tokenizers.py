"""The cut rules of real tokenizers, each loaded once for the whole run; skips where one cannot be had."""

from __future__ import annotations

from functools import cache

import pytest
from tokenizers import Tokenizer

from flashagents_runtime.errors import ModelError
from flashagents_runtime.handoff import CutRules
from flashagents_runtime.model_store import resolve_model

from .npm_tokenizers import NAMES as NPM_NAMES
from .npm_tokenizers import FetchError, tokenizer_folder

NAMES = (*NPM_NAMES, "smollm2")


@cache
def _load(name: str) -> CutRules | str:
    try:
        folder = resolve_model(None) if name == "smollm2" else tokenizer_folder(name)
    except (FetchError, ModelError, ImportError) as error:
        return f"tokenizer {name}: {error}"
    return CutRules(Tokenizer.from_file(str(folder / "tokenizer.json")))


def rules_or_skip(name: str) -> CutRules:
    """The rules of one of `NAMES`; skips the test, with the reason, where the tokenizer cannot be had."""
    loaded = _load(name)
    if isinstance(loaded, str):
        pytest.skip(loaded)
    return loaded
