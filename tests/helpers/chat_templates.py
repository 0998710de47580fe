"""Chat templates for rendering tests: three real ones, and small ones that are strict in one way each."""

from __future__ import annotations

from pathlib import Path

from flashagents_runtime.chat_template import JinjaTemplate

_FOLDER = Path(__file__).parent.parent / "fixtures" / "templates"

# Mistral's first instruct models: a user turn, then strictly in turn, no system role, no cue.
_ALTERNATING = """{{ bos_token }}{% for m in messages %}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
{%- endif %}
{%- if m.role == 'user' %}{{ '[INST] ' + m.content + ' [/INST]' }}
{%- elif m.role == 'assistant' %}{{ ' ' + m.content + eos_token }}
{%- else %}{{ raise_exception('Only user and assistant roles are supported!') }}
{%- endif %}{% endfor %}"""

# Gemma's first models: as above, with a cue, and an error of its own for a system message.
_NO_SYSTEM = """{{ bos_token }}{% if messages[0].role == 'system' %}
{{- raise_exception('System role not supported') }}{% endif %}{% for m in messages %}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('Conversation roles must alternate') }}{% endif %}
{{- '<turn>' + m.role + '\\n' + m.content | trim + '</turn>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<turn>assistant\\n' }}{% endif %}"""

# Multimodal templates that index the content's parts.
_PARTS_ONLY = """{% for m in messages %}{{ '<' + m.role + '>' }}{% for part in m.content %}
{%- if part.type == 'image' %}{{ '<image>' }}{% else %}{{ part.text }}{% endif %}{% endfor %}
{{- '</' + m.role + '>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"""

# ChatML with the speaker's name, as in OpenAI's original.
_NAMED = """{% for m in messages %}{{ '<|im_start|>' + m.role }}{% if m.name is defined %}
{{- ' name=' + m.name }}{% endif %}{{ '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

# Refuses empty turns, and any two of the same role in a row, but knows a system message.
_STRICT = """{% set ns = namespace(last='') %}{% for m in messages %}
{%- if m.role == ns.last or (m.role == 'system' and not loop.first) or not m.content %}
{{- raise_exception('not like this') }}{% endif %}{% set ns.last = m.role %}
{{- '<' + m.role + '>' + m.content + '</' + m.role + '>\\n' }}{% endfor %}
{%- if add_generation_prompt and ns.last != 'assistant' %}{{ '<assistant>' }}{% endif %}"""

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}

SOURCES = {
    **{name: (_FOLDER / f"{name}.jinja").read_text() for name in ("qwen3", "deepseek_v3", "smollm2")},
    "alternating": _ALTERNATING,
    "no_system": _NO_SYSTEM,
    "parts_only": _PARTS_ONLY,
    "named": _NAMED,
    "strict": _STRICT,
}
NAMES = tuple(SOURCES)


def template(name: str) -> JinjaTemplate:
    """One of `NAMES`."""
    return JinjaTemplate(SOURCES[name], SPECIAL)
