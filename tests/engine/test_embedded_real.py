"""The embedded engine with real SGLang and the real model: what it does when all is well."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from flashagents_runtime import (
    EngineStartError,
    GenerateRequest,
    RequestRejectedError,
    SamplingParams,
    UnknownAdapterError,
)
from flashagents_runtime.embedded import EmbeddedEngine
from flashagents_runtime.plugin_figures import plugin_figures
from flashagents_runtime.top import EmbeddedSource
from flashagents_runtime.types import Delta


@pytest.fixture(scope="module")
def prompt(model_path: str) -> list[int]:
    text = "<|im_start|>user\nWhat is gravity? One sentence.<|im_end|>\n<|im_start|>assistant\n"
    ids: list[int] = Tokenizer.from_file(str(Path(model_path) / "tokenizer.json")).encode(text).ids
    return ids


async def run(engine: EmbeddedEngine, ids: list[int], **sampling: object) -> tuple[str, list[int], Delta]:
    params = SamplingParams(**{"temperature": 0.0, "max_new_tokens": 16, **sampling})  # type: ignore[arg-type]
    text, tokens = "", []
    async for delta in engine.generate(GenerateRequest(input_ids=ids, sampling=params)):
        text += delta.text
        tokens += delta.token_ids
    return text, tokens, delta


async def test_an_answer_with_its_figures(real_engine: EmbeddedEngine, prompt: list[int]) -> None:
    text, tokens, last = await run(real_engine, prompt, max_new_tokens=60)
    assert text.startswith("Gravity is")
    assert last.result is not None
    assert last.result.finish_reason == "stop"
    assert last.result.usage.prompt_tokens == len(prompt)
    assert last.result.usage.completion_tokens == len(tokens)


async def test_what_it_says_of_itself(real_engine: EmbeddedEngine) -> None:
    info = real_engine.info
    assert info is not None
    assert (info.kind, info.context_length) == ("embedded", 8192)
    assert info.versions["sglang"] == "0.5.18"
    state = await real_engine.state()
    assert state.kv_used + state.kv_cached + state.kv_free == state.kv_total == info.max_total_tokens
    assert (await real_engine.internal_state())["flashagents"]["hooks"]


async def test_what_others_see_of_it(real_engine: EmbeddedEngine, prompt: list[int]) -> None:
    await run(real_engine, prompt)
    looks = await EmbeddedSource(os.getpid()).look()  # all engines of this process
    [look] = [one for one in looks if one.counts == real_engine.tally.counts()]
    assert look.info == real_engine.info and look.counts is not None
    assert look.counts.prompt >= len(prompt) and look.state.running == 0
    assert {"soft_pins", "intra_turn"} <= set(look.plugin)
    assert look.plugin.keys() == (await plugin_figures(real_engine)).keys()


async def test_a_repeated_prompt_is_read_from_the_radix_cache(
    real_engine: EmbeddedEngine, prompt: list[int]
) -> None:
    first = await run(real_engine, prompt)
    second = await run(real_engine, prompt)
    assert first[:2] == second[:2]
    assert first[2].result is not None and first[2].result.usage.cached_tokens == 0
    assert second[2].result is not None and second[2].result.usage.cached_tokens == len(prompt) - 1


async def test_the_cache_can_be_flushed_as_soon_as_an_answer_has_ended(
    real_engine: EmbeddedEngine, prompt: list[int]
) -> None:
    """SGLang refuses for a step more."""
    for _ in range(8):
        await run(real_engine, prompt, max_new_tokens=2)
        assert await real_engine.flush_cache()
    endless = GenerateRequest(input_ids=prompt, sampling=SamplingParams(ignore_eos=True))
    stream = real_engine.generate(endless)
    await anext(stream)
    assert not await real_engine.flush_cache()
    await stream.aclose()


async def test_a_prefill_only_request_fills_the_cache_and_says_nothing(
    real_engine: EmbeddedEngine, prompt: list[int]
) -> None:
    text, tokens, last = await run(real_engine, prompt, max_new_tokens=0)
    assert (text, tokens) == ("", [])
    assert last.result is not None and last.result.finish_reason == "length"
    state = await real_engine.state()
    assert (state.kv_cached, state.kv_used) == (len(prompt), 0)
    cold_free = await run(real_engine, prompt)
    assert cold_free[2].result is not None
    assert cold_free[2].result.usage.cached_tokens == len(prompt) - 1


async def test_leaving_a_stream_aborts_and_frees_its_kv(
    real_engine: EmbeddedEngine, prompt: list[int]
) -> None:
    endless = GenerateRequest(input_ids=prompt, sampling=SamplingParams(ignore_eos=True))
    stream = real_engine.generate(endless)
    await anext(stream)
    assert (await real_engine.state()).kv_used > 0
    await stream.aclose()
    while (await real_engine.state()).kv_used:
        await asyncio.sleep(0.02)


async def test_an_abort_that_overtakes_its_request_is_not_lost(
    real_engine: EmbeddedEngine, prompt: list[int]
) -> None:
    endless = GenerateRequest(input_ids=prompt, sampling=SamplingParams(ignore_eos=True))
    stream = real_engine.generate(endless)
    task = asyncio.create_task(anext(stream))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await run(real_engine, prompt))[0].startswith("Gravity")


async def test_concurrent_requests_get_their_own_answers(
    real_engine: EmbeddedEngine, prompt: list[int]
) -> None:
    alone, _, _ = await run(real_engine, prompt)
    answers = await asyncio.gather(
        *(run(real_engine, prompt) for _ in range(4)), run(real_engine, prompt[:9])
    )
    assert [a[0] for a in answers[:4]] == [alone] * 4


async def test_stop_strings_end_the_answer_before_them(
    real_engine: EmbeddedEngine, prompt: list[int]
) -> None:
    text, _, last = await run(real_engine, prompt, stop=[" fundamental"])
    assert text == "Gravity is a"
    assert last.result is not None and last.result.matched_stop == " fundamental"


def compiler_caches(engine: EmbeddedEngine) -> list[Path]:
    """What torch.compile leaves in the temporary folder of the engine's processes."""
    assert engine._host is not None and engine._host._run_dir is not None
    return list(engine._host._run_dir.path.glob("torchinductor_*"))


async def test_penalties_need_no_compiler(real_engine: EmbeddedEngine, prompt: list[int]) -> None:
    """SGLang would compile them with torch.compile at their first use: ten seconds, and a C++ compiler."""
    text, _, _ = await run(real_engine, prompt, repetition_penalty=1.3, frequency_penalty=0.5)
    assert text
    assert compiler_caches(real_engine) == []


async def test_logprobs_come_with_every_token(real_engine: EmbeddedEngine, prompt: list[int]) -> None:
    request = GenerateRequest(
        input_ids=prompt,
        sampling=SamplingParams(temperature=0.0, max_new_tokens=5),
        logprobs=True,
        top_logprobs=3,
    )
    tokens: list[int] = []
    rows = []
    async for delta in real_engine.generate(request):
        tokens += delta.token_ids
        rows += delta.logprobs or []
    assert [row.token_id for row in rows] == tokens
    assert all(row.top[0] == (row.token, row.logprob) and len(row.top) == 3 for row in rows)


async def test_json_schema_is_enforced(real_engine: EmbeddedEngine, prompt: list[int]) -> None:
    schema = '{"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}'
    text, _, _ = await run(real_engine, prompt, json_schema=schema, max_new_tokens=30)
    assert isinstance(json.loads(text)["ok"], bool)


async def test_sglang_s_refusals_are_rejections(real_engine: EmbeddedEngine, prompt: list[int]) -> None:
    with pytest.raises(UnknownAdapterError, match="no LoRA adapter 'nobody', and no other"):
        async for _ in real_engine.generate(GenerateRequest(input_ids=prompt, lora="nobody")):
            pass
    with pytest.raises(RequestRejectedError, match="temperature"):
        await run(real_engine, prompt, temperature=-1.0)
    assert (await run(real_engine, prompt))[0].startswith("Gravity")


DEADLY = {
    "tokens below 0": ([5, -1, 6], {}),
    "tokens beyond the vocabulary": ([5, 10**8], {}),
    "stop tokens beyond it": ([5], {"stop_token_ids": [10**7], "min_new_tokens": 2}),
    "top_k of 40 bits": ([5], {"top_k": 2**40, "temperature": 1.0}),
    "a shortest answer of 40 bits": ([5], {"min_new_tokens": 2**40}),
    "a bias that is no number": ([5], {"logit_bias": {"3": float("nan")}, "temperature": 1.0}),
}


@pytest.mark.parametrize("what", DEADLY)
async def test_what_would_end_the_scheduler_is_refused(
    real_engine: EmbeddedEngine, prompt: list[int], what: str
) -> None:
    """SGLang itself checks none of these: see `host.guards`."""
    ids, sampling = DEADLY[what]
    request = GenerateRequest(input_ids=ids, sampling=SamplingParams(**sampling))  # type: ignore[arg-type]
    with pytest.raises(RequestRejectedError, match=r"must be|at most"):
        async for _ in real_engine.generate(request):
            pass
    assert (await real_engine.state()).running == 0


async def test_an_engine_argument_that_cannot_be_had_is_named(model_path: str) -> None:
    engine = EmbeddedEngine(model_path, incremental_streaming_output=False)
    with pytest.raises(EngineStartError, match="incremental_streaming_output=False cannot be had"):
        await engine.start()
    await engine.close()
