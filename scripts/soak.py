"""Random workflows for a long time: every answer checked, nothing left after each round, memory flat.

    python scripts/soak.py                                30 minutes on a scripted engine
    python scripts/soak.py --engine embedded              the same on a real one (the default model)
    python scripts/soak.py --seconds 600 --seed 7         other lengths and workflows
    python scripts/soak.py --resume                       go on where a run that was stopped had got to
    python scripts/soak.py --engine embedded --max-total-tokens 2048      a pool too small for the load

A round is a number of workflows at once: chains, fan-in and fan-out of agents with hand-off, AutoGen teams
that overlap, calls and streams of the model client, some of them cancelled, left early, failing, or forecast
wrongly and forgotten. Round r of seed s is always the same one. A scripted engine answers by a function of
the prompt, so a prompt or an answer that sharing had changed would be found. A real one checks its cache
whenever it is idle (FLASHAGENTS_CHECK), and its processes' memory and descriptors count, too.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import hashlib
import json
import os
import random
import sys
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "runtime"), str(ROOT)]

import psutil  # noqa: E402
from autogen_agentchat.agents import AssistantAgent  # noqa: E402
from autogen_agentchat.messages import TextMessage  # noqa: E402
from autogen_core import CancellationToken  # noqa: E402
from autogen_core.models import SystemMessage, UserMessage  # noqa: E402

from benchmarks.arguments import engine_argument  # noqa: E402
from benchmarks.pressure.memory_samples import Samples  # noqa: E402
from flashagents_autogen import FlashAgentsChatCompletionClient, FlashRoundRobinGroupChat  # noqa: E402
from flashagents_autogen.groupchat import default_runtime  # noqa: E402
from flashagents_runtime import EngineError, GenerateRequest, Reply, SamplingParams, ScriptedEngine  # noqa: E402
from flashagents_runtime.chat_tokenizer import ByteChatTokenizer  # noqa: E402
from flashagents_runtime.handoff import (  # noqa: E402
    CutRules,
    Downstream,
    Handoff,
    Prefiller,
    PrefillSession,
    PromptForecast,
    forecast_prompt,
)

STATE = Path(".cache") / "soak.json"
WORDS = "river train museum ticket hotel rain seven bridge café naïve 東京 🚲 the of and".split()  # noqa: SIM905


class SoakError(Exception):
    """An integrity check has failed."""


def require(holds: bool, what: str) -> None:
    if not holds:
        raise SoakError(what)


def answer_to(ids: list[int]) -> str:
    """The scripted engine's answer: a text that depends on every token of the prompt."""
    digest = hashlib.sha256(repr(ids).encode()).digest()
    return " ".join(WORDS[b % len(WORDS)] for b in digest[: 4 + digest[0] % 20])


def reply_to(request: GenerateRequest) -> Reply:
    """The answer in uneven pieces; prompts that ask for it fail in the middle."""
    text = answer_to(request.input_ids)
    rng = random.Random(text)
    pieces, at = [], 0
    while at < len(text):
        size = rng.randint(1, 9)
        pieces.append(text[at : at + size])
        at += size
    fails = b"please fail" in bytes(i for i in request.input_ids if i < 256)
    return Reply(text=pieces, error=EngineError("as asked") if fails else None)


class Forever:
    """A script without end."""

    def __iter__(self) -> Forever:
        return self

    def __next__(self) -> Callable[[GenerateRequest], Reply]:
        return reply_to


@dataclass
class Soak:
    """One run; `round` does a round and checks what is left after it."""

    engine: Any
    tokenizer: Any
    scripted: bool
    seed: int
    workflows: int = 24
    exact: bool = True
    """The same prompt has the same answer: not in a GPU's bf16, where it depends on the batch."""
    done: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.prefiller = Prefiller(self.engine, chunk_size=16 if self.scripted else None)
        self.rules = CutRules(self.tokenizer)
        self._forgotten: list[PrefillSession] = []
        self.client = FlashAgentsChatCompletionClient(
            engine=self.engine, tokenizer=self.tokenizer, max_tokens=40, temperature=0
        )

    async def round(self, number: int) -> None:
        """All workflows of a round at once; raises SoakError where anything is not as it should be."""
        rng = random.Random(f"{self.seed}/{number}")
        others = asyncio.all_tasks()
        kinds = [
            *(self.chain, self.fan, self.call, self.stream, self.team),
            *(self.cancelled, self.left_early, self.failing, self.forgotten),
        ]
        work: list[Coroutine[Any, Any, None]] = []
        for _ in range(self.workflows):
            kind = rng.choice(kinds)
            self.done[kind.__name__] += 1
            work.append(kind(random.Random(rng.random())))
        await asyncio.gather(*work)
        while self._forgotten:
            await self._forgotten.pop().close()
        async with asyncio.timeout(60):
            while asyncio.all_tasks() - others:
                gc.collect()  # streams that were left are closed when they are collected
                await asyncio.sleep(0)
            while (await self.engine.state()).running:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        state = await self.engine.state()
        require(state.kv_used == 0, f"{state.kv_used} tokens of KV are still held")
        require(not self.prefiller._sessions, "a prefill session was left open")
        require(not self.prefiller.budget.decoding, "a decode is still counted")
        runtime = default_runtime()  # of the teams; it keeps its latest turns for whoever looks at them
        runtime.turns.clear()
        runtime.events.clear()
        if self.scripted:
            self.engine.requests.clear()
            self.engine.aborted.clear()
            await self.engine.flush_cache()

    # ---- workflows

    def _text(self, rng: random.Random, n: int = 30) -> str:
        return " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, n)))

    def _request(self, text: str) -> GenerateRequest:
        return GenerateRequest(
            input_ids=self.tokenizer.encode(text),
            sampling=SamplingParams(max_new_tokens=200 if self.scripted else 24, temperature=0),
        )

    def _check(self, prompt: str, answer: str) -> None:
        if self.scripted:
            wanted = answer_to(self.tokenizer.encode(prompt))
            require(answer == wanted, f"{prompt!r} was answered by {answer!r}, not {wanted!r}")

    async def _speak(self, downstream: Downstream, prompt: str, handoff: Handoff | None = None) -> str:
        stream = downstream.generate(self._request(prompt))
        answer = ""
        async with aclosing(stream if handoff is None else handoff.through(stream)) as deltas:
            async for delta in deltas:
                answer += delta.text
        return answer

    async def chain(self, rng: random.Random) -> None:
        """A speaks into B's prompt, B into C's, and so on."""
        head, tail = self._text(rng), self._text(rng, 5)
        before = f"{head} begin"
        upstream: Callable[[Handoff], Any] = lambda h, p=before: h.through(  # noqa: E731
            self.engine.generate(self._request(p))
        )
        prompt = before
        for _ in range(rng.randint(1, 4)):
            forecast = forecast_prompt(lambda texts: f"{head} said: {texts[0]} {tail}")
            down = Downstream(self.prefiller.open(cache_salt=None), forecast, self.rules)
            handoff = Handoff([(down, 0)])
            answer = ""
            async with aclosing(upstream(handoff)) as deltas:
                async for delta in deltas:
                    answer += delta.text
            self._check(prompt, answer)
            prompt = f"{head} said: {answer} {tail}"
            require(
                not self.scripted or down.prompt_ids() == self.tokenizer.encode(prompt),
                "the forecast prompt is not the real one",
            )
            upstream = lambda h, d=down, p=prompt: h.through(d.generate(self._request(p)))  # noqa: E731
        answer = ""
        async with aclosing(upstream(Handoff())) as deltas:
            async for delta in deltas:
                answer += delta.text
        self._check(prompt, answer)

    async def fan(self, rng: random.Random) -> None:
        """Several agents at once speak into the slots of several others."""
        sources, targets = rng.randint(1, 3), rng.randint(1, 3)
        head = self._text(rng)

        def render(texts: Any, name: int) -> str:
            return f"{head} agent {name}: " + " | ".join(texts) + " Now you."

        downs = []
        for name in range(targets):
            forecast: PromptForecast = forecast_prompt(lambda t, n=name: render(t, n), sources)
            downs.append(Downstream(self.prefiller.open(), forecast, self.rules))

        async def source(slot: int) -> str:
            prompt = f"{head} source {slot}"
            handoff = Handoff([(down, slot) for down in downs])
            answer = ""
            async with aclosing(handoff.through(self.engine.generate(self._request(prompt)))) as deltas:
                async for delta in deltas:
                    answer += delta.text
                    if rng.random() < 0.2:
                        await asyncio.sleep(0)
            self._check(prompt, answer)
            return answer

        texts = await asyncio.gather(*(source(slot) for slot in range(sources)))
        prompts = [render(texts, name) for name in range(targets)]
        answers = await asyncio.gather(*(self._speak(d, p) for d, p in zip(downs, prompts, strict=True)))
        for prompt, answer in zip(prompts, answers, strict=True):
            self._check(prompt, answer)

    def _messages(self, rng: random.Random, more: str = "") -> list[Any]:
        return [
            SystemMessage(content=self._text(rng)),
            UserMessage(content=self._text(rng) + more, source="user"),
        ]

    async def call(self, rng: random.Random) -> None:
        """A model client's call; its answer is the same a second time."""
        messages = self._messages(rng)
        extra = {"max_tokens": 500} if self.scripted else {}
        first = await self.client.create(messages, extra_create_args=extra)
        again = await self.client.create(messages, extra_create_args=extra)
        if self.exact:
            require(first.content == again.content, "the same call was answered otherwise")
        require(
            first.usage.prompt_tokens == self.client.count_tokens(messages),
            "the prompt was counted otherwise",
        )

    async def stream(self, rng: random.Random) -> None:
        """A stream, its pieces joined."""
        messages = self._messages(rng)
        *pieces, result = [item async for item in self.client.create_stream(messages)]
        require("".join(map(str, pieces)) == result.content, "the pieces are not the answer")

    async def cancelled(self, rng: random.Random) -> None:
        """Cancelled by AutoGen's token, somewhere."""
        token = CancellationToken()
        task = asyncio.ensure_future(self.client.create(self._messages(rng), cancellation_token=token))
        for _ in range(rng.randint(0, 12)):
            await asyncio.sleep(0)
        token.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        require(not token._callbacks, "a callback was left on the token")

    async def left_early(self, rng: random.Random) -> None:
        """A hand-off whose reader has had enough, and a session that never generates."""
        forecast = forecast_prompt(lambda texts: f"x {texts[0]} y")
        down = Downstream(self.prefiller.open(cache_salt="other"), forecast, self.rules)
        handoff = Handoff([(down, 0)])
        stop = rng.randint(0, 10)
        stream = handoff.through(self.engine.generate(self._request(self._text(rng))))
        async for _ in stream:
            stop -= 1
            if stop < 0:
                break
        if rng.random() < 0.5:
            await stream.aclose()
        await down.close()

    async def team(self, rng: random.Random) -> None:
        """AutoGen agents in turn, each one's text streamed into the next one's prompt."""
        agents: list[Any] = [
            AssistantAgent(
                name,
                model_client=self.client,
                system_message=self._text(rng, 8),
                model_client_stream=rng.random() < 0.8,
            )
            for name in ("one", "two", "three")[: rng.randint(2, 3)]
        ]
        turns = rng.randint(2, 4)
        team = FlashRoundRobinGroupChat(agents, max_turns=turns)
        result = await team.run(task=self._text(rng, 10))
        said = [message for message in result.messages if isinstance(message, TextMessage)]
        wanted = ["user", *(agents[i % len(agents)].name for i in range(turns))]
        require([message.source for message in said] == wanted, "a turn was left out")

    async def forgotten(self, rng: random.Random) -> None:
        """A session for a prompt that never comes, and that nobody closes before the round is over."""
        session = self.prefiller.open()
        self._forgotten.append(session)
        for _ in range(rng.randint(1, 6)):
            session.extend(self.tokenizer.encode(self._text(rng)))
            await asyncio.sleep(0)

    async def failing(self, rng: random.Random) -> None:
        """An answer that breaks off with an error."""
        if not self.scripted:
            return
        try:
            await self.client.create(self._messages(rng, " please fail"))
        except EngineError:
            return
        raise SoakError("an error of the engine was swallowed")


def open_files() -> int:
    """Descriptors of this process and of its engine's."""
    process = psutil.Process()
    return sum(p.num_fds() for p in [process, *process.children(recursive=True)])


async def run(
    soak: Soak,
    *,
    seconds: float,
    first: int = 0,
    least: int = 12,
    report: Callable[[int, Samples], None] | None = None,
) -> tuple[int, Samples]:
    """Rounds until the time is over, `least` in any case; the next one, and what was held after each."""
    end = time.monotonic() + seconds
    samples = Samples()
    number = first
    descriptors = 0
    while time.monotonic() < end or len(samples.traced) < least:
        await soak.round(number)
        number += 1
        samples.take()
        now = open_files()
        if len(samples.traced) == 3:
            descriptors = now
        require(not descriptors or now <= descriptors + 4, f"{now} files are open, {descriptors} were")
        if report is not None:
            report(number, samples)
    return number, samples


async def amain(options: argparse.Namespace) -> int:
    """The command."""
    first = 0
    if options.resume and STATE.exists():
        saved = json.loads(STATE.read_text())
        options.seed, first = saved["seed"], saved["round"]
    STATE.parent.mkdir(exist_ok=True)

    def report(number: int, samples: Samples) -> None:
        STATE.write_text(json.dumps({"seed": options.seed, "round": number}))
        if number % 20 == 0:
            held = [
                f"{kind[-1] / 2**20:.1f}"
                for kind in (samples.traced, samples.resident, samples.engine or [0])
            ]
            print(f"round {number}: {' '.join(held)} MiB allocated, resident, engine's", flush=True)

    os.environ["FLASHAGENTS_CHECK"] = "1"  # integrity of the engine's cache, on idle
    if options.engine == "embedded":
        from flashagents_runtime.chat_tokenizer import load_chat_tokenizer
        from flashagents_runtime.embedded import EmbeddedEngine
        from flashagents_runtime.model_store import resolve_model

        folder = await asyncio.to_thread(resolve_model, options.model)
        more: dict[str, Any] = dict(options.engine_arg)
        if options.max_total_tokens is not None:
            more["max_total_tokens"] = options.max_total_tokens
        engine: Any = EmbeddedEngine(folder, **more)
        tokenizer: Any = load_chat_tokenizer(folder)
        await engine.start()
    else:
        engine, tokenizer = ScriptedEngine(Forever()), ByteChatTokenizer()
    soak = Soak(
        engine,
        tokenizer,
        options.engine == "scripted",
        options.seed,
        options.workflows or (24 if options.engine == "scripted" else 6),
        exact=engine.info is None or engine.info.device == "cpu",
    )
    tracemalloc.start()
    began = time.monotonic()
    try:
        number, samples = await run(soak, seconds=options.seconds, first=first, report=report)
        device = engine.info.device if engine.info is not None else "none"
    finally:
        await engine.close()
    flat = samples.is_flat()
    result = {
        "engine": options.engine,
        "commit": os.environ.get("COMMIT", ""),
        "device": device,
        "seed": options.seed,
        "seconds": round(time.monotonic() - began),
        "rounds": [first, number],
        "workflows": sum(soak.done.values()),
        "kinds": dict(soak.done),
        **samples.figures(),
        "flat": flat,
    }
    print(json.dumps(result))
    if options.out is not None:
        with options.out.open("a") as file:
            file.write(json.dumps(result) + "\n")
    if not flat:
        print("memory is not flat", file=sys.stderr)
        return 1
    return 0


def main() -> int:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=1800)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--engine", choices=["scripted", "embedded"], default="scripted")
    parser.add_argument("--workflows", type=int, help="of a round; default 24, on a real engine 6")
    parser.add_argument("--max-total-tokens", type=int, help="the embedded engine's KV pool")
    parser.add_argument("--model", help="of the embedded engine; default: the small one")
    parser.add_argument(
        "--engine-arg",
        type=engine_argument,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="of the embedded engine, e.g. attention_backend=triton; may be repeated",
    )
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--out", type=Path, help="append the result to this file, a JSON line a run")
    return asyncio.run(amain(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
