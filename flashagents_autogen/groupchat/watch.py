"""Looks into an answer while it is decoded: for the name of a tool, and into JSON that is being written."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from flashagents_runtime.chat import ChatTokenizer

_WINDOW = 256  # characters that are looked at again; longer than any tool's name
_PIECE = re.compile(r'(?:[^"\\]|\\u(?!d[89ab])[0-9a-f]{4}|\\u[0-9a-f]{4}\\u[0-9a-f]{4}|\\[^u])*', re.I)


class ToolNameWatch:
    """Finds the name of a tool in the tokens of an answer, as soon as it is complete.

    The engine takes tool calls out of the text, so the tokens are looked at. A name that stands in the
    visible text as well is talk, not a call.
    """

    def __init__(self, tokenizer: ChatTokenizer, names: Sequence[str]) -> None:
        self._decode = tokenizer.decode
        self._tail = ""
        self._pattern = re.compile(
            r"(?<![\w-])(" + "|".join(sorted(map(re.escape, names), key=len, reverse=True)) + r")(?![\w-])."
        )

    def feed(self, token_ids: Sequence[int], text: str) -> str | None:
        """The name, once; `text` is what the delta shows of the tokens."""
        new = self._decode(token_ids, skip_special_tokens=False)
        if text == new:
            self._tail = ""
            return None
        self._tail = (self._tail + new)[-_WINDOW:]
        found = self._pattern.search(self._tail.replace("\n", " "))
        return None if found is None else found.group(1)


class TaskWatch:
    """Reads the task that a call gives to an agent or a team behind a tool, while the call is written.

    Calls in JSON are read, the name before the arguments; of several calls the first one.

    Attributes:
        name: of the tool, once its task begins.
        done: the task is whole.
    """

    def __init__(self, tokenizer: ChatTokenizer, names: Sequence[str]) -> None:
        self._decode = tokenizer.decode
        self.name: str | None = None
        self.done = False
        self._held: list[int] = []
        self._text = ""
        self._begin = re.compile(
            r'"(' + "|".join(map(re.escape, names)) + r')"\s*,\s*"\w+"\s*:\s*\{\s*"task"\s*:\s*"'
        )

    def feed(self, token_ids: Sequence[int], text: str) -> str:
        """Take more of the answer; returns what is new of the task. `text` is what the delta shows."""
        self._held += token_ids
        new = self._decode(self._held, skip_special_tokens=False)
        if new.endswith("\ufffd"):  # a character that ends with the next token
            return ""
        self._held = []
        if self.done or text == new:
            return ""
        self._text += new
        if self.name is None:
            found = self._begin.search(self._text)
            if found is None:
                self._text = self._text[-_WINDOW:]
                return ""
            self.name = found.group(1)
            self._text = self._text[found.end() :]
        said, self._text = _read_string(self._text)
        self.done = self._text.startswith('"')
        return said


class LedgerWatch:
    """Reads MagenticOne's progress ledger while it is written: who is next, then what he is told.

    Attributes:
        speaker: the next speaker, once his name is complete.
        satisfied: the ledger says that the request is satisfied: nobody is next.
    """

    _SATISFIED = re.compile(r'"is_request_satisfied"\s*:\s*\{.*?"answer"\s*:\s*(true|false)', re.DOTALL)
    _SPEAKER = re.compile(r'"next_speaker"\s*:\s*\{.*?"answer"\s*:\s*"((?:[^"\\]|\\.)*)"', re.DOTALL)
    _BEGIN = re.compile(r'"instruction_or_question"\s*:\s*\{.*?"answer"\s*:\s*"', re.DOTALL)

    def __init__(self) -> None:
        self.speaker: str | None = None
        self.satisfied = False
        self._text = ""
        self._open = False
        self._done = False

    def feed(self, text: str) -> str:
        """Take more of the ledger; returns what is new of the instruction."""
        if self._done:
            return ""
        self._text += text
        if not self.satisfied and (found := self._SATISFIED.search(self._text)) is not None:
            self.satisfied = found.group(1) == "true"
        if self.speaker is None:
            found = self._SPEAKER.search(self._text)
            if found is None:
                return ""
            self.speaker = _unescape(found.group(1))
            self._text = self._text[found.end() :]
        if not self._open:
            found = self._BEGIN.search(self._text)
            if found is None:
                return ""
            self._open = True
            self._text = self._text[found.end() :]
        new, self._text = _read_string(self._text)
        self._done = self._text.startswith('"')
        return new

    @property
    def done(self) -> bool:
        """The instruction is whole."""
        return self._done


def _read_string(raw: str) -> tuple[str, str]:
    """Inside a JSON string: what it says as far as that is sure, and what is left of the raw text."""
    found = _PIECE.match(raw)
    assert found is not None
    return _unescape(found.group()), raw[found.end() :]


def _unescape(raw: str) -> str:
    try:
        return str(json.loads(f'"{raw}"', strict=False))
    except ValueError:
        return ""


__all__ = ["LedgerWatch", "TaskWatch", "ToolNameWatch"]
