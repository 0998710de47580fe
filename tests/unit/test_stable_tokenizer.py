"""Tokens of a growing text: never taken back, exactly those of the whole in the end.

Against the real tokenizers of five model families, with any cut of any text into deltas.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flashagents_runtime.handoff import (
    CutRules,
    ForecastSlot,
    GrowingPrompt,
    PromptForecast,
    StableTokenizer,
)
from flashagents_runtime.handoff.forecast import strip_text
from flashagents_runtime.handoff.stable_tokenizer import Strip
from helpers.npm_tokenizers import fetched
from helpers.real_tokenizers import NAMES, rules_or_skip
from helpers.tiny_tokenizer import tiny_tokenizer

# Pieces that tokenizers and templates treat in ways of their own; combined at random below.
NASTY = [
    *(" ", "  ", " " * 17, "\n", "\n\n", "\n" * 40, "\t", "\r\n", "\r", " \n", "\n ", "\u00a0", "\u2028"),
    *("\x1c", "\x85", "\u3000", "\u200b", "\ufeff", "\x00"),
    *("a", "the", " hello", "HelloWorld", "'s", "'S", "'Ll", "\u2019s", "don't", "\u017f", "\u212a", "_"),
    *("1", "12", "1234567", "3.14", "\u0663", "\u2167", "\u00bd", "x1y2"),
    *("e\u0301", "\u0301", "=\u0338", "\u0338", "=", "<", "\u0344", "\u0958", "\u09c7\u09be", "\u09be"),
    *("\u1112\u1161\u11ab", "\u1100", "\u1161", "\u11a8", "\ud55c\uad6d", "\u30ab\u3099", "\u3099"),
    *("\u4e2d\u6587", "\u65e5\u672c\u8a9e\u306e\u30c6\u30b9\u30c8", "\u3002", "\uff0c", "\u0e01\u0e47"),
    *("\u0928\u092e\u0938\u094d\u0924\u0947", "\u0645\u0631\u062d\u0628\u0627", "\u05e9\u05c1"),
    *("\U0001f469\u200d\U0001f469\u200d\U0001f467", "\U0001f469", "\u200d", "\U0001f3fd", "\ufe0f"),
    *("\U0001f1e9\U0001f1ea", "\U0001fae8", "\u0378", "\ue000", "\U00016d63"),
    *("def f(x):\n    return x\n", '{"a": [1, 2]}', "...", "!!", "--", "</", "/>", "->", "**bold**", "```"),
    *(
        "<|im_end|>",
        "<|im_",
        "end|>",
        "<|",
        "|>",
        "<think>",
        "</think>",
        "<thin",
        "<tool_call>",
        "<|eot_id|>",
    ),
    *("<end_of_turn>", "<start_of_", "<table>", "<unused1>", "<unused12", "[multimodal]", "<0x0A>", "<unk>"),
    *(
        "\u2581",
        "\u2581\u2581",
        "<\uff5cUser\uff5c>",
        "<\uff5c",
        "\uff5c>",
        "<|begin_of_text|>",
        "<file_sep>",
    ),
]
TEXTS = st.lists(st.one_of(st.sampled_from(NASTY), st.text(max_size=6)), max_size=14).map("".join)
SHORT = st.lists(st.one_of(st.sampled_from(NASTY), st.text(max_size=3)), max_size=3).map("".join)
STRIPS: st.SearchStrategy[Strip] = st.sampled_from(["none", "left", "right", "both"])

PROPERTY = settings(
    max_examples=120,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


ALL = ["tiny", *fetched(NAMES)]


def rules_of(name: str) -> CutRules:
    return CutRules(tiny_tokenizer()) if name == "tiny" else rules_or_skip(name)


@pytest.fixture(params=ALL)
def rules(request: pytest.FixtureRequest) -> CutRules:
    return rules_of(request.param)


def cut(text: str, seed: int) -> list[str]:
    """The text in deltas of one to six characters, by chance."""
    chance = random.Random(seed)
    deltas = []
    while text:
        size = chance.choice((1, 1, 2, 3, 6))
        deltas.append(text[:size])
        text = text[size:]
    return deltas


@pytest.mark.parametrize("name", ALL)
def test_a_known_start_is_not_tokenised_again(name: str) -> None:
    """Beginning from the start of a shorter prompt gives the tokens of the whole one."""
    rules = rules_of(name)

    @settings(PROPERTY, max_examples=40)
    @given(head=TEXTS, more=TEXTS, text=SHORT, tail=SHORT, strip=STRIPS)
    def check(head: str, more: str, text: str, tail: str, strip: Strip) -> None:
        forecast = PromptForecast(head, (ForecastSlot(tail, strip),), True)
        first = GrowingPrompt(forecast, rules, batch=1)
        known, ids = first.start
        assert head.startswith(known) and rules.encode(head + more)[: len(ids)] == ids
        second = GrowingPrompt(replace(forecast, head=head + more), rules, batch=1, start=first.start)
        second.feed(text)
        second.end()
        assert second.ids == rules.encode(head + more + strip_text(text, strip) + tail)

    check()


@pytest.mark.parametrize("name", ALL)
def test_any_text_in_any_deltas(name: str) -> None:
    """After each delta the committed tokens begin every text that may still come; in the end, all of it."""
    rules = rules_of(name)

    @PROPERTY
    @given(head=SHORT, text=TEXTS, tail=SHORT, more=SHORT, strip=STRIPS, seed=st.integers(0, 1 << 16))
    def check(head: str, text: str, tail: str, more: str, strip: Strip, seed: int) -> None:
        growing = StableTokenizer(rules, head, strip=strip, batch=1)
        growing.commit()
        said, before = "", 0
        for delta in cut(text, seed):
            growing.feed(delta)
            said += delta
            if len(growing.ids) == before:
                continue
            before = len(growing.ids)
            # The text may end here with any tail, stripped or not, or go on with anything.
            so_far = strip_text(said, "left" if strip in ("left", "both") else "none")
            for future in (so_far.rstrip() + tail, so_far.rstrip() + more, so_far + more):
                assert rules.encode(head + future)[:before] == growing.ids
        whole = head + strip_text(text, strip) + tail
        assert growing.finish(tail) == rules.encode(whole)
        assert growing.held_chars == 0

    check()


@pytest.mark.parametrize("name", ALL)
def test_several_slots_and_explicit_commits(name: str) -> None:
    rules = rules_of(name)

    @settings(PROPERTY, max_examples=40)
    @given(pieces=st.lists(SHORT, min_size=5, max_size=5), strips=st.lists(STRIPS, min_size=2, max_size=2))
    def check(pieces: list[str], strips: list[Strip]) -> None:
        head, one, between, two, tail = pieces
        growing = StableTokenizer(rules, head, strip=strips[0])
        seen: list[int] = []
        for text, after, following in ((one, between, strips[1]), (two, tail, None)):
            for delta in cut(text, 7):
                growing.feed(delta)
                growing.commit()
                assert growing.ids[: len(seen)] == seen
                seen = list(growing.ids)
            growing.end_slot(after, strip=following)
        whole = head + strip_text(one, strips[0]) + between + strip_text(two, strips[1]) + tail
        assert growing.preview() == rules.encode(whole)
        growing.commit()
        assert growing.finish()[: len(seen)] == seen
        assert growing.ids == rules.encode(whole)

    check()


ORDINARY = (
    "The quick brown fox doesn't jump over 12 lazy dogs; it walks.\n\n"
    "def area(r: float) -> float:\n    return 3.14159 * r ** 2\n\n- one\n- two (see https://example.org)\n"
) * 12


def test_ordinary_text_is_committed_soon(rules: CutRules) -> None:
    """Few characters wait: about a word, and white space."""
    growing = StableTokenizer(rules, "user\n", batch=1)
    held = []
    for i in range(0, len(ORDINARY), 3):
        growing.feed(ORDINARY[i : i + 3])
        held.append(growing.held_chars)
    assert rules.reason is None
    assert sorted(held)[len(held) // 2] <= 8
    assert max(held) <= 40


def test_batches_commit_the_same_tokens(rules: CutRules) -> None:
    results = set()
    for batch in (1, 50, 10_000):
        growing = StableTokenizer(rules, batch=batch)
        for delta in cut(ORDINARY, 3):
            growing.feed(delta)
        results.add(tuple(growing.finish()))
    assert results == {tuple(rules.encode(ORDINARY))}


def test_each_character_is_tokenised_once(rules: CutRules, monkeypatch: pytest.MonkeyPatch) -> None:
    """Linear cost: the parts that go to the tokenizer make up the text, and no more."""
    encoded: list[str] = []
    encode = rules.encode
    monkeypatch.setattr(rules, "encode", lambda text: encoded.append(text) or encode(text))
    growing = StableTokenizer(rules, batch=64)
    for delta in cut(ORDINARY, 5):
        growing.feed(delta)
    growing.finish("tail")
    assert "".join(encoded) == ORDINARY + "tail"


def test_a_run_without_seams_is_looked_at_once(rules: CutRules, monkeypatch: pytest.MonkeyPatch) -> None:
    """A million letters in a row: no search begins again from the start."""
    places = 0
    search = rules.last_seam

    def count(text: str, low: int, high: int, end: int) -> int | None:
        nonlocal places
        places += max(high - low, 0)
        return search(text, low, high, end)

    monkeypatch.setattr(rules, "last_seam", count)
    growing = StableTokenizer(rules, batch=1)
    for _ in range(2_000):
        growing.feed("a" * 10)
    assert places < 3 * 20_000
    assert growing.held_chars + 8 * len(growing.ids) >= 20_000 - 16


def test_no_text_after_the_end() -> None:
    growing = StableTokenizer(rules_of("tiny"), "head")
    ids = growing.finish(" tail")
    assert growing.finish() == ids
    with pytest.raises(ValueError, match="no slot is open"):
        growing.feed("x")
    with pytest.raises(ValueError, match="no slot is open"):
        growing.end_slot("x")
