"""One downstream agent while its upstream agents are still speaking."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Literal

import msgspec

from ..errors import UpstreamFailedError
from ..types import Delta, GenerateRequest
from .cut_rules import CutRules
from .forecast import PromptForecast
from .growing_prompt import GrowingPrompt
from .session import PrefillSession, SessionFigures
from .stable_tokenizer import DEFAULT_BATCH

Policy = Literal["finish", "abort"]


class UpstreamEnd(msgspec.Struct, frozen=True):
    """How an upstream agent ended.

    Attributes:
        slot: the place of its text in the downstream agent's prompt.
        how: "done"; "failed", with an error; or "cancelled" by whoever was reading it.
        error: what it failed with.
    """

    slot: int
    how: Literal["done", "failed", "cancelled"]
    error: BaseException | None = None


class Downstream:
    """Joins a forecast, a tokenizer and a prefill session: texts in, a warm prompt out.

    Args:
        session: where the prompt is kept warm; the Downstream closes it.
        forecast: what the prompt will be, with one slot for each upstream agent.
        rules: the seams of this agent's own tokenizer.
        on_failure: what to do when an upstream agent fails or is cancelled. "finish" goes on with the
            text at hand, as if it were whole; "abort" closes the session at once.
        on_end: told of the end of every upstream agent, good or bad.
        batch: see `StableTokenizer`.
        start: see `GrowingPrompt`.

    Attributes:
        session: as given.
        ends: how the upstream agents of the slots ended, as far as they have.
    """

    def __init__(
        self,
        session: PrefillSession,
        forecast: PromptForecast,
        rules: CutRules,
        *,
        on_failure: Policy = "finish",
        on_end: Callable[[UpstreamEnd], None] | None = None,
        batch: int = DEFAULT_BATCH,
        start: tuple[str, list[int]] = ("", []),
    ) -> None:
        self.session = session
        self.ends: dict[int, UpstreamEnd] = {}
        self._rules = rules
        self._on_failure: Policy = on_failure
        self._on_end = on_end
        self._batch = batch
        self._aborting = False
        self._prompt = GrowingPrompt(forecast, rules, batch=batch, start=start)
        self._rebase()

    @property
    def forecast(self) -> PromptForecast:
        """The forecast in use."""
        return self._prompt.forecast

    @property
    def start(self) -> tuple[str, list[int]]:
        """The head as far as it is tokenised, for the next forecast of this agent's prompts."""
        return self._prompt.start

    @property
    def figures(self) -> SessionFigures:
        """What the session has done so far."""
        return self.session.figures

    @property
    def partial(self) -> bool:
        """An upstream agent failed or was cancelled: the prompt holds a part of its answer, or nothing."""
        return any(end.how != "done" for end in self.ends.values())

    def feed(self, text: str, slot: int = 0) -> None:
        """An upstream agent has said more."""
        if self._is_over():
            return
        self._prompt.feed(text, slot)
        self.session.extend(self._prompt.take())

    def end(self, end: UpstreamEnd) -> None:
        """An upstream agent has ended; the second end of a slot is ignored.

        With the policy "abort" any end but "done" aborts what is in flight: call `close` afterwards, as
        always, to wait until it has gone.
        """
        if end.slot in self.ends:
            return
        self.ends[end.slot] = end
        if end.how != "done" and self._on_failure == "abort":
            self._aborting = True
            self.session.abandon()
        elif not self._is_over():
            self._prompt.end(end.slot)
            self.session.extend(self._prompt.take())
            if self._prompt.ended:
                self.session.flush()
        if self._on_end is not None:
            self._on_end(end)

    def reforecast(self, forecast: PromptForecast) -> None:
        """A better guess, for the same upstream agents in the same slots; keeps what both begin with."""
        if self._is_over():
            return
        old, self._prompt = self._prompt, self._again(forecast)
        for slot, texts in enumerate(old.texts):
            self._prompt.feed("".join(texts), slot)
        for slot in self.ends:
            self._prompt.end(slot)
        self._prompt.commit()
        self._rebase()

    def restart(self, forecast: PromptForecast) -> None:
        """Another guess, for other upstream agents: forgets what was fed; what both begin with stays warm."""
        if self._is_over():
            return
        self._prompt = self._again(forecast)
        self.ends.clear()
        self._rebase()

    def prompt_ids(self) -> list[int]:
        """The tokens of the whole prompt, by the forecast: where nobody renders the prompt anew.

        Raises:
            UpstreamFailedError: an upstream agent failed or was cancelled, and the policy is "abort".
            ValueError: an upstream agent still speaks, or the forecast does not reach the prompt's end.
        """
        for end in self.ends.values():
            if end.how != "done" and self._on_failure == "abort":
                raise UpstreamFailedError(end.slot, end.error)
        if not self._prompt.complete:
            raise ValueError("the prompt is not complete: wait for all slots, or render it yourself")
        return list(self._prompt.ids)

    def tokens_of(self, prompt: str) -> list[int] | None:
        """The canonical tokens of the real prompt, rendered anew, where it is what was forecast.

        They were made while upstream spoke, so a long prompt need not be tokenised once more at the
        hand-off. None where the text differs, or the forecast does not reach its end: tokenise it then.
        """
        if not self._prompt.complete or not prompt.startswith(self.forecast.head):
            return None
        texts = ["".join(texts) for texts in self._prompt.texts]
        return list(self._prompt.ids) if self.forecast.prompt(texts) == prompt else None

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        """Send the real prompt; see `PrefillSession.generate`.

        After the policy "abort" has struck it is an ordinary request without a session: whoever asks
        for it after having been told has decided so.
        """
        send = self.session.generate_plain if self._aborting else self.session.generate
        async with aclosing(send(request)) as stream:
            async for delta in stream:
                yield delta

    async def close(self) -> None:
        """Close the session. Closing twice is fine."""
        await self.session.close()

    def _again(self, forecast: PromptForecast) -> GrowingPrompt:
        return GrowingPrompt(forecast, self._rules, batch=self._batch, start=self.start)

    def _is_over(self) -> bool:
        return self._aborting or self.session.state in ("generating", "closed")

    def _rebase(self) -> None:
        self.session.rebase(self._prompt.take())


__all__ = ["Downstream", "Policy", "UpstreamEnd"]
