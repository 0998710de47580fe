"""Two agents in plain Python: the writer's prompt is prefilled while the planner still speaks.

python examples/handoff_without_autogen.py             the default model, on this machine
python examples/handoff_without_autogen.py --scripted  no model, no engine: only the mechanics
python examples/handoff_without_autogen.py --trace timeline.html  a time line of it (extra `trace`)
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from time import perf_counter

from flashagents_runtime import Engine, GenerateRequest, SamplingParams, ScriptedEngine
from flashagents_runtime.chat import ChatMessage, ChatTokenizer
from flashagents_runtime.chat_tokenizer import ByteChatTokenizer, HFChatTokenizer
from flashagents_runtime.handoff import (
    CutRules,
    Downstream,
    Handoff,
    Prefiller,
    forecast_messages,
    slot_marker,
)
from flashagents_runtime.trace import Trace, scope, watch_turn

TASK = ChatMessage(role="user", content="A week by train from Paris to Rome.", source="user")
GREEDY = SamplingParams(temperature=0.0, max_new_tokens=120)


def planner_messages() -> list[ChatMessage]:
    """What the planner is told."""
    return [ChatMessage(role="system", content="You are the planner. Propose a route in prose."), TASK]


def writer_messages(plan: str) -> list[ChatMessage]:
    """What the writer is told once there is a plan."""
    system = ChatMessage(role="system", content="You are the writer. Turn the plan into a short brochure.")
    return [system, TASK, ChatMessage(role="user", content=plan, source="planner")]


class Bytes(ByteChatTokenizer):
    """Bytes as tokens, for the scripted engine: a token ends anywhere."""

    context_free = True


async def run(engine: Engine, chat: ChatTokenizer, rules: CutRules) -> None:
    """Planner, then writer, with the hand-off between them."""
    # Chunks of 32 tokens, since the answers here are short; left out, the size is learnt.
    prefiller = Prefiller(engine, chunk_size=32, share=1.0)
    # What the writer's prompt will be, with a gap for the plan; kept warm from now on.
    forecast = forecast_messages(chat.render, writer_messages(slot_marker(0)))
    writer = Downstream(prefiller.open(), forecast, rules)
    handoff = Handoff([(writer, 0)])
    try:
        plan = ""
        request = GenerateRequest(input_ids=chat.encode(chat.render(planner_messages())), sampling=GREEDY)
        answer = watch_turn(prefiller.generate(request), request, engine, agent="planner")
        async for delta in handoff.through(answer):
            plan += delta.text
            print(delta.text, end="", flush=True)
        ended = perf_counter()
        print("\n--- hand-off ---")

        # The real prompt, rendered and tokenised anew: what was forecast only makes it faster.
        request = GenerateRequest(input_ids=chat.encode(chat.render(writer_messages(plan))), sampling=GREEDY)
        first = 0.0
        async for delta in watch_turn(writer.generate(request), request, engine, agent="writer"):
            first = first or perf_counter() - ended
            print(delta.text, end="", flush=True)
        print(f"\n\nfirst token {first * 1000:.0f} ms after the planner's last one; {writer.figures}")
    finally:
        await prefiller.close()


async def main() -> None:
    """Run, and save a time line where that is wanted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scripted", action="store_true")
    parser.add_argument("--trace", type=Path, help="where to save a time line, such as x.html or x.svg")
    options = parser.parse_args()
    trace = Trace("Planner and writer")
    if options.trace:
        trace.start()
    try:
        with scope(workflow="brochure"):
            await choose(options.scripted)
    finally:
        trace.stop()
    if options.trace:
        print(trace.save(options.trace))


async def choose(is_scripted: bool) -> None:
    """Run on the one engine or the other."""
    if is_scripted:
        byte_chat = ByteChatTokenizer()
        scripted = ScriptedEngine(
            ["Day 1: Lyon. Day 3: Turin. Day 5: Rome. " * 20, "Seven days, three cities."]
        )
        await run(scripted, byte_chat, CutRules(byte_chat))
        return
    from tokenizers import Tokenizer

    from flashagents_runtime.embedded import EmbeddedEngine
    from flashagents_runtime.model_store import resolve_model
    from flashagents_runtime.progress import show_progress

    with show_progress() as progress:
        folder = resolve_model(None, progress=progress)
        rules = CutRules(Tokenizer.from_file(str(folder / "tokenizer.json")))
        engine = EmbeddedEngine(folder)
        await engine.start(progress)
    try:
        await run(engine, HFChatTokenizer(folder), rules)
    finally:
        await engine.close()


if __name__ == "__main__":
    asyncio.run(main())
