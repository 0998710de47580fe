r"""Where a pre-tokenizer's regular expression must split, whatever text comes later.

A pre-tokenizer cuts text at the ends of the matches of one expression, for example (Llama 3)
`[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`.
To know that a cut is final one need not run it. It is enough to know, from the expression alone, which
pairs of neighbouring characters one match may read in a row:

- The *leaves* of the expression are its single-character parts (`\p{L}`, ` `, `[\r\n]`).
- `follow[p]` is the set of leaves that may be read directly after leaf p inside one match or one of
  its lookaheads (Glushkov's construction).

If no leaf that reads `a` is followed by a leaf that reads `b`, then no match and no lookahead ever goes
over the seam `a|b`: an attempt that has read `a` fails at `b` exactly as it would fail at the end of
the text. So the matches left of the seam are those of the left part alone, and those right of it are
those of the right part alone. If besides one of `a`, `b` is a character that alone makes a whole match
(`single`), that character is always inside a match, so there is a split at the seam.

Sets are kept as bit masks over the leaves. Where a class is not known exactly (a case-insensitive
letter, a code point that this Python's Unicode data does not know yet), `follow` is taken too large and
`single` too small: the tokenizer then commits less, never wrongly.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, field

Predicate = Callable[[str], bool]

#: Oniguruma's `\s`: the Unicode property White_Space.
WHITE_SPACE = frozenset(
    map(chr, [*range(9, 14), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F])
) | {"\u205f", "\u3000"}

_ESCAPES = {"r": "\r", "n": "\n", "t": "\t", "f": "\f", "v": "\v", "a": "\a", "e": "\x1b"}
_MAJOR = frozenset("LMNPSZC")


class UnsupportedPatternError(ValueError):
    """The expression has a part whose splits are not understood: lookbehind, anchors, back references."""


@dataclass(frozen=True)
class Leaf:
    """One single-character part. `exact`: `reads` is neither too wide nor too narrow."""

    reads: Predicate
    exact: bool = True


@dataclass
class _Part:
    """What a sub-expression may read: masks over the leaves. `single`: leaves that are a whole match."""

    first: int = 0
    last: int = 0
    single: int = 0
    nullable: bool = False
    skippable: bool = False  # may be left out with no condition on the text around it


@dataclass
class SplitPattern:
    """The neighbour relation of one expression (see the module's docstring).

    Attributes:
        leaves: the single-character parts, in order.
        follow: for each leaf, the leaves that may be read directly after it.
        single: leaves that make a whole match alone, and are exact.
        first: leaves that may begin a match.
        last: leaves that may end a match.

    Raises:
        UnsupportedPatternError: the expression is outside the supported part of the syntax.
    """

    pattern: str
    leaves: list[Leaf] = field(default_factory=list)
    follow: list[int] = field(default_factory=list)
    single: int = 0
    first: int = 0
    last: int = 0

    def __post_init__(self) -> None:
        part = _Parser(self).parse()
        if part.nullable:
            raise UnsupportedPatternError(f"the pattern matches the empty text: {self.pattern!r}")
        self.first, self.last, self.single = part.first, part.last, part.single

    def signature(self, char: str) -> tuple[int, int]:
        """Masks of the leaves that may read `char`, and of those that surely do."""
        if unicodedata.category(char) == "Cn":  # the tokenizer's Unicode data may be newer than ours
            return (1 << len(self.leaves)) - 1, 0
        may = sure = 0
        for i, leaf in enumerate(self.leaves):
            if leaf.reads(char):
                may |= 1 << i
                sure |= leaf.exact << i
        return may, sure

    def after(self, may: int) -> int:
        """The leaves that may be read after a character that the leaves in `may` may read."""
        out = 0
        for i, follow in enumerate(self.follow):
            if may >> i & 1:
                out |= follow
        return out


def unicode_property(name: str) -> Predicate:
    r"""The predicate of `\p{name}` for general categories ("L", "Lu", "N", "Han" is unsupported)."""
    name = name.strip()
    if name in _MAJOR:
        return lambda char: unicodedata.category(char)[0] == name
    if len(name) == 2 and name[0] in _MAJOR and name[1].islower():
        return lambda char: unicodedata.category(char) == name
    raise UnsupportedPatternError(f"unknown Unicode property {name!r}")


def _is_word(char: str) -> bool:
    category = unicodedata.category(char)
    return category[0] in "LMN" or category == "Pc" or char in "\u200c\u200d"


def _not(predicate: Predicate) -> Predicate:
    return lambda char: not predicate(char)


def _any_of(predicates: list[Predicate]) -> Predicate:
    return lambda char: any(predicate(char) for predicate in predicates)


class _Parser:
    """Recursive descent over the part of Oniguruma's syntax that pre-tokenizers use."""

    def __init__(self, target: SplitPattern) -> None:
        self.target = target
        self.text = target.pattern
        self.pos = 0

    def parse(self) -> _Part:
        part = self._alternation(False)
        if self.pos != len(self.text):
            raise self._unsupported("an unbalanced bracket")
        return part

    def _unsupported(self, what: str) -> UnsupportedPatternError:
        return UnsupportedPatternError(f"{what} at {self.pos} of {self.text!r}")

    def _peek(self, token: str) -> bool:
        return self.text.startswith(token, self.pos)

    def _eat(self, token: str) -> bool:
        if not self._peek(token):
            return False
        self.pos += len(token)
        return True

    def _next(self) -> str:
        if self.pos >= len(self.text):
            raise self._unsupported("the end of the pattern")
        self.pos += 1
        return self.text[self.pos - 1]

    def _connect(self, last: int, first: int) -> None:
        for i in range(len(self.target.follow)):
            if last >> i & 1:
                self.target.follow[i] |= first

    def _alternation(self, fold: bool) -> _Part:
        out = self._sequence(fold)
        while self._eat("|"):
            other = self._sequence(fold)
            out = _Part(
                out.first | other.first,
                out.last | other.last,
                out.single | other.single,
                out.nullable or other.nullable,
                out.skippable or other.skippable,
            )
        return out

    def _sequence(self, fold: bool) -> _Part:
        out = _Part(nullable=True, skippable=True)
        while self.pos < len(self.text) and self.text[self.pos] not in "|)":
            out = self._then(out, self._quantified(fold))
        return out

    def _then(self, left: _Part, right: _Part) -> _Part:
        self._connect(left.last, right.first)
        return _Part(
            left.first | right.first if left.nullable else left.first,
            left.last | right.last if right.nullable else right.last,
            (left.single if right.skippable else 0) | (right.single if left.skippable else 0),
            left.nullable and right.nullable,
            left.skippable and right.skippable,
        )

    def _quantified(self, fold: bool) -> _Part:
        part = self._atom(fold)
        while True:
            possessive_may_follow = True
            if self._eat("*"):
                least, many = 0, True
            elif self._eat("+"):
                least, many = 1, True
            elif self._eat("?"):
                least, many = 0, False
            elif self._peek("{") and (bounds := self._bounds()) is not None:
                least, many = bounds
                possessive_may_follow = False  # in Ruby's syntax `{1,3}+` repeats the repetition
            else:
                return part
            if many:
                self._connect(part.last, part.first)
            skippable = part.skippable or least == 0
            part = _Part(
                part.first,
                part.last,
                part.single if least <= 1 else 0,
                part.nullable or least == 0,
                skippable,
            )
            if self._eat("?"):
                pass  # lazy: other matches, the same neighbours
            elif possessive_may_follow and self._eat("+"):
                # It may take a character that the rest needs: not left out freely, no sure match.
                part = _Part(part.first, part.last, 0, part.nullable, False)

    def _bounds(self) -> tuple[int, bool] | None:
        end = self.text.find("}", self.pos)
        inner = self.text[self.pos + 1 : end].split(",") if end > 0 else []
        if not inner or len(inner) > 2 or not all(part == "" or part.isdigit() for part in inner):
            return None  # a literal brace
        if inner == [""]:
            return None
        self.pos = end + 1
        least = int(inner[0] or 0)
        most = least if len(inner) == 1 else int(inner[1]) if inner[1] else None
        return least, most is None or most > 1

    def _atom(self, fold: bool) -> _Part:
        if self._eat("("):
            return self._group(fold)
        char = self._next()
        if char == "[":
            return self._leaf(*self._set(fold))
        if char == "\\":
            predicate, literal = self._escape()
            if literal is not None:
                return self._literal(literal, fold)
            if fold or predicate is _is_word:
                return self._leaf(lambda c: True if fold else _is_word(c), exact=False)
            return self._leaf(predicate)
        if char == ".":
            return self._leaf(lambda c: c != "\n")
        if char in "^$":
            raise self._unsupported("an anchor")
        return self._literal(char, fold)

    def _group(self, fold: bool) -> _Part:
        look = atomic = False
        if self._eat("?"):
            if self._eat("=") or self._eat("!"):
                look = True
            elif self._eat(">"):
                atomic = True
            elif self._eat("i:"):
                fold = True
            elif not self._eat(":"):
                raise self._unsupported("a group of an unknown kind")
        part = self._alternation(fold)
        if not self._eat(")"):
            raise self._unsupported("an unclosed group")
        if look:
            # Reads on from where it stands, but what follows it is read from there again.
            return _Part(part.first, 0, 0, True, False)
        if atomic:
            return _Part(part.first, part.last, 0, part.nullable, False)
        return part

    def _leaf(self, reads: Predicate, exact: bool = True) -> _Part:
        bit = 1 << len(self.target.leaves)
        self.target.leaves.append(Leaf(reads, exact))
        self.target.follow.append(0)
        return _Part(bit, bit, bit if exact else 0)

    def _literal(self, char: str, fold: bool) -> _Part:
        if fold and char.isalpha():
            # Case folding reaches letters elsewhere in Unicode (K and the Kelvin sign): take any letter.
            return self._leaf(lambda c: unicodedata.category(c)[0] in "LM", exact=False)
        return self._leaf(lambda c: c == char)

    def _escape(self) -> tuple[Predicate, str | None]:
        """The class, or the literal character, after a backslash."""
        char = self._next()
        if char in _ESCAPES:
            return _is_word, _ESCAPES[char]
        if char in "sS":
            predicate: Predicate = WHITE_SPACE.__contains__
            return (predicate if char == "s" else _not(predicate)), None
        if char in "dD":
            predicate = unicode_property("Nd")
            return (predicate if char == "d" else _not(predicate)), None
        if char == "w":
            return _is_word, None
        if char in "pP":
            if not self._eat("{"):
                raise self._unsupported("a property without braces")
            negated = (char == "P") ^ self._eat("^")
            end = self.text.find("}", self.pos)
            predicate = unicode_property(self.text[self.pos : end])
            self.pos = end + 1
            return (_not(predicate) if negated else predicate), None
        if char == "x" and self._eat("{"):
            end = self.text.find("}", self.pos)
            literal = chr(int(self.text[self.pos : end], 16))
            self.pos = end + 1
            return _is_word, literal
        if char in "xu":
            digits = 2 if char == "x" else 4
            literal = chr(int(self.text[self.pos : self.pos + digits], 16))
            self.pos += digits
            return _is_word, literal
        if char.isalnum():
            raise self._unsupported(f"the escape \\{char}")
        return _is_word, char

    def _set(self, fold: bool) -> tuple[Predicate, bool]:
        """A bracketed set, after its opening bracket, and whether it is exact."""
        negated = self._eat("^")
        predicates: list[Predicate] = []
        exact = True
        start = self.pos
        while not (self._peek("]") and self.pos > start):
            if self._peek("[") or self._peek("&&"):
                raise self._unsupported("a nested set")
            predicate, low = self._set_item()
            if low is not None and self._peek("-") and not self._peek("-]"):
                self._next()
                _, high = self._set_item()
                if high is None:
                    raise self._unsupported("a range that ends in a class")
                predicate = self._range(low, high)
                exact = exact and not fold
            elif low is not None:
                predicate = self._range(low, low)
                exact = exact and not (fold and low.isalpha())
            elif fold or predicate is _is_word:
                exact = False
            predicates.append(predicate)
        self._next()
        if not exact:
            # Folded letters or \w: too wide on purpose.
            wide: Predicate = (lambda c: True) if negated else _any_of([*predicates, _is_word])
            return wide, False
        union = _any_of(predicates)
        return (_not(union) if negated else union), True

    def _set_item(self) -> tuple[Predicate, str | None]:
        char = self._next()
        return self._escape() if char == "\\" else (_is_word, char)

    @staticmethod
    def _range(low: str, high: str) -> Predicate:
        return lambda char: low <= char <= high


__all__ = ["WHITE_SPACE", "Leaf", "Predicate", "SplitPattern", "UnsupportedPatternError", "unicode_property"]
