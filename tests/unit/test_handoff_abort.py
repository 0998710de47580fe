"""A whole hand-off cancelled at every single step leaves nothing behind."""

from __future__ import annotations

import asyncio

import pytest

from flashagents_runtime import GenerateRequest
from flashagents_runtime.chat_tokenizer import ByteChatTokenizer
from flashagents_runtime.handoff import CutRules, Downstream, Handoff, Policy, Prefiller, forecast_prompt
from helpers.gated_engine import GatedEngine, is_chunk


class _Bytes(ByteChatTokenizer):
    context_free = True


RULES = CutRules(_Bytes())
ANSWER = "A says this, and that. "


def prompt(texts: list[str]) -> str:
    return "<s>the task; A said: " + "; B said: ".join(texts) + "</s>"


async def run_agents(engine: GatedEngine, prefiller: Prefiller, policy: Policy) -> list[str]:
    """A streams to B and C, and B to C: a fan-out, a chain and a fan-in in one."""
    b = Downstream(
        prefiller.open(), forecast_prompt(lambda t: prompt(list(t))), RULES, on_failure=policy, batch=1
    )
    c = Downstream(
        prefiller.open(), forecast_prompt(lambda t: prompt(list(t)), 2), RULES, on_failure=policy, batch=1
    )
    to_b_and_c, to_c = Handoff([(b, 0), (c, 0)]), Handoff([(c, 1)])
    said: list[str] = []
    try:
        for handoff, stream in (
            (to_b_and_c, lambda: prefiller.generate(GenerateRequest(input_ids=RULES.encode(prompt([]))))),
            (to_c, lambda: b.generate(GenerateRequest(input_ids=RULES.encode(prompt(said))))),
        ):
            text = ""
            through = handoff.through(stream())
            try:
                async for delta in through:
                    text += delta.text
            finally:
                await through.aclose()
            said.append(text)
        last = c.generate(GenerateRequest(input_ids=RULES.encode(prompt(said))))
        said.append("".join([delta.text async for delta in last]))
        assert c.figures.prewarmed > 0
        return said
    finally:
        await b.close()
        await c.close()


@pytest.mark.parametrize("policy", ["finish", "abort"])
async def test_cancelled_at_every_step(policy: Policy) -> None:
    complete = 0
    for steps in range(0, 400):
        engine = GatedEngine([ANSWER, "B answers", "C answers"], open=steps % 2 == 0)
        prefiller = Prefiller(engine, chunk_size=8, share=1.0)
        task = asyncio.create_task(run_agents(engine, prefiller, policy))
        for step in range(steps):
            await asyncio.sleep(0)
            if step % 7 == 6:  # where the gates are shut, a chunk comes to its end now and then
                for gate in list(engine._gates.values()):
                    gate.set()
        if task.done():
            complete += 1
            assert task.result() == [ANSWER, "B answers", "C answers"]
        else:
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()
        for _ in range(3):  # an aborted generator may take a step to close
            await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        state = await engine.state()
        assert (state.running, state.kv_used) == (0, 0)
        assert not engine.waiting and not prefiller.budget.decoding
        assert list(prefiller._sessions) == []
        if complete > 4:
            break
    assert complete > 0
    assert any(is_chunk(request) for request in engine.requests)
