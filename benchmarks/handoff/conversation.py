"""One conversation, A then B, with the overlap or without it, on the clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from time import perf_counter

from flashagents_runtime import Delta, Engine, GenerateRequest, GenerateResult, SamplingParams, Usage
from flashagents_runtime.chat import ChatMessage
from flashagents_runtime.chat_tokenizer import HFChatTokenizer
from flashagents_runtime.handoff import (
    CutRules,
    Downstream,
    Handoff,
    Prefiller,
    PromptForecast,
    SessionFigures,
    forecast_messages,
    slot_marker,
    warm_up,
)
from flashagents_runtime.handoff.growing_prompt import GrowingPrompt

from .model import Texts


@dataclass
class Script:
    """What the two agents are told and say.

    `said` is A's answer, one piece a token: the weights may be random, so what A decodes is replaced piece
    by piece, and only its timing is A's. `told` is what B's system message is, `guess` what the forecast
    takes it for. B answers with `answer` tokens, as the LoRA adapter `lora` where one is named.
    """

    question: str
    said: list[str]
    told: str
    guess: str
    ids: list[int] = field(default_factory=list)
    """B's real prompt."""
    forecast: PromptForecast | None = None
    start: tuple[str, list[int]] = ("", [])
    """The forecast's head, tokenised: a team has it from the turn before. Else the conversations of a cell
    would begin one after another, each as much later as that takes, in `ours` only."""
    target: Downstream | None = None
    """B's session, where its head was warmed."""
    answer: int = 1
    lora: str | None = None


@dataclass
class Sample:
    """What was seen; times in seconds on one clock."""

    arrivals: list[float] = field(default_factory=list)
    """Of A's deltas, the first with its first token."""
    first: float = 0.0
    """B's first token."""
    last: float = 0.0
    """The end of B's answer."""
    render: float = 0.0
    """To render and tokenise B's prompt: known beforehand here, so in no other figure."""
    result: GenerateResult | None = None
    figures: SessionFigures | None = None

    @property
    def gaps(self) -> list[float]:
        """Times between A's deltas."""
        return [b - a for a, b in zip(self.arrivals, self.arrivals[1:], strict=False)]


class Agents:
    """A and B on one engine, A on another one, or A as a stream held to a rate.

    Args:
        speaker: the engine that A decodes on; None: B's.
        rate: tokens a second that A is held to, on no engine; None: A decodes on B's engine.
        expected: tell the session how long A's answer will be.
        scale: divides the tokens of the floor.
        share: by how much warm-ups may slow A, where the server does not see to that.
        clock: the time in seconds, from any origin.
    """

    def __init__(
        self,
        engine: Engine,
        chat: HFChatTokenizer,
        seed: int,
        *,
        speaker: Engine | None = None,
        rate: float | None = None,
        expected: bool = False,
        scale: int = 1,
        share: str = "0.05",
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.engine = engine
        self.prefiller = Prefiller(engine, share=min(float(share), 1.0))
        # Warm-ups make room for what decodes beside them.
        self._speaker = self.prefiller if speaker is None else Prefiller(speaker)
        self.prefiller.clock = self._speaker.clock = self._clock = clock
        self._chat = chat
        self._rules = CutRules(chat.backend_tokenizer)
        self._texts = Texts(chat.backend_tokenizer, seed)
        self._rate = rate
        self._expected = expected
        self.new = max(128 // scale, 1)

    def script(self, upstream: int, prefix: int, *, wrong: bool = False, told: str | None = None) -> Script:
        """A conversation unlike any before; `told` is a prefix that it shares with others."""
        told = self._texts.of(prefix) if told is None else told
        guess = self._texts.of(prefix) if wrong else told
        script = Script(self._texts.of(60), self._texts.pieces(upstream), told, guess)
        script.ids = self._ids(self._messages(script.told, "".join(script.said)))
        script.forecast = forecast_messages(self._chat.render, self._messages(guess, slot_marker()))
        script.start = GrowingPrompt(script.forecast, self._rules).start
        return script

    def text(self, tokens: int) -> str:
        """A text unlike any before."""
        return self._texts.of(tokens)

    async def close(self) -> None:
        """Close all sessions; the engines stay open."""
        await self.prefiller.close()
        await self._speaker.close()

    async def warm_heads(self, scripts: list[Script]) -> None:
        """Prefill what comes before A's texts, as a run's start would; for `ours` in its own sessions."""
        targets = [self._open(script) for script in scripts]
        await warm_up(*(target.session for target in targets))
        for script, target in zip(scripts, targets, strict=True):
            script.target = target

    def _open(self, script: Script) -> Downstream:
        assert script.forecast is not None
        expected = len(script.said) if self._expected else None
        session = self.prefiller.open(expected=expected, lora=script.lora)
        return Downstream(session, script.forecast, self._rules, start=script.start)

    async def off(self, script: Script) -> Sample:
        """B's request is an ordinary one, sent when A has ended."""
        sample = Sample()
        if script.target is not None:
            await script.target.close()  # the heads stay in the cache
        async with aclosing(self._speak(script, sample)) as stream:
            async for _ in stream:
                pass
        await self._answer(self.prefiller.generate(_request(script)), sample)
        began = perf_counter()
        assert self._ids(self._messages(script.told, "".join(script.said))) == script.ids
        sample.render = perf_counter() - began
        return sample

    async def ours(self, script: Script) -> Sample:
        """A's tokens go to B's prefill session while they come."""
        sample = Sample()
        target = script.target or self._open(script)
        try:
            async with aclosing(Handoff([(target, 0)]).through(self._speak(script, sample))) as stream:
                async for _ in stream:
                    pass
            await self._answer(target.generate(_request(script)), sample)
        finally:
            await target.close()
        sample.figures = target.figures
        began = perf_counter()
        text = self._chat.render(self._messages(script.told, "".join(script.said)))
        ids = target.tokens_of(text)
        ids = self._chat.encode(text) if ids is None else ids
        sample.render = perf_counter() - began
        assert ids == script.ids
        return sample

    async def warm_all_but_the_last(self, script: Script) -> None:
        """What `floor` finds in the cache."""
        warm = GenerateRequest(input_ids=script.ids[: -self.new], sampling=tokens(0))
        await self._answer(self.engine.generate(warm), Sample())

    async def floor(self, script: Script) -> Sample:
        """128 new tokens on the same cached prefix, and one decode step: `first` - `arrivals[0]`."""
        sample = Sample(arrivals=[self._clock()])
        await self._answer(
            self.engine.generate(GenerateRequest(input_ids=script.ids, sampling=tokens(2))), sample, nth=2
        )
        return sample

    async def _answer(self, stream: AsyncGenerator[Delta, None], sample: Sample, nth: int = 1) -> None:
        count = 0
        async with aclosing(stream):
            async for delta in stream:
                count += len(delta.token_ids)
                if count >= nth and not sample.first:
                    sample.first = self._clock()
                sample.result = delta.result
        sample.last = self._clock()

    async def _speak(self, script: Script, sample: Sample) -> AsyncGenerator[Delta, None]:
        """A's stream, with the script's text."""
        if self._rate is not None:
            began = self._clock()
            for i, piece in enumerate(script.said):
                await asyncio.sleep(max(began + (i + 1) / self._rate - self._clock(), 0))
                sample.arrivals.append(self._clock())
                end = GenerateResult(finish_reason="length", usage=Usage())
                yield Delta(piece, [0], end if i == len(script.said) - 1 else None)
            return
        ids = self._ids([ChatMessage(role="user", content=script.question, source="user")])
        request = GenerateRequest(input_ids=ids, sampling=tokens(len(script.said)))
        done = 0
        async with aclosing(self._speaker.generate(request)) as stream:
            async for delta in stream:
                if delta.token_ids:
                    sample.arrivals.append(self._clock())
                text = "".join(script.said[done : done + len(delta.token_ids)])
                done += len(delta.token_ids)
                yield Delta(text, delta.token_ids, delta.result)
        assert done == len(script.said), f"A wrote {done} tokens, not {len(script.said)}"

    def _messages(self, told: str, said: str) -> list[ChatMessage]:
        system = [ChatMessage(role="system", content=told)] if told else []
        return [*system, ChatMessage(role="user", content=said, source="a")]

    def _ids(self, messages: list[ChatMessage]) -> list[int]:
        return self._chat.encode(self._chat.render(messages))


def _request(script: Script) -> GenerateRequest:
    """B's real one."""
    return GenerateRequest(input_ids=script.ids, sampling=tokens(script.answer), lora=script.lora)


def tokens(n: int) -> SamplingParams:
    """Exactly `n` tokens."""
    return SamplingParams(max_new_tokens=n, temperature=0.0, ignore_eos=True)
