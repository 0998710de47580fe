"""The chat tokenizers: a model folder's own, and one of bytes that needs no model.

A folder with a `tokenizer.json` is read with the `tokenizers` library, and its template rendered by
transformers' own renderer, without importing torch: this runs in the application's process.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

from .chat import ChatMessage, ToolDefinition
from .chat_normalise import normalise
from .chat_probe import Render, TemplateCapabilities, probe
from .errors import ModelIntegrityError, ModelNotFoundError, TemplateError


class _Templated:
    """Rendering that all chat tokenizers share: normalise, render, and a stricter second try."""

    _render: Render
    _capabilities: TemplateCapabilities | None = None

    @property
    def capabilities(self) -> TemplateCapabilities:
        """What the chat template can take (probed once a template)."""
        if self._capabilities is None:
            self._capabilities = probe(self._render)
        return self._capabilities

    def render(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[ToolDefinition] = (),
        generation_prompt: bool = True,
        template_args: Mapping[str, Any] | None = None,
    ) -> str:
        """See `ChatTokenizer.render`."""
        if not messages and not tools:
            return ""
        variables = dict(template_args or {})
        can = self.capabilities
        strictest = TemplateCapabilities(
            system=can.system, text_parts=can.text_parts, images=can.images, tools=can.tools
        )
        error: Exception | None = None
        for attempt in (can, strictest, TemplateCapabilities(text_parts=can.text_parts, images=can.images)):
            dicts, native_tools = normalise(
                messages, attempt, tools=tools, generation_prompt=generation_prompt
            )
            try:
                return self._render(
                    dicts, tools=native_tools, add_generation_prompt=generation_prompt, **variables
                )
            except Exception as e:  # a template is foreign code and may raise anything
                error = error or e
        raise TemplateError(f"the model's chat template cannot render this conversation: {error}") from error


class HFChatTokenizer(_Templated):
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
        try:
            self._tokenizer = Tokenizer.from_file(str(file))
        except Exception as e:  # tokenizers raises plain Exception
            raise ModelIntegrityError(f"{file} is not a tokenizer: {e}") from e
        # Settings of the training run; a prompt is never cut or filled up.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        config = read_json(self.folder / "tokenizer_config.json")
        self._special = _special_tokens(config, read_json(self.folder / "special_tokens_map.json"))
        self.chat_template = chat_template or _chat_template(self.folder, config)

    @property
    def capabilities(self) -> TemplateCapabilities:
        """What the chat template can take (probed once a template and process)."""
        if self._capabilities is None:
            self._capabilities = _probed(self.chat_template, tuple(sorted(self._special.items())))
        return self._capabilities

    def _render(self, messages: list[dict[str, Any]], **variables: Any) -> str:
        return _render_template(self.chat_template, messages, **{**self._special, **variables})

    def encode(self, text: str) -> list[int]:
        """See `ChatTokenizer.encode`."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """See `ChatTokenizer.decode`."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return text


class ByteChatTokenizer(_Templated):
    """UTF-8 bytes as token ids and a plain ChatML template: for `ScriptedEngine`, without any model.

    Example:
        >>> ByteChatTokenizer().encode("hé")
        [104, 195, 169]
    """

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


def load_chat_tokenizer(model: str | Path) -> HFChatTokenizer:
    """The tokenizer of a model folder or hub id; one object a model and process.

    A hub id is looked up in the local hub cache and fetched (tokenizer files only) where it is
    not there, unless `HF_HUB_OFFLINE` says otherwise.

    Raises:
        ModelNotFoundError: no such folder and no such model in the hub's cache or the hub.
        ModelIntegrityError: tokenizer files are missing or broken.
        TemplateError: the model has no chat template.
    """
    with _load_lock:
        return _load(str(model_folder(model)))


@lru_cache(maxsize=16)
def _load(folder: str) -> HFChatTokenizer:
    return HFChatTokenizer(folder)


def model_folder(model: str | Path) -> Path:
    """The local folder that holds a model's small files (configuration, tokenizer, template)."""
    path = Path(model).expanduser()
    if path.is_dir():
        return path.resolve()
    if isinstance(model, Path) or str(model).startswith(("/", ".", "~")):
        raise ModelNotFoundError(f"there is no model folder {path}")
    from huggingface_hub import snapshot_download

    try:
        folder = snapshot_download(str(model), allow_patterns=["*.json", "*.jinja", "*.model", "*.txt"])
    except Exception as e:
        raise ModelNotFoundError(
            f"{model!r} is neither a folder nor a model that the hub or its local cache has: {e}"
        ) from e
    return Path(folder)


def read_json(file: Path) -> dict[str, Any]:
    """A model's JSON file as a dictionary, {} where there is none; ModelIntegrityError where broken."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as e:
        raise ModelIntegrityError(f"{file} cannot be read: {e}") from e
    if not isinstance(content, dict):
        raise ModelIntegrityError(f"{file} should hold a JSON object")
    return content


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
        return file.read_text(encoding="utf-8")
    template = read_json(folder / "chat_template.json").get("chat_template") or config.get("chat_template")
    if isinstance(template, list):  # several named templates
        named = {entry["name"]: entry["template"] for entry in template}
        template = named.get("default") or next(iter(named.values()), None)
    if not isinstance(template, str):
        raise TemplateError(
            f"{folder} has no chat template, so it is not a chat model; pass an instruct model, or put a "
            "chat_template.jinja into the folder"
        )
    return template


def _render_template(template: str, messages: list[dict[str, Any]], **variables: Any) -> str:
    from transformers.utils.chat_template_utils import render_jinja_template

    # `tools` and `add_generation_prompt` are parameters of their own, the rest goes to the template.
    rendered, _ = render_jinja_template([messages], chat_template=template, **variables)
    text: str = rendered[0]
    return text


@lru_cache(maxsize=64)
def _probed(template: str, special: tuple[tuple[str, str], ...]) -> TemplateCapabilities:
    return probe(
        lambda messages, **variables: _render_template(template, messages, **{**dict(special), **variables})
    )


__all__ = ["ByteChatTokenizer", "HFChatTokenizer", "load_chat_tokenizer", "model_folder", "read_json"]
