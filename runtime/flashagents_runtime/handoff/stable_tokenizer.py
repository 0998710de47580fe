"""Tokenises a text while it grows, and never takes a token back."""

from __future__ import annotations

from typing import Literal

from .cut_rules import CutRules

Strip = Literal["none", "left", "right", "both"]

#: Try to commit when so many characters are new; one call of the tokenizer costs some 5 to 15 us.
DEFAULT_BATCH = 256


class StableTokenizer:
    """The tokens of `head + slot + more`, committed while the slot's text arrives.

    Committed tokens are a prefix of the tokens of the whole text, whatever comes later, and `finish`
    makes them exactly those. Committed is what stands before the last seam (`CutRules`) of

    - the text without its trailing white space: a chat template may strip it from the slot;
    - cut where an added token may have begun: `<|im_en` may become `<|im_end|>`.

    The seam between head and slot is no special case: the head's text is the first text that arrives,
    and what stands behind its last seam waits for the slot's text.

    Cost: every character is looked at about once and tokenised once, so the sum is linear in the text.

    Args:
        rules: the seams of the prompt's tokenizer.
        head: text before the slot, exactly as the chat template renders it.
        strip: which white space around the slot's text the template removes.
        batch: `feed` commits when at least so many characters have come since it last tried.
        start: a beginning of the head whose tokens are known: the `committed` of another one, with the
            same rules. It is not tokenised again.

    Attributes:
        ids: the tokens committed so far; only ever appended to.

    Example:
        >>> text = StableTokenizer(rules, head="<|im_start|>user\\n")
        >>> for delta in stream:
        ...     text.feed(delta)
        >>> ids = text.finish("<|im_end|>\\n<|im_start|>assistant\\n")
    """

    def __init__(
        self,
        rules: CutRules,
        head: str = "",
        *,
        strip: Strip = "none",
        batch: int = DEFAULT_BATCH,
        start: tuple[str, list[int]] = ("", []),
    ) -> None:
        self.rules = rules
        known, ids = start if head.startswith(start[0]) else ("", [])
        self.ids: list[int] = list(ids)
        head = head[len(known) :]
        self._batch = batch
        self._text = head  # not committed yet; begins at a seam
        self._new: list[str] = []  # fed since the last attempt
        self._new_chars = len(head)
        self._decided = 0  # added tokens are looked for from here on
        self._floor = 0  # end of the last added token in `_text`
        self._searched = 0  # no seam in (_floor, _searched]
        self._slot = len(head)  # white space from here on may be stripped; -1: no slot is open
        self._strip: Strip = strip
        self._blank = True  # the slot has had no text but white space
        self._finished = False

    @property
    def held_chars(self) -> int:
        """Characters that have arrived and are not committed."""
        return len(self._text) + sum(map(len, self._new))

    @property
    def open_chars(self) -> int:
        """Characters that have been looked at and are not committed: the text's end from the last seam on."""
        return len(self._text)

    def feed(self, text: str) -> None:
        """Take more text of the open slot; commits once a batch has come together."""
        if self._slot < 0 or self._finished:
            raise ValueError("no slot is open: its text has ended")
        if self._blank:
            if self._strip in ("left", "both"):
                text = text.lstrip()
            self._blank = not text or text.isspace()
        if not text:
            return
        self._new.append(text)
        self._new_chars += len(text)
        # The second term keeps the sum linear where a long text has no seam at all.
        if self._new_chars >= max(self._batch, len(self._text) >> 3):
            self.commit()

    def end_slot(self, text: str = "", *, strip: Strip | None = None) -> None:
        """End the open slot and add text of the template after it.

        Args:
            text: what stands between this slot and the next, or the tail of the prompt.
            strip: opens the next slot, with that treatment of its white space; None opens none.
        """
        if self._slot < 0 or self._finished:
            raise ValueError("no slot is open: its text has ended")
        self._join()
        if self._strip in ("right", "both"):
            body = self._text[self._slot :].rstrip()
            self._text = self._text[: self._slot] + body
        self._text += text
        self._new_chars += len(text)
        self._slot = -1 if strip is None else len(self._text)
        self._strip = strip or "none"
        self._blank = True

    def commit(self) -> int:
        """Commit all that is certain now; returns the number of new tokens."""
        self._join()
        self._new_chars = 0
        if self.rules.reason is not None or self._finished:
            return 0
        cut = self._last_cut(self._known_end())
        if not cut:
            return 0
        new = self.rules.encode(self._text[:cut])
        self.ids += new
        self._text = self._text[cut:]
        self._decided -= cut
        self._floor = max(self._floor - cut, 0)
        self._searched = max(self._searched - cut, 0)
        if self._slot >= 0:
            self._slot = max(self._slot - cut, 0)
        return len(new)

    def preview(self) -> list[int]:
        """All tokens of the text as it stands, as if it ended here; commits nothing."""
        self._join()
        return self.ids + self.rules.encode(self._text)

    def finish(self, tail: str = "") -> list[int]:
        """End the text with `tail`; returns the tokens of the whole. Later calls return them again."""
        if not self._finished:
            if self._slot >= 0:
                self.end_slot(tail)
            else:
                self._text += tail
            self.ids += self.rules.encode(self._text)
            self._text = ""
            self._finished = True
        return self.ids

    def _join(self) -> None:
        if self._new:
            self._text = "".join([self._text, *self._new])
            self._new.clear()

    def _known_end(self) -> int:
        """How far the text is certain: without white space at the end of the open slot."""
        if self._slot < 0:
            return len(self._text)
        return max(len(self._text.rstrip()), self._slot)

    def _last_cut(self, end: int) -> int:
        """The last seam in the text, 0 where there is none."""
        rules = self.rules
        matches, high = rules.finder.find(self._text, self._decided, end, self._floor)
        self._decided = high
        if matches:
            self._floor = self._searched = matches[-1].end
        cut = rules.last_seam(self._text, max(self._searched, self._floor), high, end)
        if cut is not None:
            return cut
        self._searched = max(self._searched, high - 2)  # the last two may become seams with more text
        return self._floor if rules.cuts_after_added else 0


__all__ = ["DEFAULT_BATCH", "StableTokenizer", "Strip"]
