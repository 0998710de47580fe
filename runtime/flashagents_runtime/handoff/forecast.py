"""What a downstream agent's prompt will be, with gaps for texts that are still being written.

A chat template is a program: it may trim a message, merge it with its neighbour, escape it, drop it or
write something else elsewhere because of it. So a forecast is not derived from the template but
measured: the conversation is rendered several times with different probe texts in the gaps, and only
what all renderings agree on is forecast. It remains a guess, and may be wrong for a text unlike every
probe; then work is lost and nothing else, because the real prompt is rendered and tokenised anew.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from ..errors import TemplateError, UnsupportedFeatureError
from .common_prefix import common_prefix
from .stable_tokenizer import Strip

M = TypeVar("M")

#: Different in length, lines, markup, characters that templates escape, and white space around.
_PROBES = (
    "Zq{}probe",
    "Xw{}first line\n\n- second *line*: 12.5\n```\ncode\n```\nlast",
    "Kj{}<b>&amp;</b> \"quoted\" 'single' \\n {{x}} {{%y%}} {{{{z}}}} é 中文",
    " \n\t Vy{}surrounded \n\n ",
)
_STRIPS: tuple[Strip, ...] = ("none", "right", "left", "both")


@dataclass(frozen=True)
class ForecastSlot:
    """One gap.

    Attributes:
        after: the prompt's text between this gap and the next one, or the end.
        strip: which white space around the text the template removes.
        dropped: the template leaves the text out altogether.
    """

    after: str
    strip: Strip = "none"
    dropped: bool = False


@dataclass(frozen=True)
class PromptForecast:
    """`head + slot 0 + after 0 + slot 1 + after 1 ...`, as text.

    Attributes:
        head: text before the first slot; "" where nothing is certain.
        slots: the gaps that can be filled, in the order of the prompt. There may be fewer than were
            asked for: what comes after the last of them is not known.
        complete: the forecast reaches the prompt's end.
        reason: why it does not; None where it does.
    """

    head: str = ""
    slots: tuple[ForecastSlot, ...] = ()
    complete: bool = False
    reason: str | None = None

    def prompt(self, texts: Sequence[str]) -> str:
        """The forecast prompt for these texts in the slots.

        Raises:
            ValueError: the forecast is not complete, or the number of texts is another.
        """
        if not self.complete or len(texts) != len(self.slots):
            raise ValueError("an incomplete forecast, or another number of texts, makes no prompt")
        parts = [self.head]
        for slot, text in zip(self.slots, texts, strict=True):
            parts += ["" if slot.dropped else strip_text(text, slot.strip), slot.after]
        return "".join(parts)


def forecast_prompt(render: Callable[[Sequence[str]], str], slots: int = 1) -> PromptForecast:
    """Measure the forecast of a prompt with gaps.

    Args:
        render: the prompt for given texts in the gaps; called a few times.
        slots: how many gaps there are; the prompt should have them in this order.

    Returns:
        The forecast. Where the template refuses the conversation (TemplateError,
        UnsupportedFeatureError) it is empty and says why; other errors of `render` are raised.
    """
    trials = [[probe.format(f"{i}x{i * i + 7}") for i in range(slots)] for probe in _PROBES]
    try:
        renderings = [render(texts) for texts in trials]
    except (TemplateError, UnsupportedFeatureError) as error:
        return PromptForecast(reason=str(error))
    forecast = _read_base(renderings[0], trials[0])
    for texts, rendering in zip(trials[1:], renderings[1:], strict=True):
        forecast = _check(forecast, texts, rendering)
    return forecast


def forecast_messages(
    render: Callable[[Sequence[M]], str], messages: Sequence[M], slots: int = 1
) -> PromptForecast:
    """Measure the forecast of a conversation whose messages hold `slot_marker`s.

    Example:
        >>> messages = [ChatMessage(role="system", content="Be brief."),
        ...             ChatMessage(role="user", content=slot_marker(0), source="planner")]
        >>> forecast = forecast_messages(tokenizer.render, messages)
    """
    return forecast_prompt(lambda texts: render([fill(message, texts) for message in messages]), slots)


def slot_marker(slot: int = 0) -> str:
    """Stands for the text of a slot inside messages; replaced by `fill`."""
    return f"\ue0f0slot {slot}\ue0f1"


def fill(message: M, texts: Sequence[str]) -> M:
    """A copy of a message with texts in place of the markers.

    Looks into strings, lists, tuples, mappings, dataclasses and `msgspec.Struct`s.
    """
    out: Any = _fill(message, texts)
    filled: M = out
    return filled


def _fill(value: Any, texts: Sequence[str]) -> Any:
    if isinstance(value, str):
        for slot, text in enumerate(texts):
            value = value.replace(slot_marker(slot), text)
        return value
    if isinstance(value, list | tuple):
        return type(value)(_fill(item, texts) for item in value)
    if isinstance(value, Mapping):
        return {key: _fill(item, texts) for key, item in value.items()}
    if isinstance(value, msgspec.Struct):
        fields = {name: _fill(getattr(value, name), texts) for name in value.__struct_fields__}
        return msgspec.structs.replace(value, **fields)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value) if field.init]
        return dataclasses.replace(value, **{name: _fill(getattr(value, name), texts) for name in names})
    return value


def strip_text(text: str, strip: Strip) -> str:
    """The text without the white space that the template removes."""
    if strip in ("left", "both"):
        text = text.lstrip()
    return text.rstrip() if strip in ("right", "both") else text


def _read_base(rendering: str, texts: Sequence[str]) -> PromptForecast:
    """The forecast that one rendering of plain words suggests."""
    places = [(rendering.find(text), len(text)) for text in texts]
    pieces: list[str] = []  # text before each slot that is there
    slots: list[ForecastSlot] = []
    done = 0
    reason = None
    for i, (place, length) in enumerate(places):
        if place < 0:
            slots.append(ForecastSlot("", dropped=True))
            pieces.append("")
            continue
        if place < done or rendering.count(texts[i]) > 1 or any(0 <= p < place for p, _ in places[i + 1 :]):
            reason = f"the template repeats slot {i} or moves it"
            break
        pieces.append(rendering[done:place])
        slots.append(ForecastSlot(""))
        done = place + length
    rest = rendering[done:]
    if reason is not None:
        later = [place for place, _ in places[len(slots) :] if place >= done]
        rest = rendering[done : min(later, default=done)]
    pieces.append(rest)
    for i in reversed(range(len(slots))):
        if slots[i].dropped:  # the text around it is one piece, which need not wait for the slot
            pieces[i] += pieces[i + 1]
            pieces[i + 1] = ""
    filled = [dataclasses.replace(slot, after=text) for slot, text in zip(slots, pieces[1:], strict=True)]
    return PromptForecast(pieces[0], tuple(filled), reason is None, reason)


def _check(forecast: PromptForecast, texts: Sequence[str], rendering: str) -> PromptForecast:
    """What is left of a forecast after another rendering."""
    if not rendering.startswith(forecast.head):
        agreed = rendering[: common_prefix(forecast.head, rendering)]
        return PromptForecast(agreed, reason="the text before the first slot depends on the slots")
    done = len(forecast.head)
    slots: list[ForecastSlot] = []
    for i, (slot, text) in enumerate(zip(forecast.slots, texts, strict=False)):
        found = _match_slot(slot, text, rendering[done:])
        if found is None:
            return PromptForecast(forecast.head, tuple(slots), False, f"the template changes slot {i}")
        slots.append(found)
        done += len(found.after) + (0 if slot.dropped else len(strip_text(text, found.strip)))
        if found.after != slot.after:
            reason = f"the text after slot {i} depends on the slots"
            return PromptForecast(forecast.head, tuple(slots), False, reason)
    if forecast.complete and done != len(rendering):
        reason = "the end of the prompt depends on the slots"
        return PromptForecast(forecast.head, tuple(slots), False, reason)
    return dataclasses.replace(forecast, slots=tuple(slots))


def _match_slot(slot: ForecastSlot, text: str, rendering: str) -> ForecastSlot | None:
    """How the template treats the slot, so that `rendering` begins with it; None where it does not."""
    if slot.dropped:
        agreed = slot.after[: common_prefix(slot.after, rendering)]
        return dataclasses.replace(slot, after=agreed)
    surrounded = text != text.strip()
    best: ForecastSlot | None = None
    for strip in _STRIPS if surrounded else (slot.strip,):
        body = strip_text(text, strip)
        if not rendering.startswith(body):
            continue
        agreed = slot.after[: common_prefix(slot.after, rendering[len(body) :])]
        if best is None or len(agreed) > len(best.after):
            best = dataclasses.replace(slot, after=agreed, strip=strip)
    return best


__all__ = [
    "ForecastSlot",
    "PromptForecast",
    "fill",
    "forecast_messages",
    "forecast_prompt",
    "slot_marker",
    "strip_text",
]
