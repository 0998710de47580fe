"""The model behind a client: its tokenizer, its card, what it can do. Loaded at first need."""

from __future__ import annotations

import threading
from pathlib import Path

from autogen_core.models import ModelInfo

from flashagents_runtime import (
    Engine,
    ProgressCallback,
    ScriptedEngine,
    UnsupportedFeatureError,
)
from flashagents_runtime.chat import ChatTokenizer
from flashagents_runtime.chat_tokenizer import ByteChatTokenizer, load_chat_tokenizer
from flashagents_runtime.model_cache import settled
from flashagents_runtime.model_card import ModelCard, read_model_card
from flashagents_runtime.remote import RemoteEngine

from ._model_info import infer_model_info


class LoadedModel:
    """A chat tokenizer with the model's card and what is inferred from the two."""

    def __init__(self, tokenizer: ChatTokenizer, card: ModelCard) -> None:
        self.tokenizer = tokenizer
        self.card = card
        self.info: ModelInfo = infer_model_info(card, tokenizer.capabilities)


class ModelSource:
    """Where a client's tokenizer comes from; loads it once, from any thread.

    Args:
        model: folder or hub id; None is the default model, or the model that `engine` names.
        engine: an engine that the caller built.
        tokenizer: used instead of the model's own.
    """

    def __init__(
        self, model: str | Path | None, engine: Engine | None, tokenizer: ChatTokenizer | None
    ) -> None:
        self._named = None if model is None else str(model)
        self._model = None if model is None else settled(model)
        self._engine = engine
        self._tokenizer = tokenizer
        self._lock = threading.Lock()
        self._loaded: LoadedModel | None = None

    @property
    def loaded(self) -> LoadedModel | None:
        """The model where it has been loaded already."""
        return self._loaded

    def load(self, progress: ProgressCallback | None = None) -> LoadedModel:
        """Load the tokenizer: blocks for a moment, and for the download where the model is not there yet.

        Raises:
            ModelError: the model cannot be had.
            TemplateError: it has no chat template.
        """
        if self._loaded is None:
            with self._lock:
                if self._loaded is None:
                    self._loaded = self._load(progress)
        return self._loaded

    def _load(self, progress: ProgressCallback | None) -> LoadedModel:
        engine, model = self._engine, self._model
        if model is None and isinstance(engine, ScriptedEngine):
            card = ModelCard(name=engine.model, context_length=engine.context_length)
            return LoadedModel(self._tokenizer or ByteChatTokenizer(), card)
        if model is None and engine is not None:
            info = engine.info
            model = getattr(engine, "model", None) or (info.model if info is not None else None)
            if self._tokenizer is not None:  # all that is needed of the model is here already
                length = info.context_length if info is not None else None
                return LoadedModel(self._tokenizer, ModelCard(name=model or "unknown", context_length=length))
            if model is None and isinstance(engine, RemoteEngine):
                model = engine.start_blocking().model
            if model is None and not hasattr(engine, "model"):
                raise UnsupportedFeatureError(
                    "the engine does not say its model before it is started: start the client first, or name "
                    "the model (model=...) for its tokenizer"
                )
        from flashagents_runtime.model_store import resolve_model

        # The engine itself asks for the weights where it needs them.
        folder = resolve_model(model, progress=progress, weights=False)
        tokenizer = self._tokenizer or load_chat_tokenizer(folder)
        name = self._named if self._named is not None or model is None else str(model)
        return LoadedModel(tokenizer, read_model_card(folder, name))


__all__ = ["LoadedModel", "ModelSource"]
