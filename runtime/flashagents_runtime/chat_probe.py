"""What a chat template can take, found out by rendering small samples through it.

Reading a template's source to learn what it does is guesswork; rendering marked samples is not. A
capability is there when the sample renders without an error and its markers come out, once each and
in the order in which they went in. A dozen renderings a template (milliseconds), cached by template.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

Render = Callable[..., str]
"""`render(messages, tools=None, add_generation_prompt=False, **variables) -> text`; may raise anything."""


class TemplateCapabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What a chat template can take. The defaults are those of the strictest template.

    Attributes:
        system: a system message in first place comes out.
        system_alone: ... also when nothing follows it.
        system_late: a system message later on comes out where it stands.
        user_twice: two user turns in a row are allowed.
        assistant_twice: two assistant turns in a row are allowed.
        assistant_first: a conversation may start with an assistant turn.
        after_assistant: the cue for a new assistant turn is also given after an assistant turn.
        empty_content: a turn may be empty.
        name: the `name` of a user message comes out.
        text_parts: content has to be a list of parts; a plain text is lost or refused.
        images: a place is kept for image parts.
        tools: tool definitions come out.
        tool_calls: an assistant's tool calls come out.
        tool_calls_content_none: ... only where the content beside them is None.
        tool_calls_dict: ... with their arguments as an object rather than as its JSON text.
        tool_results: messages of the role "tool" come out.
        thinking: a `reasoning_content` of the last assistant turn comes out.
    """

    system: bool = False
    system_alone: bool = False
    system_late: bool = False
    user_twice: bool = False
    assistant_twice: bool = False
    assistant_first: bool = False
    after_assistant: bool = False
    empty_content: bool = False
    name: bool = False
    text_parts: bool = False
    images: bool = False
    tools: bool = False
    tool_calls: bool = False
    tool_calls_content_none: bool = False
    tool_calls_dict: bool = False
    tool_results: bool = False
    thinking: bool = False


_TOOL = {
    "type": "function",
    "function": {
        "name": "xqtool",
        "description": "xqdescription",
        "parameters": {"type": "object", "properties": {"xqarg": {"type": "string"}}, "required": ["xqarg"]},
    },
}


def probe(render: Render) -> TemplateCapabilities:
    """Find out what a template can take by rendering samples through it."""
    text_parts = not _shows(render, [_user("zqa")]) and _shows(render, _as_parts([_user("zqa")]))

    def shows(messages: list[dict[str, Any]], *more: str, **variables: Any) -> bool:
        return _shows(render, _as_parts(messages) if text_parts else messages, *more, **variables)

    system, user, assistant = _system, _user, _assistant
    calls = _probe_tool_calls(render, text_parts)
    result = {"role": "tool", "name": "xqtool", "tool_call_id": "call00001", "content": "xqresult"}
    return TemplateCapabilities(
        system=shows([system("zqa"), user("zqb")]),
        system_alone=shows([system("zqa")]),
        system_late=shows([system("zqa"), user("zqb"), system("zqc")])
        and shows([system("zqa"), user("zqb"), assistant("zqc"), system("zqd"), user("zqe")])
        and shows([user("zqa"), system("zqb"), user("zqc")]),
        user_twice=shows([user("zqa"), user("zqb")]) and shows([system("zqa"), user("zqb"), user("zqc")]),
        assistant_twice=shows([user("zqa"), assistant("zqb"), assistant("zqc"), user("zqd")]),
        assistant_first=shows([assistant("zqa"), user("zqb")])
        and shows([system("zqa"), assistant("zqb"), user("zqc")]),
        after_assistant=_cue_after_assistant(render, text_parts),
        empty_content=shows([user("zqa"), assistant(""), user("zqb")])
        and shows([user(""), assistant("zqa"), user("zqb")]),
        name=shows([{**user("zqb"), "name": "zqa"}]),
        text_parts=text_parts,
        images=_keeps_images(render),
        tools=shows([user("zqb")], tools=[_TOOL]) and _mentions(render, text_parts, "xqtool", "xqarg"),
        tool_calls=calls is not None,
        tool_calls_content_none=calls is not None and calls[0],
        tool_calls_dict=calls is not None and calls[1],
        tool_results=calls is not None
        and shows([user("zqa"), _caller(*calls), result, user("zqb")], "xqresult", tools=[_TOOL])
        and shows([user("zqa"), _caller(*calls), result], "xqresult", tools=[_TOOL]),
        thinking=shows([user("zqa"), {**assistant("zqc"), "reasoning_content": "zqb"}], "zqb"),
    )


def _system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def _as_parts(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {**m, "content": [{"type": "text", "text": m["content"]}]} if isinstance(m.get("content"), str) else m
        for m in messages
    ]


def _caller(content_none: bool, as_dict: bool) -> dict[str, Any]:
    arguments: Any = {"xqarg": "xqvalue"} if as_dict else '{"xqarg": "xqvalue"}'
    call = {"id": "call00001", "type": "function", "function": {"name": "xqtool", "arguments": arguments}}
    return {"role": "assistant", "content": None if content_none else "", "tool_calls": [call]}


def _try(render: Render, messages: list[dict[str, Any]], **variables: Any) -> str | None:
    # A template is foreign code: whatever it raises (jinja2's errors, TypeError, KeyError from a
    # filter, ...) means the same here: it cannot take the sample.
    try:
        return render(messages, **variables)
    except Exception:
        return None


def _shows(render: Render, messages: list[dict[str, Any]], *more: str, **variables: Any) -> bool:
    text = _try(render, messages, **variables)
    if text is None or any(text.count(marker) != 1 for marker in more):
        return False
    place = -1
    for marker in _markers(messages):
        following = text.find(marker, place + 1)
        if following < 0 or text.count(marker) != 1:
            return False
        place = following
    return True


def _markers(messages: list[dict[str, Any]]) -> list[str]:
    found: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            continue
        content = message.get("content")
        texts = [content] if isinstance(content, str) else [part["text"] for part in content or []]
        found += [t for t in (message.get("name"), *texts) if t]
    return found


def _mentions(render: Render, text_parts: bool, *words: str) -> bool:
    messages = _as_parts([_user("zqb")]) if text_parts else [_user("zqb")]
    text = _try(render, messages, tools=[_TOOL])
    return text is not None and all(word in text for word in words)


def _cue_after_assistant(render: Render, text_parts: bool) -> bool:
    messages = [_user("zqa"), _assistant("zqb")]
    if text_parts:
        messages = _as_parts(messages)
    with_cue = _try(render, messages, add_generation_prompt=True)
    without = _try(render, messages, add_generation_prompt=False)
    first = _try(render, messages[:1], add_generation_prompt=True)
    bare = _try(render, messages[:1], add_generation_prompt=False)
    if with_cue is None or without is None or first is None or bare is None:
        return False
    if not (with_cue.startswith(without) and first.startswith(bare)):
        return False
    # The same cue as after a user turn; a template without any cue (Mistral) has none after an
    # assistant turn either, and there the end of a user turn is what makes the model speak.
    cue = with_cue[len(without) :]
    return bool(cue) and cue == first[len(bare) :]


def _keeps_images(render: Render) -> bool:
    def sample(*parts: dict[str, Any]) -> list[dict[str, Any]]:
        return [{"role": "user", "content": [*parts, {"type": "text", "text": "zqa"}]}]

    with_image = _try(render, sample({"type": "image"}))
    without = _try(render, sample())
    if with_image is None or without is None or "zqa" not in without or "zqa" not in with_image:
        return False
    # Templates that print the list as it is (`{{ message.content }}`) keep no place for an image.
    return len(with_image) > len(without) and "'type'" not in with_image


def _probe_tool_calls(render: Render, text_parts: bool) -> tuple[bool, bool] | None:
    """(content must be None, arguments are an object), None where calls do not come out."""
    for as_dict in (True, False):
        for content_none in (False, True):
            messages = [_user("zqa"), _caller(content_none, as_dict), _user("zqb")]
            text = _try(render, _as_parts(messages) if text_parts else messages, tools=[_TOOL])
            # Not as Python's repr of a dict, nor as JSON inside a JSON string.
            if text and text.count("xqvalue") == 1 and "'xqarg'" not in text and '\\"xqarg' not in text:
                return content_none, as_dict
    return None


__all__ = ["Render", "TemplateCapabilities", "probe"]
