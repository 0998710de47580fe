"""The component config: round trips, no secret written out, one engine for all who share arguments."""

from __future__ import annotations

import gc
import json

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_core import ComponentModel
from autogen_core.models import ChatCompletionClient, ModelInfo

from flashagents_autogen import FlashAgentsChatCompletionClient
from flashagents_runtime import UnsupportedFeatureError
from flashagents_runtime.embedded import pooled_engines
from helpers.clients import scripted

INFO = ModelInfo(vision=False, function_calling=True, json_output=True, structured_output=True, family="x")
MODEL = "/no/such/model"  # nothing is loaded before it is needed


def make(**args: object) -> FlashAgentsChatCompletionClient:
    return FlashAgentsChatCompletionClient(
        MODEL,
        engine_args={"mem_fraction_static": 0.5, "tp_size": 2},
        model_info=INFO,
        lora="planner",
        temperature=0.3,
        max_tokens=50,
        stop=["END"],
        **args,  # type: ignore[arg-type]
    )


def test_round_trip() -> None:
    dumped = make().dump_component()
    assert dumped.provider == "flashagents_autogen.FlashAgentsChatCompletionClient"
    assert dumped.component_type == "model"
    as_text = json.loads(dumped.model_dump_json())
    loaded = ChatCompletionClient.load_component(as_text)
    assert isinstance(loaded, FlashAgentsChatCompletionClient)
    assert loaded.dump_component() == dumped
    assert dumped.config == {
        "model": MODEL,
        "engine_args": {"mem_fraction_static": 0.5, "tp_size": 2},
        "model_info": INFO,
        "lora": "planner",
        "temperature": 0.3,
        "max_tokens": 50,
        "stop": ["END"],
    }


def test_the_smallest_config() -> None:
    dumped = FlashAgentsChatCompletionClient().dump_component()
    assert dumped.config == {"engine_args": {}}
    client = FlashAgentsChatCompletionClient.load_component({"provider": dumped.provider, "config": {}})
    assert client.dump_component() == dumped


def test_an_unknown_field_is_refused() -> None:
    with pytest.raises(ValueError, match="temprature"):
        FlashAgentsChatCompletionClient.load_component(
            {"provider": "flashagents_autogen.FlashAgentsChatCompletionClient", "config": {"temprature": 1}}
        )


def test_a_field_of_another_client_says_what_to_do() -> None:
    config = {"base_url": "http://s3cret.example/v1"}
    provider = "flashagents_autogen.FlashAgentsChatCompletionClient"
    with pytest.raises(ValueError, match=r"'base_url': give the address .* as engine_url=") as refused:
        FlashAgentsChatCompletionClient.load_component({"provider": provider, "config": config})
    assert "s3cret" not in str(refused.value)


def test_no_secret_is_written_out() -> None:
    client = FlashAgentsChatCompletionClient(
        MODEL, engine_args={"api_key": "s3cret", "admin-api-key": "s3cret"}, cache_salt="s3cret"
    )
    dumped = client.dump_component()
    assert "s3cret" not in dumped.model_dump_json() + repr(dumped) + str(dumped)


def test_a_salt_survives_a_copy_in_memory_and_a_masked_one_is_refused() -> None:
    dumped = FlashAgentsChatCompletionClient(MODEL, cache_salt="s3cret").dump_component()
    loaded = FlashAgentsChatCompletionClient.load_component(dumped)
    assert loaded._cache_salt == "s3cret"
    with pytest.raises(ValueError, match="cache_salt was masked"):
        FlashAgentsChatCompletionClient.load_component(json.loads(dumped.model_dump_json()))


def test_an_engine_object_cannot_be_written_out() -> None:
    client, _ = scripted()
    with pytest.raises(UnsupportedFeatureError, match="build it from model="):
        client.dump_component()


def test_clients_of_the_same_arguments_share_one_engine_until_the_last_is_gone() -> None:
    before = len(pooled_engines())
    agent = AssistantAgent("writer", model_client=make())
    config = agent.dump_component()
    loaded = [AssistantAgent.load_component(ComponentModel(**config.model_dump())) for _ in range(5)]
    assert len(pooled_engines()) == before + 1
    other = FlashAgentsChatCompletionClient(MODEL, engine_args={"tp_size": 4})
    assert len(pooled_engines()) == before + 2
    del agent, other, loaded
    gc.collect()
    assert len(pooled_engines()) == before


async def test_closing_gives_the_engine_back() -> None:
    before = len(pooled_engines())
    a, b = make(), make()
    await a.close()
    assert len(pooled_engines()) == before + 1
    await b.close()
    assert len(pooled_engines()) == before
