"""A forecast prompt that fills up: texts of several upstream agents in, stable tokens out."""

from __future__ import annotations

from .cut_rules import CutRules
from .forecast import PromptForecast
from .stable_tokenizer import DEFAULT_BATCH, StableTokenizer


class GrowingPrompt:
    """The tokens of a forecast prompt, as far as they are certain.

    Slots may be fed in any order and at once (fan-in), but a slot's text enters the prompt only when
    everything before it is final: text of later slots waits. Text for a slot that the forecast does not
    have is dropped.

    Args:
        forecast: what the prompt will be.
        rules: the seams of its model's tokenizer.
        batch: see `StableTokenizer`.
        start: the `start` of another prompt of the same rules; what both begin with is not tokenised again.

    Attributes:
        forecast: as given.
        start: how much of the head was committed at once, and its tokens.
        texts: what each slot has been fed.
    """

    def __init__(
        self,
        forecast: PromptForecast,
        rules: CutRules,
        *,
        batch: int = DEFAULT_BATCH,
        start: tuple[str, list[int]] = ("", []),
    ) -> None:
        self.forecast = forecast
        self.texts: list[list[str]] = [[] for _ in forecast.slots]
        self._ended = [slot.dropped for slot in forecast.slots]
        strip = forecast.slots[0].strip if forecast.slots else "none"
        head = forecast.head
        self._tokens = StableTokenizer(rules, head, strip=strip, batch=batch, start=start)
        self._tokens.commit()
        self.start = (head[: len(head) - self._tokens.open_chars], list(self._tokens.ids))
        self._open = 0  # the slot whose text is going in
        self._taken = 0
        if forecast.slots:
            self._advance()
        elif forecast.complete:
            self._tokens.finish()
        self._tokens.commit()

    @property
    def ids(self) -> list[int]:
        """The committed tokens; only ever appended to."""
        return self._tokens.ids

    @property
    def held_chars(self) -> int:
        """Characters of the prompt so far whose tokens are not certain; waiting slots not counted."""
        return self._tokens.held_chars

    @property
    def ended(self) -> bool:
        """Every slot has ended."""
        return all(self._ended)

    @property
    def complete(self) -> bool:
        """Every slot has ended and the forecast reaches the end: `ids` are all tokens of the prompt."""
        return self.ended and self.forecast.complete

    def feed(self, text: str, slot: int = 0) -> None:
        """Take more text of a slot; ignored once the slot has ended."""
        if slot >= len(self._ended) or self._ended[slot]:
            return
        self.texts[slot].append(text)
        if slot == self._open:
            self._tokens.feed(text)

    def end(self, slot: int = 0) -> None:
        """The slot's text is whole. Commits all that is certain then."""
        if slot >= len(self._ended) or self._ended[slot]:
            return
        self._ended[slot] = True
        if slot == self._open:
            self._advance()
        self._tokens.commit()

    def commit(self) -> None:
        """Commit all that is certain now, without waiting for a batch."""
        self._tokens.commit()

    def take(self) -> list[int]:
        """Tokens committed since the last call."""
        new = self.ids[self._taken :]
        self._taken = len(self.ids)
        return new

    def _advance(self) -> None:
        """Close slots that have ended, in order, and put in what was waiting for them."""
        slots = self.forecast.slots
        while self._open < len(slots) and self._ended[self._open]:
            after = slots[self._open].after
            self._open += 1
            if self._open < len(slots):
                self._tokens.end_slot(after, strip=slots[self._open].strip)
                for text in self.texts[self._open]:
                    self._tokens.feed(text)
            elif self.forecast.complete:
                self._tokens.finish(after)
            else:
                self._tokens.end_slot(after)


__all__ = ["GrowingPrompt"]
