"""The chat tokenizers: a model folder's own, and one of bytes that needs no model.

A folder's `tokenizer.json` is read with the `tokenizers` library alone: transformers' AutoTokenizer
gives the same tokens, but imports torch into the application and takes ten seconds to do so.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

from . import model_check
from .chat_probe import TemplateCapabilities
from .chat_template import JinjaTemplate, Template
from .errors import ModelIntegrityError, ModelNotFoundError, TemplateError

_MAX_TOKENIZER = 256 << 20  # bytes; vocabularies of 256k tokens have some 35 MB


class HFChatTokenizer(JinjaTemplate):
    """Tokenizer and chat template of a Hugging Face model folder, offline.

    Args:
        folder: a folder with `tokenizer.json` and `tokenizer_config.json`.
        chat_template: used instead of the folder's own template.

    Raises:
        ModelNotFoundError: there is no such folder.
        ModelIntegrityError: the tokenizer files are missing or broken.
        TemplateError: neither the folder nor the caller has a chat template.
    """

    def __init__(self, folder: str | Path, *, chat_template: str | None = None) -> None:
        from tokenizers import Tokenizer

        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise ModelNotFoundError(f"there is no model folder {self.folder}")
        file = self.folder / "tokenizer.json"
        if not file.is_file():
            raise ModelIntegrityError(
                f"{self.folder} has no tokenizer.json; save it as a fast tokenizer first "
                "(transformers: AutoTokenizer.from_pretrained(...).save_pretrained(...))"
            )
        if file.stat().st_size > _MAX_TOKENIZER:
            raise ModelIntegrityError(f"{file} is larger than {_MAX_TOKENIZER >> 20} MiB")
        try:
            self._tokenizer = Tokenizer.from_file(str(file))
        except Exception as e:  # tokenizers raises plain Exception
            raise ModelIntegrityError(f"{file} is not a tokenizer: {e}") from e
        # Settings of the training run; a prompt is never cut or filled up.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        config = read_json(self.folder / "tokenizer_config.json")
        special = _special_tokens(config, read_json(self.folder / "special_tokens_map.json"))
        super().__init__(chat_template or _chat_template(self.folder, config), special)

    @property
    def backend_tokenizer(self) -> Any:
        """The `tokenizers.Tokenizer` behind this; named as transformers' fast tokenizers name it."""
        return self._tokenizer

    def encode(self, text: str) -> list[int]:
        """See `ChatTokenizer.encode`."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """See `ChatTokenizer.decode`."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return text


class ByteChatTokenizer(Template):
    """UTF-8 bytes as token ids and a plain ChatML template: for `ScriptedEngine`, without any model.

    Example:
        >>> ByteChatTokenizer().encode("hé")
        [104, 195, 169]
    """

    context_free: ClassVar[bool] = True  # any text may be cut anywhere (`handoff.CutRules`)
    capabilities: ClassVar[TemplateCapabilities] = TemplateCapabilities(
        system=True,
        system_alone=True,
        system_late=True,
        user_twice=True,
        assistant_twice=True,
        assistant_first=True,
        after_assistant=True,
        empty_content=True,
    )

    def _render(
        self,
        messages: list[dict[str, Any]],
        tools: Any = None,
        add_generation_prompt: bool = False,
        **_: Any,
    ) -> str:
        text = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages)
        return text + ("<|im_start|>assistant\n" if add_generation_prompt else "")

    def encode(self, text: str) -> list[int]:
        """See `ChatTokenizer.encode`."""
        return list(text.encode())

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """See `ChatTokenizer.decode`."""
        return bytes(ids).decode(errors="replace")


_load_lock = threading.Lock()


def load_chat_tokenizer(folder: str | Path) -> HFChatTokenizer:
    """The tokenizer of a model folder; one object a folder and process.

    Raises:
        ModelNotFoundError: no such folder.
        ModelIntegrityError: tokenizer files are missing or broken.
        TemplateError: the model has no chat template.
    """
    with _load_lock:
        return _load(str(Path(folder).resolve()))


@lru_cache(maxsize=16)
def _load(folder: str) -> HFChatTokenizer:
    return HFChatTokenizer(folder)


def read_json(file: Path) -> dict[str, Any]:
    """A model's JSON file as a dictionary, {} where there is none; ModelIntegrityError where broken."""
    return model_check.read_json(file) if file.exists() else {}


def _special_tokens(*configs: Mapping[str, Any]) -> dict[str, str]:
    """The variables `bos_token`, `eos_token`, ... of templates. A token is a text or an AddedToken."""
    found: dict[str, str] = {}
    for config in configs:
        for name, value in config.items():
            if name.endswith("_token"):
                text = value.get("content") if isinstance(value, Mapping) else value
                if isinstance(text, str):
                    found.setdefault(name, text)
    return found


def _chat_template(folder: Path, config: Mapping[str, Any]) -> str:
    """The folder's template: `chat_template.jinja`, else the one in a configuration file."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        try:
            return model_check.read_text(file)
        except (OSError, ValueError) as e:
            raise ModelIntegrityError(f"{file} cannot be read: {e}") from e
    template = read_json(folder / "chat_template.json").get("chat_template") or config.get("chat_template")
    if isinstance(template, list):  # several named templates
        entries = [entry for entry in template if isinstance(entry, dict)]
        named = {str(entry.get("name")): entry.get("template") for entry in entries}
        template = named.get("default") or next(iter(named.values()), None)
    if not isinstance(template, str):
        raise TemplateError(
            f"{folder} has no chat template, so it is not a chat model; pass an instruct model, or put a "
            "chat_template.jinja into the folder"
        )
    return template


__all__ = ["ByteChatTokenizer", "HFChatTokenizer", "load_chat_tokenizer", "read_json"]
