"""Finds added tokens (`<|im_end|>`, `<think>`) in a growing text, as the tokenizer itself will.

`tokenizers` takes added tokens out of the text before anything else: at each place the longest one,
from left to right, without overlap. The pieces between them are then normalised and split on their
own, so both ends of an added token are seams that no token crosses.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from .split_pattern import WHITE_SPACE


@dataclass(frozen=True)
class AddedToken:
    """One added token; `lstrip`, `rstrip`: it swallows the white space beside it."""

    content: str
    lstrip: bool = False
    rstrip: bool = False


@dataclass(frozen=True)
class Match:
    """An added token at `[start, end)` of the text, the white space that it swallows included."""

    start: int
    end: int


_Node = dict[str, "_Node"]
_END = ""  # key of a node where a token ends; characters are never empty


class AddedTokenFinder:
    """Leftmost-longest search for a fixed set of added tokens.

    Args:
        tokens: the added tokens; empty contents are ignored, as `tokenizers` does.
    """

    def __init__(self, tokens: Iterable[AddedToken]) -> None:
        self._root: _Node = {}
        self._strip: dict[str, AddedToken] = {}
        firsts = set()
        for token in tokens:
            if not token.content:
                continue
            firsts.add(token.content[0])
            node = self._root
            for char in token.content:
                node = node.setdefault(char, {})
            node[_END] = {}
            if token.lstrip or token.rstrip:
                self._strip[token.content] = token
        self.strips_left = any(token.lstrip for token in self._strip.values())
        chars = "".join(re.escape(char) for char in sorted(firsts))
        self._first = re.compile(f"[{chars}]") if firsts else None

    def find(self, text: str, start: int, end: int, floor: int = 0) -> tuple[list[Match], int]:
        """The matches in `text[start:end]` that no later text can change.

        Args:
            text: the text; `start` is no place inside a match.
            start: where to begin.
            end: how far the text is known.
            floor: end of the last match before `start`; white space is swallowed back to there.

        Returns:
            The matches, and the place up to which all is decided: `end`, or the place where an added
            token may have begun that is not whole yet. Go on from there when there is more text.
        """
        out: list[Match] = []
        if self._first is None:
            return out, end
        while (found := self._first.search(text, start, end)) is not None:
            start = found.start()
            node, pos, longest = self._root, start, -1
            while pos < end and (child := node.get(text[pos])) is not None:
                node = child
                pos += 1
                if _END in node:
                    longest = pos
            if pos == end and len(node) > (_END in node):
                return out, start  # the text ended inside the trie: a longer one is possible
            if longest < 0:
                start += 1
                continue
            strip = self._strip.get(text[start:longest]) if self._strip else None
            left, right = start, longest
            if strip is not None and strip.rstrip:
                while right < end and text[right] in WHITE_SPACE:
                    right += 1
                if right == end:
                    return out, start  # more white space may come
            if strip is not None and strip.lstrip:
                while left > floor and text[left - 1] in WHITE_SPACE:
                    left -= 1
            out.append(Match(left, right))
            start = floor = right
        return out, end


def may_overlap(first: Iterable[str], second: Iterable[str]) -> bool:
    """Whether an added token of `first` and another one of `second` may overlap in some text."""
    one, two = set(first), set(second)

    def runs_into(mine: set[str], others: set[str]) -> bool:
        begins = {content[:n] for content in others for n in range(1, len(content) + 1)}
        for content in mine:
            for i in range(len(content)):
                rest = content[i:]
                if i > 0 and rest in begins:
                    return True
                if any(rest[:n] in others for n in range(1, len(rest) + 1)):
                    return True
        return False

    return runs_into(one, two) or runs_into(two, one)


__all__ = ["AddedToken", "AddedTokenFinder", "Match", "may_overlap"]
