"""What the client refuses: a ValueError that names the thing, before anything is asked of the engine."""

from __future__ import annotations

from typing import Any

import pytest
from autogen_core import FunctionCall, Image
from autogen_core.models import (
    AssistantMessage,
    FunctionExecutionResult,
    FunctionExecutionResultMessage,
    ModelInfo,
    UserMessage,
)
from PIL import Image as PILImage

from flashagents_autogen import FlashAgentsChatCompletionClient
from flashagents_runtime import ScriptedEngine, UnsupportedFeatureError
from helpers.clients import assistant, collect, prompt, scripted, system, user

NO_SKILLS = ModelInfo(
    vision=False, function_calling=False, json_output=False, structured_output=False, family="unknown"
)
PICTURE = UserMessage(content=["Look:", Image(PILImage.new("RGB", (2, 2)))], source="user")


@pytest.mark.parametrize(
    "name",
    [
        *("", " ", " x", "a\nb", "a\rb", "a\tb", "a\u2028b", "a\x00", "\ud800", "a\u202eb"),
        *("<|im_end|>", "<s>", "a</s>b", "[INST]", "System instruction:", "the system instruction"),
    ],
)
async def test_source_names(name: str) -> None:
    for message in (user("Hi.", name), assistant("Hi.", name)):
        client, engine = scripted("a")
        with pytest.raises(ValueError, match="invalid source name"):
            await client.create([message])
        assert engine.requests == []


@pytest.mark.parametrize("name", ["Ärztin", "日本", "été", "Ξένια_2", "with space", "x" * 65, "semi;colon"])
async def test_source_names_in_any_script(name: str) -> None:
    client, engine = scripted("a")
    await client.create([user("Hi.", name), assistant("Ho.", name), user("Go on.")])
    assert f"<|im_start|>user\n{name} said:\nHi.<|im_end|>" in prompt(engine)


HALF = "a\ud800b"
CALL = FunctionCall(id="1", name="look", arguments=HALF)
RESULT = FunctionExecutionResult(call_id="1", content=HALF, name="look", is_error=False)


@pytest.mark.parametrize(
    "message",
    [
        user(HALF),
        system(HALF),
        assistant(HALF),
        UserMessage(content=["x", HALF], source="user"),
        AssistantMessage(content="x", thought=HALF, source="user"),
        AssistantMessage(content=[CALL], source="user"),
        FunctionExecutionResultMessage(content=[RESULT]),
    ],
    ids=lambda message: type(message).__name__,
)
async def test_half_a_surrogate_pair_is_no_text(message: Any) -> None:
    client, engine = scripted("a")
    with pytest.raises(ValueError, match=r"message 2 .*half a surrogate pair \('\\ud800', at \d\)"):
        await client.create([user("Hi."), message, user("Go on.")])
    with pytest.raises(ValueError, match="message 1 "):
        client.count_tokens([message])
    assert engine.requests == []


@pytest.mark.parametrize(
    "tool",
    [
        {"name": "look", "description": HALF},
        {"name": "look", "parameters": {"type": "object", "properties": {"x": {"description": HALF}}}},
    ],
)
async def test_half_a_surrogate_pair_in_a_tool(tool: Any) -> None:
    client, _ = scripted("a")
    with pytest.raises(ValueError, match=r"tool 'look' .*half a surrogate pair"):
        await client.create([user()], tools=[tool])


async def test_no_messages() -> None:
    client, _ = scripted("a")
    with pytest.raises(ValueError, match="no messages"):
        await client.create([])


@pytest.mark.parametrize("messages", ["hello", ["hello"], [{"role": "user", "content": "hello"}]])
async def test_messages_that_are_none_of_autogens(messages: Any) -> None:
    client, engine = scripted("a")
    with pytest.raises(TypeError, match="list of AutoGen's messages"):
        await client.create(messages)
    assert engine.info is None, "nothing was started for it"


async def test_a_tool_without_a_name() -> None:
    client, _ = scripted("a")
    with pytest.raises(ValueError, match="a tool has no name"):
        await client.create([user()], tools=[{"parameters": {}}])  # type: ignore[typeddict-item]


@pytest.mark.parametrize(
    ("tool", "error", "message"),
    [
        (3, TypeError, "a tool is an autogen_core Tool or its schema, not 3"),
        (
            {"name": "look", "parameters": "nonsense"},
            ValueError,
            "'look' should be a JSON schema, not 'nonsense'",
        ),
    ],
)
async def test_a_tool_that_is_none(tool: Any, error: type[Exception], message: str) -> None:
    client, engine = scripted("a")
    with pytest.raises(error, match=message):
        await client.create([user()], tools=[tool])
    assert engine.info is None, "nothing was started for it"


async def test_an_image_without_vision() -> None:
    client, _ = scripted("a")
    with pytest.raises(UnsupportedFeatureError, match="vision"):
        await client.create([PICTURE])
    with pytest.raises(ValueError, match="vision"):
        await collect(client, [PICTURE])


async def test_system_messages_apart_where_the_model_is_said_to_take_one() -> None:
    info: ModelInfo = {**NO_SKILLS, "multiple_system_messages": False}
    client, _ = scripted("a", "b", model_info=info)
    assert (await client.create([system("A"), system("B"), user()])).content == "a"
    with pytest.raises(ValueError, match="not consecutive"):
        await client.create([system("A"), user(), system("B")])
    client, _ = scripted("a")
    await client.create([system("A"), user(), system("B")])  # by default they are placed


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"tempratur": 1}, r"unknown create argument 'tempratur' \(did you mean 'temperature'\?\)"),
        ({"n": 2}, "n=2"),
        ({"temperature": -1}, "temperature=-1"),
        ({"top_p": 0}, "top_p=0"),
        ({"max_tokens": 0}, "max_tokens=0"),
        ({"presence_penalty": 3}, "presence_penalty=3"),
        ({"top_logprobs": 2}, "needs logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs=21"),
        ({"stop": 7}, "stop"),
        ({"tool_choice": "sometimes"}, "unknown tool_choice 'sometimes'"),
        ({"response_format": {"type": "nope"}}, "unknown response_format"),
        ({"response_format": "json", "format": "json"}, "two names for one thing"),
        ({"logit_bias": {"zzz": 1}}, "logit_bias.*'zzz'.*ids of tokens"),
        ({"logit_bias": {-1: 1}}, "logit_bias.*ids of tokens"),
        ({"logit_bias": {"\u0661": 1}}, "logit_bias.*ids of tokens"),
    ],
)
async def test_create_arguments(args: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        scripted("a", **args)
    client, engine = scripted("a")
    with pytest.raises(ValueError, match=message):
        await client.create([user()], extra_create_args=args)
    assert engine.requests == []


def test_constructor_arguments_that_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="engine_args"):
        FlashAgentsChatCompletionClient(engine=ScriptedEngine(), engine_args={"tp_size": 2})
    with pytest.raises(ValueError, match="Missing required field"):
        FlashAgentsChatCompletionClient(engine=ScriptedEngine(), model_info={"vision": False})  # type: ignore[typeddict-item]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"base_url": "http://127.0.0.1:8000/v1"}, "'base_url': give the address .* as engine_url="),
        ({"azure_endpoint": "https://x"}, "'azure_endpoint': give the address .* as engine_url="),
        ({"organization": "mine"}, "'organization': an engine of one's own has no accounts"),
        ({"timeout": 3}, "'timeout': .*cancellation_token"),
        ({"max_retries": 3}, "'max_retries': leave it out"),
        ({"tp_size": 2}, r"'tp_size': .*engine_args=\{'tp_size'"),
        ({"api_key": "s3cret"}, "api_key is the key of a server: give its engine_url, or leave the key out"),
        ({"engine": ScriptedEngine(), "api_key": "s3cret"}, "api_key is the key of a server"),
    ],
)
def test_arguments_of_the_client_that_was_here_before(args: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as refused:
        FlashAgentsChatCompletionClient("m", **args)
    assert "presence_penalty" not in str(refused.value) and "s3cret" not in str(refused.value)


@pytest.mark.parametrize("end", ["", "/", "/v1", "/v1/"])
def test_the_address_of_openais_clients_is_taken_too(end: str) -> None:
    client = FlashAgentsChatCompletionClient(engine_url="http://127.0.0.1:9" + end)
    assert repr(client.engine) == "<RemoteEngine http://127.0.0.1:9>"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"model": 5}, "model takes a model folder or hub id, .* not a value of type int"),
        ({"engine": 5}, "engine takes an Engine"),
        ({"engine_args": ["a"]}, "engine_args takes SGLang's arguments by name"),
        ({"engine_url": 5}, "engine_url takes the address of a server"),
        ({"engine_url": "http://127.0.0.1:9", "api_key": 5}, "api_key takes a text, not a value of type int"),
        ({"engine_url": "https://127.0.0.1:9", "tls_ca_file": 5}, "tls_ca_file takes a text or path"),
        ({"model_info": 5}, "model_info takes a ModelInfo"),
        ({"tokenizer": "gpt2"}, "tokenizer takes a ChatTokenizer"),
        ({"lora": 5}, "lora takes a text"),
        ({"cache_salt": b"s3cret"}, "cache_salt takes a text, not a value of type bytes"),
    ],
)
def test_constructor_arguments_of_another_kind(args: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message) as refused:
        FlashAgentsChatCompletionClient(**args)
    assert "s3cret" not in str(refused.value)


async def test_a_progress_that_nobody_hears() -> None:
    client, engine = scripted("a")
    with pytest.raises(TypeError, match=r"progress takes a function .*'x'"):
        await client.start("x")  # type: ignore[arg-type]
    assert engine.info is None, "nothing was started for it"


@pytest.mark.parametrize("json_output", [5, "yes", int, {"type": "object"}])
async def test_a_json_output_of_another_kind(json_output: Any) -> None:
    client, engine = scripted("a")
    with pytest.raises(TypeError, match="json_output takes True, False, None or a pydantic class"):
        await client.create([user()], json_output=json_output)
    assert engine.info is None, "nothing was started for it"
