"""AutoGen's ChatCompletionClient contract, point by point, on both kinds of engine.

The table in docs/client-tests.md says which test stands for which point.
"""

from __future__ import annotations

import ast
import copy
import inspect
import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_core import ComponentModel, FunctionCall, Image
from autogen_core.logging import LLMCallEvent, LLMStreamEndEvent, LLMStreamStartEvent
from autogen_core.model_context import TokenLimitedChatCompletionContext
from autogen_core.models import (
    ChatCompletionClient,
    CreateResult,
    FunctionExecutionResult,
    FunctionExecutionResultMessage,
    ModelInfo,
    UserMessage,
)
from autogen_core.tools import FunctionTool, ToolSchema
from PIL import Image as PILImage
from pydantic import BaseModel

import flashagents_autogen
from flashagents_autogen import FlashAgentsChatCompletionClient
from flashagents_runtime import Reply, ToolCall, UnsupportedFeatureError
from flashagents_runtime.embedded import pooled_engines
from helpers.clients import assistant, collect, prompt, system, user
from helpers.engine_kinds import Rig

ROOT = Path(__file__).parents[2]
PROVIDER = "flashagents_autogen.FlashAgentsChatCompletionClient"


async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


ADD = FunctionTool(add, description="Add two numbers.")
LOOK: ToolSchema = {"name": "look", "description": "Look around."}
CALL = ToolCall(name="add", arguments='{"a": 1, "b": 2}')
PICTURE = UserMessage(content=["Look:", Image(PILImage.new("RGB", (2, 2)))], source="user")
NOTHING = ModelInfo(
    vision=False, function_calling=False, json_output=False, structured_output=False, family="unknown"
)


class Verdict(BaseModel):
    good: bool
    why: str


def schema_sent(rig: Rig) -> Any:
    """The JSON schema that the engine was asked to hold the last answer to."""
    return json.loads(rig.scripted.requests[-1].sampling.json_schema or "null")


async def test_a_stream_is_text_and_then_one_result(rig: Rig) -> None:
    client = await rig.client(Reply(text=["Hel", "", "lo", "!"]))
    items = [item async for item in client.create_stream([user()])]
    assert items[:-1] == ["Hel", "lo", "!"]
    assert isinstance(items[-1], CreateResult) and items[-1].content == "Hello!"


async def test_no_part_of_a_call_is_streamed(rig: Rig) -> None:
    client = await rig.client(Reply(tool_calls=[CALL]))
    chunks, result = await collect(client, [user()], tools=[ADD])
    assert chunks == [] and isinstance(result.content, list)


async def test_the_result_has_every_field(rig: Rig) -> None:
    client = await rig.client(Reply(text="abc", thought="Hm.", logprob=-0.25), logprobs=True)
    result = await client.create([user()])
    assert (result.content, result.thought, result.finish_reason, result.cached) == (
        ("abc", "Hm.", "stop", False)
    )
    assert result.usage.prompt_tokens == len(rig.scripted.requests[0].input_ids)
    assert result.usage.completion_tokens == 6
    assert [p.logprob for p in result.logprobs or []][-3:] == [-0.25] * 3


async def test_every_finish_reason(rig: Rig) -> None:
    client = await rig.client("Done.", "Too long.", Reply(tool_calls=[CALL]))
    assert (await client.create([user()])).finish_reason == "stop"
    short = {"max_tokens": 3}
    assert (await client.create([user()], extra_create_args=short)).finish_reason == "length"
    assert (await client.create([user()], tools=[ADD])).finish_reason == "function_calls"


async def test_an_answer_that_was_aborted_is_unknown(rig: Rig) -> None:
    client = await rig.client(Reply(text="abc", interval=30))
    stream = client.create_stream([user()])
    assert await anext(stream) == "a"
    await client.engine.abort(rig.scripted.requests[0].rid)
    result = await anext(stream)
    assert isinstance(result, CreateResult)
    assert (result.content, result.finish_reason) == ("a", "unknown")


async def test_a_call_makes_the_text_beside_it_a_thought(rig: Rig) -> None:
    client = await rig.client(*[Reply(text="Let me add. ", tool_calls=[CALL])] * 2)
    result = await client.create([user()], tools=[ADD])
    _, streamed = await collect(client, [user()], tools=[ADD])
    for got in (result, streamed):
        assert got.finish_reason == "function_calls" and got.thought == "Let me add."
        [call] = got.content
        assert isinstance(call, FunctionCall) and (call.name, call.arguments) == (CALL.name, CALL.arguments)


async def test_json_output_none_true_false_and_a_class(rig: Rig) -> None:
    client = await rig.client(*["{}"] * 5)
    for json_output, schema in ((None, None), (False, None), (True, {"type": "object"})):
        await client.create([user()], json_output=json_output)
        assert schema_sent(rig) == schema
    await client.create([user()], json_output=Verdict)
    assert schema_sent(rig)["required"] == ["good", "why"]
    await client.create(
        [user()], json_output=False, extra_create_args={"response_format": {"type": "json_object"}}
    )
    assert schema_sent(rig) is None, "False is free text, whatever the extras say"


async def test_tool_choice_in_all_its_forms(rig: Rig) -> None:
    client = await rig.client("No.", *[Reply(tool_calls=[CALL])] * 2, "No.")
    auto = await client.create([user()], tools=[ADD, LOOK], tool_choice="auto")
    required = await client.create([user()], tools=[ADD, LOOK], tool_choice="required")
    one = await client.create([user()], tools=[LOOK, ADD], tool_choice=ADD)
    none = await client.create([user()], tools=[ADD, LOOK], tool_choice="none")
    assert auto.content == none.content == "No."
    assert [call.name for call in (*required.content, *one.content)] == ["add", "add"]  # type: ignore[union-attr]
    if rig.kind == "embedded":
        formats = [request.format for request in rig.scripted.requests]
        assert [([t.name for t in f.tools], f.call_required) for f in formats if f is not None] == [
            (["add", "look"], False), (["add", "look"], True), (["add"], True), ([], False),
        ]  # fmt: skip
    else:  # a server has no form of its own for this: the calls are an array, held to their schemas
        schemas = [json.loads(r.sampling.json_schema or "{}") for r in rig.scripted.requests]
        names = [[e["properties"]["name"]["enum"][0] for e in s["items"]["anyOf"]] for s in schemas[1:3]]
        assert names == [["add", "look"], ["add"]] and schemas[0] == schemas[3] == {}


@pytest.mark.parametrize(
    ("messages", "args", "message"),
    [
        ([PICTURE], {}, "vision"),
        ([user()], {"tools": [ADD]}, "function calling"),
        ([user()], {"json_output": True}, "JSON output"),
        ([user()], {"json_output": Verdict}, "structured output"),
        ([user()], {"tools": [LOOK], "tool_choice": ADD}, "'add' is not among the tools"),
        ([user()], {"extra_create_args": {"tempratur": 1}}, "unknown create argument 'tempratur'"),
        ([user()], {"tools": [{"name": "bad name"}]}, "invalid tool name"),
        ([user(source="bad\nname")], {}, "invalid source name"),
        ([system("a"), user(), system("b")], {}, "not consecutive system messages"),
    ],
    ids=["vision", "tools", "json", "structured", "choice", "extra", "tool-name", "source", "system"],
)
async def test_what_a_model_cannot_do_is_a_value_error(
    rig: Rig, messages: Any, args: dict[str, Any], message: str
) -> None:
    client = await rig.client("no", model_info={**NOTHING, "multiple_system_messages": False})
    with pytest.raises(ValueError, match=message):
        await client.create(messages, **args)
    with pytest.raises(ValueError, match=message):
        await collect(client, messages, **args)
    assert rig.scripted.requests == []


async def test_system_messages_in_a_row_are_joined(rig: Rig) -> None:
    client = await rig.client("ok", model_info={**NOTHING, "multiple_system_messages": False})
    await client.create([system("One."), system("Two."), user()])
    assert "One." in prompt(rig.scripted) and "Two." in prompt(rig.scripted)


async def test_openai_named_extras_are_taken(rig: Rig) -> None:
    client = await rig.client(*["{}"] * 4)
    extras = {"tool_choice": "auto", "stream_options": {"include_usage": True}, "user": "me", "seed": 3}
    await client.create([user()], tools=[ADD], extra_create_args=extras)
    assert rig.scripted.requests[-1].sampling.sampling_seed == 3
    for value in ("json_object", {"type": "json_object"}):
        await client.create([user()], extra_create_args={"response_format": value})
        assert schema_sent(rig) == {"type": "object"}
    await client.create([user()], extra_create_args={"response_format": Verdict})
    assert schema_sent(rig)["required"] == ["good", "why"]


async def test_events_of_a_call_and_of_a_stream(rig: Rig, events: list[object]) -> None:
    client = await rig.client("Hello!", "Hello!")
    await client.create([user()])
    await collect(client, [user()])
    assert [type(event) for event in events] == [LLMCallEvent, LLMStreamStartEvent, LLMStreamEndEvent]
    for event in (events[0], events[2]):
        said = json.loads(str(event))
        assert said["response"]["content"] == "Hello!" and said["completion_tokens"] == 6
    assert json.loads(str(events[2]))["cached_tokens"] > 0


def config_of(rig: Rig, url: str) -> dict[str, Any]:
    own = (
        {"engine_args": {"tp_size": 2}}
        if rig.kind == "embedded"
        else {"engine_url": url, "api_key": "s3cret"}
    )
    return {"model": "/no/such/model", "temperature": 0.5, "lora": "planner", **own}


async def test_a_component_round_trip_writes_no_secret(rig: Rig) -> None:
    client = FlashAgentsChatCompletionClient(**config_of(rig, "http://127.0.0.1:9"))
    dumped = client.dump_component()
    assert (dumped.component_type, dumped.provider) == ("model", PROVIDER)
    assert "s3cret" not in dumped.model_dump_json() + repr(dumped)
    loaded = ChatCompletionClient.load_component(dumped)
    assert isinstance(loaded, FlashAgentsChatCompletionClient) and loaded.dump_component() == dumped
    await loaded.close()
    await client.close()


async def test_copies_and_pickles_are_clients_of_the_same_engine(rig: Rig) -> None:
    before = len(pooled_engines())
    client = FlashAgentsChatCompletionClient(**config_of(rig, "http://127.0.0.1:9"))
    copies = [copy.copy(client), copy.deepcopy(client), pickle.loads(pickle.dumps(client))]
    assert all(other.dump_component() == client.dump_component() for other in copies)
    assert len(pooled_engines()) == before + (1 if rig.kind == "embedded" else 0)
    for other in (client, *copies):
        await other.close()
    with pytest.raises(UnsupportedFeatureError, match="build it from model="):
        copy.copy(await rig.client())


async def test_agents_that_load_their_clients_share_one_engine(rig: Rig) -> None:
    rig.fake.engine = rig.scripted = type(rig.scripted)(["Hi."] * 3)
    url = await rig.serve_remote()
    rig.serve_embedded()
    before = len(pooled_engines())
    config = AssistantAgent("a", FlashAgentsChatCompletionClient(**config_of(rig, url))).dump_component()
    clients = [
        AssistantAgent.load_component(ComponentModel(**config.model_dump()))._model_client for _ in range(3)
    ]
    infos = [await client._engine.start() for client in clients]  # type: ignore[attr-defined]
    assert {info.kind for info in infos} == {"embedded" if rig.kind == "embedded" else "remote"}
    assert len(pooled_engines()) - before == (1 if rig.kind == "embedded" else 0)
    for client in clients:
        await client.close()
    assert len(pooled_engines()) == before


async def test_counting_needs_no_engine_and_a_context_trims_by_it(rig: Rig) -> None:
    client = await rig.client()
    assert client.count_tokens([]) == 0 and client.remaining_tokens([]) == 8192
    too_long = [user("x" * 9000)]
    assert client.remaining_tokens(too_long) == 8192 - client.count_tokens(too_long) < 0
    context = TokenLimitedChatCompletionContext(client)
    for i in range(40):
        await context.add_message(user(f"{i} " + "x" * 400))
    kept = await context.get_messages()
    assert 0 < len(kept) < 40 and client.count_tokens(kept) <= 8192
    assert rig.scripted.requests == []


async def test_the_count_is_that_of_the_models_own_prompt(rig: Rig) -> None:
    client = await rig.client("ok")
    messages = [system("Be kind."), user("Hé!"), assistant("Yes?"), user("Go.", "planner")]
    n = client.count_tokens(messages, tools=[ADD])
    result = await client.create(messages, tools=[ADD])
    assert n == result.usage.prompt_tokens == len(rig.scripted.requests[0].input_ids)


async def test_model_info_is_inferred(rig: Rig) -> None:
    client = await rig.client()
    info = client.model_info
    assert isinstance(info["family"], str)
    assert (info["vision"], info["function_calling"], info["json_output"]) == (False, True, True)
    assert info.get("structured_output") is True and info.get("multiple_system_messages") is True
    with pytest.warns(DeprecationWarning):
        assert client.capabilities["function_calling"] is True  # type: ignore[index]


async def test_results_of_tools_go_back(rig: Rig) -> None:
    client = await rig.client(Reply(tool_calls=[CALL, CALL]), "3 and 3.")
    first = await client.create([user("1 + 2?")], tools=[ADD])
    results = [
        FunctionExecutionResult(content=text, name="add", call_id=call.id, is_error=failed)  # type: ignore[union-attr]
        for call, text, failed in zip(first.content, ("3", "out of range"), (False, True), strict=True)
    ]
    history = [
        user("1 + 2?"),
        assistant(first.content),  # type: ignore[arg-type]
        FunctionExecutionResultMessage(content=results),
    ]
    assert (await client.create(history, tools=[ADD])).content == "3 and 3."
    said = prompt(rig.scripted)
    assert said.index('"name": "add"') < said.index("\n3\n") < said.index("out of range")


def test_the_allow_list_is_explained_and_never_set() -> None:
    name = "AUTOGEN_ALLOWED_PROVIDER_NAMESPACES"
    assert f"{name}=flashagents_autogen" in (ROOT / "docs" / "client.md").read_text()
    assert name not in os.environ
    package = Path(inspect.getfile(flashagents_autogen)).parent
    for path in package.glob("*.py"):
        strings = [n.value for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Constant)]
        assert not any(name in text for text in strings if isinstance(text, str))
