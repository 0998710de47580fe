"""Forecasts of prompts with gaps, over templates of all kinds; and prompts that fill up."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashagents_runtime.chat import ChatMessage
from flashagents_runtime.chat_tokenizer import ByteChatTokenizer
from flashagents_runtime.errors import TemplateError
from flashagents_runtime.handoff import (
    CutRules,
    ForecastSlot,
    GrowingPrompt,
    PromptForecast,
    fill,
    forecast_messages,
    forecast_prompt,
    slot_marker,
)
from helpers import chat_templates


class _Bytes(ByteChatTokenizer):
    context_free = True


RULES = CutRules(_Bytes())
WORDS = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), min_size=1).filter(str.strip)


def conversation(*texts: str) -> list[ChatMessage]:
    said = [ChatMessage(role="user", content=text, source=f"agent{i}") for i, text in enumerate(texts)]
    return [
        ChatMessage(role="system", content="Be brief."),
        ChatMessage(role="user", content="Write about rivers.", source="user"),
        *said,
    ]


@pytest.mark.parametrize("slots", [1, 2, 3])
@pytest.mark.parametrize("name", chat_templates.NAMES)
def test_real_and_strict_templates(name: str, slots: int) -> None:
    """Also where roles must alternate, so that the messages of several agents are merged into one."""
    template = chat_templates.template(name)
    forecast = forecast_messages(template.render, conversation(*map(slot_marker, range(slots))), slots)
    assert forecast.reason is None and forecast.complete
    assert "rivers" in forecast.head and len(forecast.slots) == slots

    @settings(max_examples=25, deadline=None, derandomize=True)
    @given(texts=st.lists(WORDS, min_size=slots, max_size=slots))
    def check(texts: list[str]) -> None:
        assert forecast.prompt(texts) == template.render(conversation(*texts))

    check()


def joined(texts: Sequence[str]) -> str:
    return "<s>" + "".join(f"[{text}]" for text in texts) + "</s>"


CASES: dict[str, tuple[Callable[[Sequence[str]], str], int, PromptForecast]] = {
    "plain": (joined, 1, PromptForecast("<s>[", (ForecastSlot("]</s>"),), True)),
    "fan-in": (joined, 2, PromptForecast("<s>[", (ForecastSlot("]["), ForecastSlot("]</s>")), True)),
    "no-slots": (joined, 0, PromptForecast("<s></s>", (), True)),
    "trims": (
        lambda texts: joined([text.strip() for text in texts]),
        1,
        PromptForecast("<s>[", (ForecastSlot("]</s>", strip="both"),), True),
    ),
    "trims-right": (
        lambda texts: f"{texts[0].rstrip()}\n{texts[1].lstrip()}\n",
        2,
        PromptForecast("", (ForecastSlot("\n", strip="right"), ForecastSlot("\n", strip="left")), True),
    ),
    "drops-the-first": (
        lambda texts: f"head {texts[1]} tail",
        2,
        PromptForecast("head ", (ForecastSlot("", dropped=True), ForecastSlot(" tail")), True),
    ),
    "drops-the-last": (
        lambda texts: f"head {texts[0]} tail",
        2,
        PromptForecast("head ", (ForecastSlot(" tail"), ForecastSlot("", dropped=True)), True),
    ),
    "drops-all": (
        lambda texts: "head tail",
        2,
        PromptForecast("head tail", (ForecastSlot("", dropped=True), ForecastSlot("", dropped=True)), True),
    ),
    "escapes": (
        lambda texts: f"head {json.dumps(texts[0])} tail",
        1,
        PromptForecast('head "', (), False, "the template changes slot 0"),
    ),
    "escapes-the-second": (
        lambda texts: f"a {texts[0]} b {json.dumps(texts[1])}",
        2,
        PromptForecast("a ", (ForecastSlot(' b "'),), False, "the template changes slot 1"),
    ),
    "counts-in-the-head": (
        lambda texts: f"head: {len(texts[0])} characters: {texts[0]}",
        1,
        PromptForecast("head: ", (), False, "the text before the first slot depends on the slots"),
    ),
    "counts-in-the-tail": (
        lambda texts: f"head {texts[0]} ({len(texts[0])} characters)",
        1,
        PromptForecast("head ", (ForecastSlot(" ("),), False, "the text after slot 0 depends on the slots"),
    ),
    "tail-sometimes": (
        lambda texts: f"head {texts[0]}" + ("!" if "\n" in texts[0] else ""),
        1,
        PromptForecast("head ", (ForecastSlot(""),), False, "the end of the prompt depends on the slots"),
    ),
    "repeats": (
        lambda texts: f"head {texts[0]} and {texts[1]} and {texts[1]}",
        2,
        PromptForecast("head ", (ForecastSlot(" and "),), False, "the template repeats slot 1 or moves it"),
    ),
    "reorders": (
        lambda texts: f"head {texts[1]} and {texts[0]}",
        2,
        PromptForecast("head ", (), False, "the template repeats slot 0 or moves it"),
    ),
    "shouts": (
        lambda texts: f"head {texts[0].upper()} tail",
        1,
        PromptForecast("head ", (ForecastSlot("", dropped=True),), False, "x"),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_templates_that_do_things(name: str) -> None:
    render, slots, wanted = CASES[name]
    found = forecast_prompt(render, slots)
    if name == "shouts":  # how it is called does not matter, but nothing of the slot may be used
        assert found.head == "head " and not found.complete
    else:
        assert found == wanted


def test_a_template_that_gives_another_prompt_each_time_has_no_forecast() -> None:
    numbers = itertools.count()
    found = forecast_prompt(lambda texts: f"{next(numbers)}: {texts[0]}")
    assert (found.head, found.slots, found.complete) == ("", (), False)


def test_a_refused_conversation_has_an_empty_forecast_that_says_why() -> None:
    def refuse(texts: Sequence[str]) -> str:
        raise TemplateError("roles must alternate")

    assert forecast_prompt(refuse) == PromptForecast(reason="roles must alternate")

    def bug(texts: Sequence[str]) -> str:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        forecast_prompt(bug)


def test_markers_are_found_in_all_kinds_of_messages() -> None:
    marker = slot_marker(0)
    assert fill({"role": "user", "content": [f"A: {marker}", {"text": marker}]}, ["hi"]) == {
        "role": "user",
        "content": ["A: hi", {"text": "hi"}],
    }
    assert fill(ForecastSlot(marker), ["x"]) == ForecastSlot("x")
    message = ChatMessage(role="tool", content=marker + slot_marker(1), tool_call_id="1")
    assert fill(message, ["a", "b"]) == ChatMessage(role="tool", content="ab", tool_call_id="1")
    assert fill((1, None, marker), ["x"]) == (1, None, "x")


def test_only_a_complete_forecast_makes_a_prompt() -> None:
    with pytest.raises(ValueError, match="incomplete"):
        PromptForecast("head").prompt([])
    with pytest.raises(ValueError, match="number of texts"):
        forecast_prompt(joined, 2).prompt(["one"])


# Prompts that fill up.

PIECE = st.text(" ab\n\u00e9", max_size=4)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    name=st.sampled_from([name for name in CASES if name != "shouts"]),
    order=st.lists(st.tuples(st.integers(0, 2), PIECE), max_size=12),
    ends=st.permutations(range(3)),
)
def test_slots_fill_in_any_order(name: str, order: list[tuple[int, str]], ends: list[int]) -> None:
    """Tokens are only appended, and are those of the real prompt wherever the forecast is right."""
    render, slots, _ = CASES[name]
    forecast = forecast_prompt(render, slots)
    prompt = GrowingPrompt(forecast, RULES, batch=1)
    texts = [""] * slots
    taken = prompt.take()
    for slot, piece in order:
        prompt.feed(piece, slot)
        if slot < slots:
            texts[slot] += piece
        taken += prompt.take()
        assert taken == prompt.ids
    for slot in ends:
        prompt.end(slot)
        prompt.feed("too late", slot)
    assert prompt.ended
    taken += prompt.take()
    assert taken == prompt.ids
    assert prompt.complete == forecast.complete
    real = RULES.encode(render(texts))
    if forecast.complete:
        assert taken == real == RULES.encode(forecast.prompt(texts))
    elif name not in ("counts-in-the-head", "escapes", "escapes-the-second", "tail-sometimes"):
        assert taken == real[: len(taken)]


def test_a_later_slot_waits_for_the_earlier_ones() -> None:
    prompt = GrowingPrompt(forecast_prompt(joined, 3), RULES, batch=1)
    prompt.feed("third", 2)
    prompt.end(1)
    assert bytes(prompt.ids) == b"<s>["
    prompt.feed("first", 0)
    assert bytes(prompt.ids) == b"<s>[first"
    prompt.end(0)
    assert bytes(prompt.ids) == b"<s>[first][][third"
    prompt.end(2)
    assert bytes(prompt.ids) == b"<s>[first][][third]</s>"


def test_white_space_that_the_template_may_strip_waits() -> None:
    prompt = GrowingPrompt(forecast_prompt(CASES["trims"][0]), RULES, batch=1)
    for piece, seen in ((" \n", b""), (" a", b"a"), (" ", b"a"), ("b \n", b"a b")):
        prompt.feed(piece)
        assert bytes(prompt.ids) == b"<s>[" + seen
    prompt.end()
    assert bytes(prompt.ids) == b"<s>[a b]</s>"
