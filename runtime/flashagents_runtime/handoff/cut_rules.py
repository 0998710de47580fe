"""Where the text of one tokenizer may be cut so that the parts tokenise as the whole does.

`CutRules` reads what a `tokenizers.Tokenizer` is made of (normaliser, pre-tokenizer, added tokens,
model) and answers one question about two neighbouring characters a, b: is the seam `a|b` one that no
token crosses, and that changes nothing on either side, in every text that holds it? The parts:

- *Added tokens* are taken out first; both their ends are seams (`added_tokens`).
- *Normaliser*: none, NFC (a seam stands before a character that composes with nothing before it) or
  a replacement of the space by the metaspace.
- *Pre-tokenizer*: every expression in it must let no match run over the seam, and one of them must
  split there (`split_pattern`).
- *Model*: where no expression splits (SentencePiece-like tokenizers), a BPE model does not merge over
  the seam if `ab` occurs in no token of its vocabulary.

Anything else is not understood, and then nothing is called a seam (`CutRules.reason` says why): the
text is tokenised when it has ended, which is slow but never wrong.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tokenizers import Tokenizer
from tokenizers.models import BPE

from .added_tokens import AddedToken, AddedTokenFinder, may_overlap
from .split_pattern import WHITE_SPACE, SplitPattern, UnsupportedPatternError

#: The expression built into `ByteLevel(use_regex=True)`: GPT-2's.
GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

_SPACES = frozenset(" \u2581")
_CACHE_LIMIT = 1 << 16
#: ASCII characters that combine with marks after them: letters, and `<`, `=`, `>` (with U+0338).
_COMPOSING_ASCII = frozenset("<=>") | {chr(c) for c in range(128) if chr(c).isalpha()}


class _NotUnderstood(Exception):
    """A part of the tokenizer whose seams are not known; the text says which."""


@dataclass(frozen=True)
class _Split:
    """One splitting step: its expression, and what it does with the matches."""

    pattern: SplitPattern
    behavior: str = "Isolated"


class CutRules:
    """The seams of one tokenizer. Build it once for each tokenizer and share it; it is not changed.

    Building takes milliseconds, but up to half a second for vocabularies of 256k tokens without a
    splitting pre-tokenizer (Gemma): do it where the tokenizer is loaded.

    Args:
        tokenizer: a `tokenizers.Tokenizer`, or anything that has one as `backend_tokenizer` (fast
            tokenizers of transformers, `HFChatTokenizer`). It must not be changed afterwards. Also
            anything with `encode(text)`: with `context_free = True` every place is a seam
            (`ByteChatTokenizer`), without it none is.

    Attributes:
        reason: why nothing can be committed before the text ends; None where seams are known.
        finder: finds the added tokens.
        composes: the normaliser is NFC.
        cuts_after_added: the end of an added token is a seam.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.composes = False
        self.cuts_after_added = True
        self.reason: str | None = None
        self.finder = AddedTokenFinder([])
        self._splits: list[_Split] = []
        self._map: dict[str, str] = {}  # what the normaliser turns single characters into
        self._space_only = False  # a part gets a prefix unless it begins with a space
        self._byte_level = False
        self._pairs: set[tuple[str, str]] | None = None  # neighbours inside tokens of the vocabulary
        self._alphabet: frozenset[str] = frozenset()
        self._fuses_unknown = False
        self._signatures: dict[str, list[tuple[int, int]]] = {}
        self._cache: dict[str, bool] = {}
        self._everywhere = bool(getattr(tokenizer, "context_free", False))
        backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
        if not isinstance(backend, Tokenizer):
            self._encode: Callable[[str], list[int]] = tokenizer.encode
            if not self._everywhere:
                self.reason = f"{type(tokenizer).__name__}, which has no backend_tokenizer"
            return
        self._tokenizer = _whole_texts_only(backend)
        self._encode = self._encode_with_backend
        try:
            self._read_normalizer(_state(backend.normalizer))
            self._read_added_tokens()
            self._read_pre_tokenizer(_state(backend.pre_tokenizer))
            self._read_model()
        except (_NotUnderstood, UnsupportedPatternError) as error:
            self.reason = str(error)

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, without special tokens around it."""
        return self._encode(text) if text else []

    def _encode_with_backend(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def is_seam(self, pair: str) -> bool:
        """Whether the tokens of every text `x + pair[0]` and `pair[1] + y` are those of the whole.

        The two characters are ordinary text (not inside an added token) and, with an NFC normaliser,
        normalised, the second one not about to change by composition: see `last_seam`.
        """
        known = self._cache.get(pair)
        if known is None:
            known = self._judge(pair)
            if len(self._cache) >= _CACHE_LIMIT:
                self._cache.clear()
            self._cache[pair] = known
        return known

    def last_seam(self, text: str, low: int, high: int, end: int) -> int | None:
        """The last seam c with low < c <= high, or None.

        Args:
            text: the text; `[low, high)` is ordinary and begins at a seam, or at the start.
            low: seams are looked for after it.
            high: seams are looked for up to it.
            end: how far the text is known; nothing is known about what comes at `end`.
        """
        if self._everywhere:
            return high if high > low else None
        for c in range(min(high, end - 1), low, -1):
            pair = text[c - 1 : c + 1]
            if self.composes and not pair.isascii():
                composed = self._composed_pair(text, low, c)
                if composed is None:
                    continue
                pair = composed
            if not self.is_seam(pair):
                continue
            if not self.composes or _is_settled(text, c, end):
                return c
        return None

    @staticmethod
    def _composed_pair(text: str, low: int, c: int) -> str | None:
        """The characters around c after NFC; None where c is inside a composition."""
        if not composes_with_nothing_before(text[c]):
            return None
        start = c - 1
        while start > low and not composes_with_nothing_before(text[start]):
            start -= 1
        return unicodedata.normalize("NFC", text[start:c])[-1] + text[c]

    def _judge(self, pair: str) -> bool:
        a, b = pair[0], pair[1]
        if self._space_only and b != " ":
            return False
        if self.finder.strips_left and a in WHITE_SPACE:
            return False
        a, b = self._map.get(a, a), self._map.get(b, b)
        splits_here = False
        for i, split in enumerate(self._splits):
            (may_a, sure_a), (may_b, sure_b) = self._signature(a)[i], self._signature(b)[i]
            pattern = split.pattern
            if pattern.after(may_a) & may_b:
                return False
            begins, ends = bool(may_b & pattern.first), bool(may_a & pattern.last)
            if (
                (split.behavior == "MergedWithPrevious" and begins)
                or (split.behavior == "MergedWithNext" and ends)
                or (split.behavior == "Contiguous" and begins and ends)
            ):
                return False
            if (sure_a | sure_b) & pattern.single:
                splits_here = True
        return splits_here or self._never_merges(a, b)

    def _signature(self, char: str) -> list[tuple[int, int]]:
        known = self._signatures.get(char)
        if known is None:
            known = [split.pattern.signature(char) for split in self._splits]
            if len(self._signatures) >= _CACHE_LIMIT:
                self._signatures.clear()
            self._signatures[char] = known
        return known

    def _never_merges(self, a: str, b: str) -> bool:
        if self._pairs is None or (a, b) in self._pairs:
            return False
        return not self._fuses_unknown or a in self._alphabet or b in self._alphabet

    # Reading the tokenizer.

    def _read_normalizer(self, state: dict[str, Any] | None) -> None:
        for step in _flat(state, "normalizers"):
            if step["type"] == "NFC":
                self.composes = True
                continue
            if step["type"] == "Replace" and not self._map:
                old, new = str(step["pattern"].get("String")), str(step["content"])
                if {old, new} == _SPACES:
                    self._map = {old: new}
                    continue
            raise _NotUnderstood(f"the normaliser {step['type']}")

    def _read_added_tokens(self) -> None:
        plain: list[AddedToken] = []
        normalized: list[AddedToken] = []
        for token in self._tokenizer.get_added_tokens_decoder().values():
            if token.special and self._tokenizer.encode_special_tokens:
                continue  # told to treat them as ordinary text
            if token.single_word:
                raise _NotUnderstood(f"the added token {token.content!r}, found only between words")
            kind = normalized if token.normalized else plain
            kind.append(AddedToken(token.content, lstrip=token.lstrip, rstrip=token.rstrip))
        contents = [token.content for token in normalized]
        if contents and (self.composes or any(set(self._map) & set(content) for content in contents)):
            raise _NotUnderstood("added tokens that are found after normalisation")
        if contents and may_overlap(contents, (token.content for token in plain)):
            raise _NotUnderstood("added tokens of two kinds that may overlap")
        self.finder = AddedTokenFinder([*plain, *normalized])

    def _read_pre_tokenizer(self, state: dict[str, Any] | None) -> None:
        steps = _flat(state, "pretokenizers")
        for step in steps:
            kind = step["type"]
            if kind == "Split":
                self._add_split(step)
            elif kind == "Digits":
                behavior = "Isolated" if step["individual_digits"] else "Contiguous"
                self._splits.append(_Split(SplitPattern(r"\p{N}"), behavior))
            elif kind == "Punctuation":
                pattern = SplitPattern(r"[\p{P}$+<=>^`|~]")  # Unicode punctuation, and the rest of ASCII's
                self._splits.append(_Split(pattern, step["behavior"]))
            elif kind == "ByteLevel":
                self._byte_level = True
                self._space_only |= step["add_prefix_space"]
                if step["use_regex"]:
                    self._splits.append(_Split(SplitPattern(GPT2_PATTERN)))
            elif kind == "Metaspace" and len(steps) == 1 and not self._map:
                self._map = {" ": step["replacement"]}
                self._space_only |= step["prepend_scheme"] != "never"
                self.cuts_after_added = step["prepend_scheme"] != "first"
                if step["split"]:
                    self._splits.append(_Split(SplitPattern(step["replacement"]), "MergedWithNext"))
            else:
                raise _NotUnderstood(f"the pre-tokenizer {kind}")

    def _add_split(self, step: dict[str, Any]) -> None:
        literal = step["pattern"].get("String")
        behavior = step["behavior"]
        if literal is not None:
            if any(self._map.get(char, char) != char for char in literal):
                return  # the normaliser leaves none of them
            pattern = SplitPattern("".join(f"\\x{{{ord(char):x}}}" for char in literal))
        else:
            pattern = SplitPattern(step["pattern"]["Regex"])
        if step["invert"] and behavior not in ("Isolated", "Removed"):
            raise _NotUnderstood(f"an inverted split with the behaviour {behavior}")
        self._splits.append(_Split(pattern, behavior))

    def _read_model(self) -> None:
        model = self._tokenizer.model
        if not isinstance(model, BPE):
            return  # each word on its own; only the pre-tokenizer's splits are seams
        if model.dropout:
            raise _NotUnderstood("BPE with dropout, which is random")
        if self._byte_level or model.continuing_subword_prefix or model.end_of_word_suffix:
            return
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=False)
        pairs: set[tuple[str, str]] = set()
        for token in vocabulary:
            pairs.update(pairwise(token))
        self._pairs = pairs
        self._alphabet = frozenset(token for token in vocabulary if len(token) == 1)
        falls_back = model.byte_fallback and all(f"<0x{byte:02X}>" in vocabulary for byte in range(256))
        self._fuses_unknown = model.fuse_unk and not falls_back


def _whole_texts_only(tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer, or a copy of it, without truncation and padding."""
    if tokenizer.truncation is None and tokenizer.padding is None:
        return tokenizer
    copy = Tokenizer.from_str(tokenizer.to_str())
    copy.no_truncation()
    copy.no_padding()
    return copy


def _state(component: Any) -> dict[str, Any] | None:
    """A component's serialised form."""
    if component is None:
        return None
    state: dict[str, Any] = json.loads(component.__getstate__())
    return state


def _flat(state: dict[str, Any] | None, key: str) -> list[dict[str, Any]]:
    if state is None:
        return []
    if state["type"] != "Sequence":
        return [state]
    return [step for inner in state[key] for step in _flat(inner, key)]


def composes_with_nothing_before(char: str) -> bool:
    """Whether NFC leaves the character as it is and never joins it to what stands before it.

    Narrower than Unicode's "NFC_Quick_Check=Yes, not a mark", on purpose: the tokenizer's Unicode data may
    be newer than Python's, so unassigned code points and vowel signs of any kind say no.
    """
    if char < "\u0300":
        return True  # no character below is a mark or second in a composition
    if "\u1100" <= char <= "\u11ff" or "\U00016d40" <= char <= "\U00016d7f":
        return False  # Hangul jamo and Kirat Rai vowels compose although they are letters
    category = unicodedata.category(char)
    return category[0] != "M" and category != "Cn" and unicodedata.is_normalized("NFC", char)


def _is_settled(text: str, c: int, end: int) -> bool:
    """Whether later text can no longer change `text[c]` by composition."""
    if text[c] < "\x80" and text[c] not in _COMPOSING_ASCII:
        return True
    return c + 1 < end and composes_with_nothing_before(text[c + 1])


__all__ = ["GPT2_PATTERN", "CutRules", "composes_with_nothing_before"]
