"""Seams of all kinds of tokenizers: what is understood is exact, what is not is left alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, trainers
from tokenizers import pre_tokenizers as pre

from flashagents_runtime.chat_tokenizer import ByteChatTokenizer
from flashagents_runtime.handoff import CutRules, StableTokenizer
from flashagents_runtime.handoff.split_pattern import SplitPattern, UnsupportedPatternError

O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
POSSESSIVE = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)
CORPUS = [
    "the cat sat on the mat. the dog's day, it's 12 or 1234 o'clock!\n\nAnd then: a+b == c; x_1 -> y_2 ...\n",
    "  indented    code:\n\n\n    return [1, 2, 3]  # done ",
    "caf\u00e9 na\u00efve \u4e2d\u6587\u4e2d\u6587 \u65e5\u672c " * 2,
] * 8


def split(pattern: str, behavior: str = "isolated") -> pre.PreTokenizer:
    return pre.Split(Regex(pattern), behavior)


def byte_level(*steps: Any, prefix: bool = False, use_regex: bool = False) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre.Sequence(
        [*steps, pre.ByteLevel(add_prefix_space=prefix, use_regex=use_regex)]
    )
    alphabet = pre.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def by_characters(pre_tokenizer: Any, normalizer: Any = None, *, unigram: bool = False) -> Tokenizer:
    model: Any = models.Unigram() if unigram else models.BPE(unk_token="<unk>", fuse_unk=True)
    tokenizer = Tokenizer(model)
    if pre_tokenizer is not None:
        tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    kind = trainers.UnigramTrainer if unigram else trainers.BpeTrainer
    trainer = kind(vocab_size=300, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def with_added(tokenizer: Tokenizer, *tokens: AddedToken) -> Tokenizer:
    tokenizer.add_special_tokens(list(tokens))
    return tokenizer


def with_normalizer(tokenizer: Tokenizer, normalizer: Any) -> Tokenizer:
    tokenizer.normalizer = normalizer
    return tokenizer


METASPACE = "\u2581"
UNDERSTOOD: dict[str, Callable[[], Tokenizer]] = {
    "gpt2": lambda: byte_level(use_regex=True),
    "gpt2-prefix": lambda: byte_level(use_regex=True, prefix=True),
    "o200k": lambda: byte_level(split(O200K)),
    "possessive": lambda: byte_level(split(POSSESSIVE)),
    "digits-together": lambda: byte_level(pre.Digits(individual_digits=False), use_regex=True),
    "punctuation": lambda: byte_level(pre.Punctuation("isolated"), pre.Digits(True), use_regex=True),
    "punctuation-joins": lambda: byte_level(pre.Punctuation("contiguous"), use_regex=True),
    "split-before-space": lambda: byte_level(split(" ", "merged_with_next")),
    "split-after-space": lambda: byte_level(split(" ", "merged_with_previous")),
    "space-removed": lambda: byte_level(split(r"\s+", "removed")),
    "words-alone": lambda: byte_level(pre.Split(Regex(r"[a-z]+"), "removed", invert=True)),
    "nfc": lambda: with_normalizer(byte_level(use_regex=True), normalizers.NFC()),
    "rstrip": lambda: with_added(
        byte_level(use_regex=True), AddedToken("<|a|>", rstrip=True), AddedToken("<|ab|>")
    ),
    "lstrip": lambda: with_added(
        byte_level(use_regex=True), AddedToken("<|a|>", lstrip=True), AddedToken("<|", rstrip=True)
    ),
    "normalized-added": lambda: with_added(byte_level(use_regex=True), AddedToken("<|a|>", normalized=True)),
    "metaspace-first": lambda: with_added(
        by_characters(pre.Metaspace(prepend_scheme="first", split=False)), AddedToken("<|a|>")
    ),
    "metaspace-always": lambda: with_added(
        by_characters(pre.Metaspace(prepend_scheme="always", split=True)), AddedToken("<|a|>")
    ),
    "metaspace-never": lambda: by_characters(pre.Metaspace(prepend_scheme="never", split=True)),
    "unigram": lambda: by_characters(pre.Metaspace(prepend_scheme="never", split=True), unigram=True),
    "gemma-like": lambda: by_characters(
        pre.Split(" ", "merged_with_previous"), normalizers.Replace(" ", METASPACE)
    ),
    "no-pre-tokenizer": lambda: by_characters(None),
}

WORDS = [
    *(
        "the",
        " cat",
        "'s",
        "'LL",
        " ",
        "  ",
        "\n",
        "\n\n",
        "\t",
        "12",
        "1234",
        "A",
        "aB",
        "ABc",
        "...",
        "!",
        "_",
    ),
    *(
        "<|a|>",
        "<|ab|>",
        "<|",
        "|>",
        "a|>",
        "\u4e2d\u6587",
        "\u65e5",
        "e\u0301",
        "\u0301",
        "=\u0338",
        METASPACE,
    ),
    *("x/", "\r\n/", "\u00a0", "\u017f", "\u0378", "\U0001f469\u200d", "\u0663", "$", "+", "'", "o'clock"),
    *("!", "_", METASPACE),
]
TEXTS = st.lists(st.one_of(st.sampled_from(WORDS), st.text(max_size=3)), max_size=12)


@pytest.mark.parametrize("name", UNDERSTOOD)
def test_what_is_understood_is_exact(name: str) -> None:
    rules = CutRules(UNDERSTOOD[name]())
    assert rules.reason is None
    committed_early = 0

    @settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
    @given(deltas=TEXTS, more=TEXTS)
    def check(deltas: list[str], more: list[str]) -> None:
        nonlocal committed_early
        growing = StableTokenizer(rules, batch=1)
        said = ""
        for delta in deltas:
            growing.feed(delta)
            said += delta
            for future in (said.rstrip(), said + "".join(more), said.rstrip() + "".join(more)):
                assert rules.encode(future)[: len(growing.ids)] == growing.ids
        committed_early += len(growing.ids)
        assert growing.finish("".join(more)) == rules.encode("".join([*deltas, *more]))

    check()
    assert committed_early > 20  # it is not exact by doing nothing


NOT_UNDERSTOOD: dict[str, tuple[Callable[[], Tokenizer], str]] = {
    "lowercase": (lambda: with_normalizer(byte_level(use_regex=True), normalizers.Lowercase()), "Lowercase"),
    "prepend": (lambda: by_characters(None, normalizers.Prepend(METASPACE)), "Prepend"),
    "whitespace": (lambda: by_characters(pre.Whitespace()), "Whitespace"),
    "lookbehind": (lambda: byte_level(split(r"(?<=a)b|.")), "group of an unknown kind"),
    "anchor": (lambda: byte_level(split(r"^a|.")), "anchor"),
    "single-word": (
        lambda: with_added(byte_level(use_regex=True), AddedToken("mask", single_word=True)),
        "between words",
    ),
    "normalized-nfc": (
        lambda: with_added(
            with_normalizer(byte_level(use_regex=True), normalizers.NFC()), AddedToken("<a>", normalized=True)
        ),
        "after normalisation",
    ),
    "two-kinds-overlap": (
        lambda: with_added(
            byte_level(use_regex=True), AddedToken("<a>", normalized=True), AddedToken(">b", normalized=False)
        ),
        "two kinds",
    ),
}


@pytest.mark.parametrize("name", NOT_UNDERSTOOD)
def test_what_is_not_understood_waits_for_the_end(name: str) -> None:
    build, reason = NOT_UNDERSTOOD[name]
    rules = CutRules(build())
    assert rules.reason is not None and reason in rules.reason
    growing = StableTokenizer(rules, "head ", batch=1)
    growing.feed("the cat sat on a mat")
    assert growing.ids == []
    assert growing.finish(" end") == rules.encode("head the cat sat on a mat end")


def test_truncation_and_padding_are_left_to_others() -> None:
    tokenizer = byte_level(use_regex=True)
    whole = tokenizer.encode("the cat sat on the mat").ids
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=64)
    assert CutRules(tokenizer).encode("the cat sat on the mat") == whole
    assert len(tokenizer.encode("the cat").ids) == 64


def test_special_tokens_told_to_be_text_are_text() -> None:
    tokenizer = with_added(byte_level(use_regex=True), AddedToken("<|a|>", special=True))
    tokenizer.encode_special_tokens = True
    rules = CutRules(tokenizer)
    growing = StableTokenizer(rules, batch=1)
    for delta in ("the", "<|a", "|>", " cat <|a|>x sat"):
        growing.feed(delta)
    assert growing.finish() == rules.encode("the<|a|> cat <|a|>x sat")


def test_tokenizers_of_other_kinds() -> None:
    class Opaque:
        def encode(self, text: str) -> list[int]:
            return [len(text)]

    class Bytes(ByteChatTokenizer):
        context_free = True

    rules = CutRules(Opaque())
    assert rules.reason is not None and "Opaque" in rules.reason
    growing = StableTokenizer(CutRules(Bytes()), "a", batch=1)
    growing.feed("b\u00e9 ")
    assert bytes(growing.ids).decode() == "ab\u00e9"
    assert bytes(growing.finish("!")).decode() == "ab\u00e9 !"


@pytest.mark.parametrize(
    "pattern",
    [
        r"a*",
        r"(a)\1",
        r"(?<!a)b",
        r"a$",
        r"\bword",
        r"[[:alpha:]]",
        r"[a&&b]",
        r"\p{Han}",
        r"(a",
        r"a)",
        r"\K",
    ],
)
def test_patterns_outside_the_syntax_are_refused(pattern: str) -> None:
    with pytest.raises(UnsupportedPatternError):
        SplitPattern(pattern)


@pytest.mark.parametrize(
    ("pattern", "pair", "free"),
    [
        (r"\p{L}+|\s+", "a ", True),
        (r"\p{L}+|\s+", "ab", False),
        (r" ?\p{L}+|\s+(?!\S)|\s+", " a", False),  # the lookahead reads it
        (r"\p{N}{1,3}", "12", False),
        (r"\p{N}{1}", "12", True),
        (r"a{2,}|b", "aa", False),
        (r"(?i:'s)|.", "'S", False),
        (r"(?i:'s)|.", "'\u017f", False),  # the long s folds to s
        (r"[^a-c]+", "dd", False),
        (r"[^a-c]+", "ad", True),
        (r"a(?:b|c)*d", "bd", False),
        (r"a(?:b|c)*d", "da", True),
        (r"a?b??c", "ac", False),
        (r"x{,2}y{a}", "y{", False),
        (r"\x{61}\u0062\x63", "bc", False),
    ],
)
def test_neighbours_in_a_match(pattern: str, pair: str, free: bool) -> None:
    rules = SplitPattern(pattern)
    may_a, _ = rules.signature(pair[0])
    may_b, _ = rules.signature(pair[1])
    assert (rules.after(may_a) & may_b == 0) is free


def test_decoding_gives_the_text_back() -> None:
    tokenizer = byte_level(use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    growing = StableTokenizer(CutRules(tokenizer), batch=1)
    for delta in ("Hel", "lo wor", "ld, 12"):
        growing.feed(delta)
    assert tokenizer.decode(growing.finish("3!")) == "Hello world, 123!"
