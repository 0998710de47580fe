"""Chat templates: any conversation in, the prompt's text out.

Jinja templates are rendered by transformers' own renderer, which imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from .chat import ChatMessage, ToolDefinition
from .chat_normalise import normalise
from .chat_probe import TemplateCapabilities, probe
from .errors import TemplateError


class Template:
    """What all templates share: arrange the messages, render, and try again more strictly."""

    _capabilities: TemplateCapabilities | None = None

    def _render(self, messages: list[dict[str, Any]], **variables: Any) -> str:
        raise NotImplementedError

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
        can = self.capabilities
        kept = {name: getattr(can, name) for name in ("text_parts", "images")}
        # Probing cannot foresee everything a template may dislike (an odd content, a rare order), so
        # a conversation that it refuses is arranged for a stricter template before we give up.
        attempts = (
            can,
            TemplateCapabilities(system=can.system, tools=can.tools, **kept),
            TemplateCapabilities(**kept),
        )
        error: Exception | None = None
        for attempt in attempts:
            dicts, native_tools = normalise(
                messages, attempt, tools=tools, generation_prompt=generation_prompt
            )
            try:
                return self._render(
                    dicts,
                    **{
                        **(template_args or {}),
                        "tools": native_tools,
                        "add_generation_prompt": generation_prompt,
                    },
                )
            except Exception as e:  # a template is foreign code and may raise anything
                error = error or e
        raise TemplateError(f"the model's chat template cannot render this conversation: {error}") from error


class JinjaTemplate(Template):
    """A Jinja chat template, as models ship it.

    Args:
        chat_template: its source.
        special_tokens: the variables `bos_token`, `eos_token`, ... of templates.
    """

    def __init__(self, chat_template: str, special_tokens: Mapping[str, str] | None = None) -> None:
        self.chat_template = chat_template
        self._special = dict(special_tokens or {})

    @property
    def capabilities(self) -> TemplateCapabilities:
        """What the chat template can take (probed once a template and process)."""
        if self._capabilities is None:
            self._capabilities = _probed(self.chat_template, tuple(sorted(self._special.items())))
        return self._capabilities

    def _render(self, messages: list[dict[str, Any]], **variables: Any) -> str:
        return _render_jinja(self.chat_template, messages, {**self._special, **variables})


def _render_jinja(template: str, messages: list[dict[str, Any]], variables: Mapping[str, Any]) -> str:
    # Imported late: transformers takes a while, and a scripted engine needs none.
    from transformers.utils.chat_template_utils import render_jinja_template

    rendered, _ = render_jinja_template([messages], chat_template=template, **variables)
    text: str = rendered[0]
    return text


@lru_cache(maxsize=64)
def _probed(template: str, special: tuple[tuple[str, str], ...]) -> TemplateCapabilities:
    tokens = dict(special)
    return probe(lambda messages, **variables: _render_jinja(template, messages, {**tokens, **variables}))


__all__ = ["JinjaTemplate", "Template"]
